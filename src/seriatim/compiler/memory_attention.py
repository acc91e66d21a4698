"""Attention of one step to a memory, as an operation of expressions.

The size of a memory differs from batch to batch, so that neither its entries nor the weights are features of a row:
``memory`` leaves stand for them. There are three operations:

    ``attend``           the context Σ_n α_n m_n; `Operands` has its arguments, its ``note`` is an `AttentionKind`
    ``attended``         the weights α of an ``attend``, only to compare them
    ``attend_gradient``  of an ``attend`` and the cotangent of its context: the cotangent of the query
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .expressions import Node, node

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
    def of(arguments: Sequence[Item], note: AttentionKind) -> "Operands[Item]":
        """Return the arguments of an ``attend`` by name."""
        query, values, keys, lengths, *rest = arguments
        vector = rest.pop(0) if note.is_additive else None
        before, taps = rest if note.is_located else (None, None)
        return Operands(query, values, keys, lengths, vector, before, taps)

    @property
    def weights(self) -> list[Item]:
        """Return the parameters of the scores."""
        return [part for part in (self.vector, self.filter) if part is not None]


def recorded(
    values: Callable[[Tensor], object],
    queries: Tensor,
    memory: Tensor,
    keys: Tensor,
    lengths: Tensor,
    vector: Tensor | None,
    scale: float,
    before: Tensor | None,
    filters: Tensor | None,
) -> Node | None:
    """Return the expression for a call of `seriatim.core.step_operators.attend_to_rows`, given what tensors stand for.

    The result is None if an argument is not what a loop can read.
    """
    note = AttentionKind(float(scale), vector is not None, before is not None)
    arguments = (queries, memory, keys, lengths, vector, before, filters)
    nodes = [
        value for value in map(values, (part for part in arguments if part is not None)) if isinstance(value, Node)
    ]
    if len(nodes) < sum(part is not None for part in arguments):
        return None
    operands = Operands.of(nodes, note)
    entries = [part for part in (operands.values, operands.keys, operands.lengths, operands.before) if part is not None]
    if any(part.op != "memory" for part in entries) or any(part.op != "vector" for part in operands.weights):
        return None
    return node("attend", *nodes, width=memory.shape[2], note=note)


def attend(arguments: Sequence[Tensor], note: AttentionKind) -> tuple[Tensor, Tensor]:
    """Return contexts ``(batch, size)`` and weights ``(batch, time)``; differentiable."""
    query, values, keys, lengths, vector, before, taps = Operands.of(arguments, note)
    if vector is None:
        scores = note.scale * (keys @ query.unsqueeze(2)).squeeze(2)
    else:
        scores = torch.tanh(query.unsqueeze(1) + keys) @ vector.reshape(-1)
    if before is not None and taps is not None:
        reach = taps.numel() // 2
        scores = scores + F.pad(before, (reach, reach)).unfold(1, taps.numel(), 1) @ taps.reshape(-1)
    padding = torch.arange(values.shape[1], device=values.device) >= lengths.unsqueeze(1)
    scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=1).masked_fill(padding, 0)
    return (weights.unsqueeze(1) @ values).squeeze(1), weights
