"""Attention of a recurrent decoder to its encoder's outputs, with one head and no maps around it.

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015;
M.-T. Luong, H. Pham and C. Manning, "Effective approaches to attention-based neural machine translation", EMNLP 2015.

    α = softmax over n of score(q, m_n),   c = Σ_n α_n m_n

q queries · m memory · α weights · c contexts. What a score does to the memory alone is done once, when the memory
comes: the keys are W m for a bilinear score, W₂ m for an additive one, and m itself for the dot products.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.lengths import valid_mask
from ..core.state import State
from ..layers.scoring import Additive, Bilinear, Dot, scoring


class Seen(NamedTuple):
    """What there is to look at.

    Attributes:
        memory: ``(batch, memory_time, memory_size)``.
        keys: ``(batch, memory_time, key_size)``.
        hidden: where nothing is ``(batch, 1, memory_time)``; None where every row is full.
    """

    memory: Tensor
    keys: Tensor
    hidden: Tensor | None

    def choose(self, rows: Tensor | slice) -> "Seen":
        """Some rows, in an order of their own."""
        memory = self.memory[rows]
        keys = memory if self.keys is self.memory else self.keys[rows]
        return Seen(memory, keys, None if self.hidden is None else self.hidden[rows])


class MemoryAttention(nn.Module):
    """One head of attention to a memory as it is.

    Args:
        query_size: width of a query.
        memory_size: width of the memory.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.

    Raises:
        InputError: an unknown score, or a dot product of different widths.
    """

    def __init__(self, query_size: int, memory_size: int, *, score: str) -> None:
        super().__init__()
        self.score = scoring(score, query_size, memory_size)

    def keys(self, memory: Tensor) -> State:
        """What queries are compared with ``(batch, memory_time, key_size)``; ``()`` for the memory itself."""
        if isinstance(self.score, Bilinear):
            return memory @ self.score.weight[0].mT
        if isinstance(self.score, Additive):
            return memory @ self.score.key_weight[0]
        return ()

    def look_at(self, memory: Tensor, keys: State, lengths: Tensor) -> Seen:
        """Brings memory, keys (or ``()`` for the memory itself) and lengths ``(batch,)`` together."""
        time = memory.shape[1]
        full = not len(lengths) or int(lengths.min()) == time
        hidden = None if full else ~valid_mask(lengths, time).unsqueeze(1)
        return Seen(memory, keys if isinstance(keys, Tensor) else memory, hidden)

    def forward(self, queries: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """What queries ``(batch, time, query_size)`` find.

        Returns:
            Contexts ``(batch, time, memory_size)`` and weights ``(batch, time, memory_time)``; both are zero in a row
            without memory.
        """
        scores = self.scores(queries, seen.keys)
        if seen.hidden is None:
            weights = torch.softmax(scores, dim=2)
        else:  # a large negative number, not −∞: the softmax of a row without memory must not be NaN
            lowest = torch.finfo(scores.dtype).min
            weights = torch.softmax(scores.masked_fill(seen.hidden, lowest), dim=2).masked_fill(seen.hidden, 0)
        return weights @ seen.memory, weights

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """``(B, T, Q)`` and keys ``(B, S, K)`` made by `keys` to scores ``(B, T, S)``."""
        if isinstance(self.score, Additive):
            hidden = torch.tanh((queries @ self.score.query_weight[0]).unsqueeze(2) + keys.unsqueeze(1))
            return (hidden @ self.score.vector[0]).squeeze(3)
        return (self.score.scale * queries if isinstance(self.score, Dot) else queries) @ keys.mT
