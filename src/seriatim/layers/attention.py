"""Multi-head attention of a sequence to itself.

A. Vaswani et al., "Attention is all you need", NeurIPS 2017; fewer heads of keys and values: J. Ainslie et al., "GQA",
EMNLP 2023; the sliding window: I. Beltagy, M. Peters and A. Cohan, "Longformer", 2020.

    head_i  = softmax(score(x W_i^Q, x W_i^K)) x W_i^V
    y       = [head_1; …; head_H] W^O

Position t sees itself and what came before it, the last `window` inputs where there is a window, and everything where
it is not causal.

x inputs · W^Q, W^K, W^V of all heads, one below another ``qkv_proj`` · W^O ``o_proj`` · H ``num_heads``. There is no
dropout on the attention weights.
"""

import math
from typing import cast

from torch import Tensor, nn

from ..core.errors import InputError, nearest
from .attending import Attending
from .option_types import Size
from .positions import RELATIVE, Position, Rotary, positions, slopes
from .scoring import Score, scoring

HEAD_SIZE = 32
"""The least width of a head, where their number is not given."""


class Attention(Attending):
    """Multi-head attention.

    Args:
        input_size: width of an input.
        hidden_size: width of an output, shared out among the heads.
        num_heads: None for as many as leave each at least `HEAD_SIZE` features.
        num_kv_heads: heads of keys and values, which divide the heads; None for as many.
        causal: whether the future is hidden.
        window: inputs that are seen, the present one included; None for all.
        position: `none`, `rotary` or `alibi` (`seriatim.layer` also takes `sinusoidal` and `learned`).
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        bias: whether the maps have biases.

    Raises:
        ValueError: heads that do not divide the width, a window of 0, a name that does not exist.
    """

    keeps = "keys and values of all inputs, or of a window"
    paper = "Vaswani et al. 2017"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        num_kv_heads: Size | None = None,
        causal: bool = True,
        window: Size | None = None,
        position: Position = "rotary",
        score: Score = "scaled-dot",
        bias: bool = False,
    ) -> None:
        if position not in RELATIVE:
            raise InputError(f"unknown position {position!r}; {nearest(position, list(RELATIVE))}")
        found = heads(hidden_size, num_heads)
        super().__init__(causal=causal, window=window, slopes=slopes(found) if position == "alibi" else None)
        self.input_size, self.output_size, self.num_heads = input_size, hidden_size, found
        num_kv_heads = self.num_heads if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or self.num_heads % num_kv_heads:
            raise InputError(
                f"model.options.num_kv_heads: {num_kv_heads} does not divide num_heads, {self.num_heads}; "
                f"take one of {_divisors(self.num_heads)}"
            )
        self.kept_heads, self.kept_size = 2 * num_kv_heads, hidden_size // self.num_heads
        self.qkv_proj = nn.Linear(input_size, (self.num_heads + self.kept_heads) * self.kept_size, bias=bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.score = scoring(score, self.kept_size, self.kept_size, num_heads=self.num_heads)
        self.rotary = Rotary(self.kept_size) if position == "rotary" else None

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values; queries and keys are turned by their position."""
        entered = self.qkv_proj(inputs).unflatten(2, (-1, self.kept_size)).transpose(1, 2)  # (B, H + kept, T, D)
        if self.rotary is not None:
            entered = self.rotary(entered, positions(count, inputs.shape[1]), self.num_heads + self.kept_heads // 2)
        queries, keys, values = entered.split([self.num_heads, self.kept_heads // 2, self.kept_heads // 2], dim=1)
        return queries, keys, values, entered[:, self.num_heads :]

    def keys_values(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves of the heads."""
        keys, values = kept.chunk(2, dim=1)
        return keys, values

    def merge(self, attended: Tensor) -> Tensor:
        """The heads side by side, through the last map."""
        return cast(Tensor, self.o_proj(attended.transpose(1, 2).flatten(2)))


def heads(hidden_size: int, num_heads: int | None) -> int:
    """How many heads share a width.

    Raises:
        ValueError: they do not divide it.
    """
    if num_heads is None:
        return max(n for n in _divisors(hidden_size) if n == 1 or hidden_size // n >= HEAD_SIZE)
    if num_heads < 1 or hidden_size % num_heads:
        raise InputError(
            f"model.options.num_heads: {num_heads} does not divide the width, {hidden_size}; "
            f"take one of {_divisors(hidden_size)}"
        )
    return num_heads


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})
