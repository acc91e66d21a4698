"""Attention of a recurrent decoder to its encoder's outputs, with one head and without projections.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015;
M.-T. Luong, H. Pham and C. Manning, "Effective approaches to attention-based neural machine translation", EMNLP 2015.

    α = softmax over n of score(q, m_n),   c = Σ_n α_n m_n

q queries · m memory · α weights · c contexts. The part of a score that depends on the memory alone is computed once:
the keys are W m for a bilinear score, W₂ m for an additive score, and m itself for the dot products.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.lengths import valid_mask
from ..core.state import State
from ..layers.scoring import Additive, Bilinear, Dot, scoring


class Seen(NamedTuple):
    """A memory that queries can attend to.

    Attributes:
        memory: ``(batch, memory_time, memory_size)``.
        keys: ``(batch, memory_time, key_size)``.
        hidden: which positions are padding ``(batch, 1, memory_time)``; None if every row is full.
    """

    memory: Tensor
    keys: Tensor
    hidden: Tensor | None

    def choose(self, rows: Tensor | slice) -> "Seen":
        """Return some of the rows."""
        memory = self.memory[rows]
        keys = memory if self.keys is self.memory else self.keys[rows]
        return Seen(memory, keys, None if self.hidden is None else self.hidden[rows])


class MemoryAttention(nn.Module):
    """One head of attention to a memory without projections.

    Args:
        query_size: width of a query.
        memory_size: width of the memory.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.

    Raises:
        InputError: the score is unknown, or a dot product has vectors of different widths.
    """

    def __init__(self, query_size: int, memory_size: int, *, score: str) -> None:
        super().__init__()
        self.score = scoring(score, query_size, memory_size)

    def keys(self, memory: Tensor) -> State:
        """Return the keys of a memory ``(batch, memory_time, key_size)``; ``()`` if they are the memory itself."""
        if isinstance(self.score, Bilinear):
            return memory @ self.score.weight[0].mT
        if isinstance(self.score, Additive):
            return memory @ self.score.key_weight[0]
        return ()

    def look_at(self, memory: Tensor, keys: State, lengths: Tensor) -> Seen:
        """Join a memory, its keys (or ``()`` for the memory itself) and its lengths ``(batch,)``."""
        time = memory.shape[1]
        full = not len(lengths) or int(lengths.min()) == time
        hidden = None if full else ~valid_mask(lengths, time).unsqueeze(1)
        return Seen(memory, keys if isinstance(keys, Tensor) else memory, hidden)

    def forward(self, queries: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """Attend with queries ``(batch, time, query_size)``.

        Returns:
            Contexts ``(batch, time, memory_size)`` and weights ``(batch, time, memory_time)``; both are zero in a row
            with an empty memory.
        """
        scores = self.scores(queries, seen.keys)
        if seen.hidden is None:
            weights = torch.softmax(scores, dim=2)
        else:  # a large negative number, not −∞: the softmax of a row with an empty memory must not be NaN
            lowest = torch.finfo(scores.dtype).min
            weights = torch.softmax(scores.masked_fill(seen.hidden, lowest), dim=2).masked_fill(seen.hidden, 0)
        return weights @ seen.memory, weights

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``(B, T, S)`` for queries ``(B, T, Q)`` and the result of `keys` ``(B, S, K)``."""
        if isinstance(self.score, Additive):
            hidden = torch.tanh((queries @ self.score.query_weight[0]).unsqueeze(2) + keys.unsqueeze(1))
            return (hidden @ self.score.vector[0]).squeeze(3)
        return (self.score.scale * queries if isinstance(self.score, Dot) else queries) @ keys.mT
