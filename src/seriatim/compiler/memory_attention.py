"""Attention of one step to a memory, as an operation of expressions.

The size of a memory differs from batch to batch, so that neither its entries nor the weights are features of a row:
``memory`` leaves stand for them. There are three operations:

    ``attend``           the context Σ_n α_n m_n; `Operands` has its arguments, its ``attribute`` is an `AttentionKind`
    ``attended``         the weights α of an ``attend``, only to compare them
    ``attend_gradient``  of an ``attend`` and the cotangent of its context: the cotangent of the query
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

Item = TypeVar("Item")


class AttentionKind(NamedTuple):
    """What kind of attention it is."""

    scale: float  # of scores that are products
    is_additive: bool
    is_located: bool  # whether the scores depend on the weights of the step before


class Operands(NamedTuple, Generic[Item]):
    """The arguments: expressions, their values, or places."""

    query: Item
    values: Item  # (batch, time, size), entries of the memory
    keys: Item  # (batch, time, key_size)
    lengths: Item  # (batch,)
    vector: Item | None  # of additive scores
    before: Item | None  # (batch, time), the weights of the step before
    filter: Item | None  # over their neighbours

    @staticmethod
    def of(arguments: Sequence[Item], kind: AttentionKind) -> "Operands[Item]":
        """Return the arguments of an ``attend`` by name."""
        query, values, keys, lengths, *rest = arguments
        vector = rest.pop(0) if kind.is_additive else None
        before, taps = rest if kind.is_located else (None, None)
        return Operands(query, values, keys, lengths, vector, before, taps)

    @property
    def weights(self) -> list[Item]:
        """Return the parameters of the scores."""
        return [part for part in (self.vector, self.filter) if part is not None]


def attend(arguments: Sequence[Tensor], kind: AttentionKind) -> tuple[Tensor, Tensor]:
    """Return contexts ``(batch, size)`` and weights ``(batch, time)``; differentiable."""
    query, values, keys, lengths, vector, before, taps = Operands.of(arguments, kind)
    if vector is None:
        scores = kind.scale * (keys @ query.unsqueeze(2)).squeeze(2)
    else:
        scores = torch.tanh(query.unsqueeze(1) + keys) @ vector.reshape(-1)
    if before is not None and taps is not None:
        reach = taps.numel() // 2
        scores = scores + F.pad(before, (reach, reach)).unfold(1, taps.numel(), 1) @ taps.reshape(-1)
    padding = torch.arange(values.shape[1], device=values.device) >= lengths.unsqueeze(1)
    scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=1).masked_fill(padding, 0)
    return (weights.unsqueeze(1) @ values).squeeze(1), weights
