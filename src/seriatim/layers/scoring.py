"""The scoring functions of attention, which say how well a query matches a key.

    dot          qᵀk                       Luong, Pham & Manning 2015
    scaled-dot   qᵀk / √d                  Vaswani et al. 2017
    bilinear     qᵀ W k                    Luong, Pham & Manning 2015 ("general")
    additive     vᵀ tanh(W₁ q + W₂ k)      Bahdanau, Cho & Bengio 2015

    α = softmax over n of score(q, k_n),   c = Σ_n α_n v_n

Queries are ``(batch, heads, queries, size)``, keys ``(batch, key_heads, keys, size)``; where there are fewer heads of
keys, each is shared by a group of neighbouring heads of queries (J. Ainslie et al., "GQA", EMNLP 2023).
"""

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import MismatchError, require_known
from .option_types import OneOf


class Dot(nn.Module):
    """The product qᵀk times a constant, without parameters."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``(B, H, T, S)`` for queries ``(B, H, T, D)`` and keys ``(B, H, S, D)``."""
        return self.scale * queries @ keys.mT


class Bilinear(nn.Module):
    """The form qᵀ W k, with one W for every head."""

    def __init__(self, query_size: int, key_size: int, num_heads: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(_weights(num_heads, query_size, key_size))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``(B, H, T, S)`` for queries ``(B, H, T, D)`` and keys ``(B, H, S, K)``."""
        return queries @ self.weight @ keys.mT


class Additive(nn.Module):
    """The network vᵀ tanh(W₁ q + W₂ k), with parameters for every head; its hidden layer is as wide as a key."""

    def __init__(self, query_size: int, key_size: int, num_heads: int = 1) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(_weights(num_heads, query_size, key_size))
        self.key_weight = nn.Parameter(_weights(num_heads, key_size, key_size))
        self.vector = nn.Parameter(_weights(num_heads, key_size, 1))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``(B, H, T, S)`` for queries ``(B, H, T, D)`` and keys ``(B, H, S, K)``."""
        q, k = queries @ self.query_weight, keys @ self.key_weight
        hidden = torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))  # (B, H, T, S, K)
        return (hidden @ self.vector.unsqueeze(1)).squeeze(4)


SCORES = ("dot", "scaled-dot", "bilinear", "additive")
Score = Annotated[str, OneOf(SCORES)]


def scoring(name: str, query_size: int, key_size: int, *, num_heads: int = 1) -> nn.Module:
    """Return one of `SCORES` for queries and keys of these widths in each head; a dot product needs equal widths."""
    require_known("score", name, SCORES)
    if name == "bilinear":
        return Bilinear(query_size, key_size, num_heads)
    if name == "additive":
        return Additive(query_size, key_size, num_heads)
    if query_size != key_size:
        raise MismatchError(f"score {name!r}: queries have {query_size} features and keys {key_size}; make them equal")
    return Dot(key_size**-0.5 if name == "scaled-dot" else 1.0)


def attend(
    score: nn.Module,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return Σ_n softmax_n(score(q, k_n)) v_n for every query.

    Args:
        score: made by `scoring`.
        queries: ``(batch, heads, queries, size)``.
        keys: ``(batch, key_heads, keys, size)``; ``key_heads`` divides ``heads``.
        values: ``(batch, key_heads, keys, value_size)``; results are ``(batch, heads, queries, value_size)``.
        mask: numbers that are added to the scores, or booleans that are False where a query must not look; every query
            needs at least one key. Broadcast to ``(batch, heads, queries, keys)``.
        causal: let query i see keys 0..i only; not together with a mask.
        sinks: logits ``(heads,)`` of a further key of each head, which has no value.
    """
    grouped = keys.shape[1] != queries.shape[1]
    if isinstance(score, Dot) and sinks is None:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, scale=score.scale, enable_gqa=grouped
        )
    if grouped:
        keys, values = (x.repeat_interleave(queries.shape[1] // x.shape[1], dim=1) for x in (keys, values))
    scores = _masked_scores(score, queries, keys, mask=mask, causal=causal)
    attended = torch.softmax(scores, dim=-1) @ values
    if sinks is None:
        return attended
    share = torch.sigmoid(torch.logsumexp(scores, dim=-1, keepdim=True) - sinks.view(-1, 1, 1))  # of all but the sink
    return attended * share


def attention_weights(
    score: nn.Module, queries: Tensor, keys: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Return the softmax of the scores ``(batch, heads, queries, keys)``; keys have as many heads as queries."""
    return torch.softmax(_masked_scores(score, queries, keys, mask=mask, causal=causal), dim=-1)


def _masked_scores(
    score: nn.Module, queries: Tensor, keys: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Return the scores ``(batch, heads, queries, keys)``, −∞ where a query must not look."""
    scores: Tensor = score(queries, keys)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _weights(num_heads: int, rows: int, columns: int) -> Tensor:
    """Return Glorot-uniform weights for every head."""
    bound = (6 / (rows + columns)) ** 0.5
    return torch.empty(num_heads, rows, columns).uniform_(-bound, bound)
