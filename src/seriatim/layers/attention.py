"""Multi-head attention of a sequence to itself.

A. Vaswani et al., "Attention is all you need", NeurIPS 2017. Fewer heads of keys and values: J. Ainslie et al., "GQA",
EMNLP 2023. The sliding window: I. Beltagy, M. Peters and A. Cohan, "Longformer", 2020.

    head_i  = softmax(score(x W_i^Q, x W_i^K)) x W_i^V
    y       = [head_1; …; head_H] W^O

Position t sees itself and earlier inputs, with a window the last `window` inputs, and all inputs where the attention is
not causal.

x inputs · W^Q, W^K, W^V of all heads, stacked ``qkv_proj`` · W^O ``o_proj`` · H ``num_heads``. Simplified: there is no
dropout on the attention weights.

With ``forget_gate``, every head has a gate f = σ(W_f x + b_f), which needs no positions beside it; W_f, b_f
``forget_proj``. With ``sinks``, each head may attend to nothing. `seriatim.layers.attention_base` has the equations of
both. The cache holds log f beside keys and values.

With ``output_gate``, W^O maps [head_1; …; head_H] ⊙ σ(W_g x) (Z. Qiu et al., "Gated attention for large language
models", arXiv:2505.06708, 2025); W_g ``gate_proj``.

With ``qk_norm``, queries and keys of each head are normalized before they are rotated (A. Henry et al., "Query-key
normalization for transformers", Findings of EMNLP 2020; here RMSNorm with a gain that all heads share).
"""

import math
from typing import Annotated, ClassVar, cast

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import RangeError
from ..core.key_value_cache import KeyValueCache
from .attention_base import AttentionBase
from .option_types import Size, check_sizes
from .pointwise import EPSILON, Epsilon
from .positions import BASE, Position, positions
from .scoring import Score, scoring

RotaryBase = Annotated[float, Interval(ge=1, le=1e12)]
HEAD_SIZE = 32
"""The least width of a head where the number of heads is not given."""


class AttentionCache(KeyValueCache):
    """The state of an `Attention`."""


class Attention(AttentionBase):
    """Multi-head attention.

    Args:
        hidden_size: width of an output, divided among the heads.
        num_heads: None for as many as leave each head at least `HEAD_SIZE` features.
        num_kv_heads: heads of keys and values, a divisor of the number of heads; None for the same number.
        head_size: features of a head; None for its share of the width.
        causal: whether the future is hidden.
        window: the number of inputs that are seen, including the present one; None for all.
        position: `none`, `rotary` or `alibi` (`seriatim.layer` also takes `sinusoidal` and `learned`).
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        bias: whether the maps have biases.
        qkv_bias: whether W^Q, W^K and W^V have biases; None for the same as `bias`.
        qk_norm: normalize the queries and keys of each head.
        norm_epsilon: is added to the mean square of what is normalized.
        rotary_base: the base of the angles of rotary positions.
        rotary_size: the first features of a head, which rotary positions rotate; None for all.
        sinks: whether each head has a learned logit that joins its softmax without a value.
        forget_gate: whether a gate of each head, computed from the input, forgets the inputs before it.
        output_gate: whether gates, computed from the input, multiply the outputs of the heads.
    """

    keeps = "keys and values of all inputs, or of a window"
    state_type = AttentionCache
    paper = "Vaswani et al. 2017"
    learning_rates: ClassVar = {"mlm": 3e-3, "seq2seq": 3e-3}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        num_kv_heads: Size | None = None,
        head_size: Size | None = None,
        causal: bool = True,
        window: Size | None = None,
        position: Position = "rotary",
        score: Score = "scaled-dot",
        bias: bool = False,
        qkv_bias: bool | None = None,
        qk_norm: bool = False,
        norm_epsilon: Epsilon = EPSILON,
        rotary_base: RotaryBase = BASE,
        rotary_size: Size | None = None,
        sinks: bool = False,
        forget_gate: bool = False,
        output_gate: bool = False,
    ) -> None:
        # heads need not divide the width where both their number and their size are given
        count = num_heads if num_heads and head_size else heads(hidden_size, num_heads)
        size = head_size or hidden_size // count
        check_sizes(head_size=size)
        super().__init__(
            causal=causal,
            window=window,
            position=position,
            num_heads=count,
            head_size=size,
            rotary_base=rotary_base,
            rotary_size=rotary_size,
            sinks=sinks,
            forget_gate=forget_gate,
        )
        self.input_size, self.output_size, self.num_heads = input_size, hidden_size, count
        self.num_kv_heads = count if num_kv_heads is None else num_kv_heads
        check_divides("num_kv_heads", self.num_kv_heads, "num_heads", count)
        gate_heads = -(-count // size) if forget_gate else 0  # of the cache, which hold log f of all heads
        self.cache_heads, self.cache_size = 2 * self.num_kv_heads + gate_heads, size

        # one matrix for queries, keys and values, because one large product is faster than three
        self.qkv_proj = nn.Linear(
            input_size, (count + 2 * self.num_kv_heads) * size, bias=bias if qkv_bias is None else qkv_bias
        )
        self.forget_proj = nn.Linear(input_size, count) if forget_gate else None
        if self.forget_proj is not None:
            nn.init.zeros_(self.forget_proj.bias)
        self.gate_proj = nn.Linear(input_size, count * size, bias=bias) if output_gate else None
        self.o_proj = nn.Linear(count * size, hidden_size, bias=bias)
        self.norm_epsilon = norm_epsilon
        self.q_norm, self.k_norm = (nn.Parameter(torch.ones(size)) if qk_norm else None for _ in range(2))
        self.score = scoring(score, size, size, num_heads=count)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys and values; queries and keys are rotated by their position."""
        qkv = self.qkv_proj(inputs).unflatten(2, (-1, self.cache_size)).transpose(1, 2)  # (B, H + 2 kv heads, T, D)
        if self.q_norm is not None and self.k_norm is not None:
            qkv = self.normalized(qkv, self.q_norm, self.k_norm)
        if self.rotary is not None:
            qkv = self.rotary(qkv, positions(count, inputs.shape[1]), self.num_heads + self.num_kv_heads)
        queries, keys, values = self.parts(qkv)
        entries = qkv[:, self.num_heads :]
        if self.forget_proj is not None:
            logs = F.logsigmoid(self.forget_proj(inputs))  # (B, T, H)
            free = (self.cache_heads - 2 * self.num_kv_heads) * self.cache_size - self.num_heads
            zeros = torch.zeros_like(logs[..., :1]).expand(-1, -1, free)
            logs = torch.unflatten(torch.cat([logs, zeros], dim=2), 2, (-1, self.cache_size))  # (B, T, gate heads, D)
            entries = torch.cat([entries, logs.transpose(1, 2)], dim=1)
        return queries, keys, values, entries

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return the queries, keys and values among heads ``(B, H + 2 · kv heads, T, D)``."""
        return torch.split(qkv, [self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)

    def normalized(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Normalize the queries and keys among heads ``(B, H + 2 · kv heads, T, D)``."""
        queries, keys, values = self.parts(qkv)
        both = ((queries, q_norm), (keys, k_norm))
        scaled = [x * torch.rsqrt(x.square().mean(3, keepdim=True) + self.norm_epsilon) * gain for x, gain in both]
        return torch.cat([*scaled, values], dim=1)

    def log_forget_gates(self, entries: Tensor) -> Tensor | None:
        """Return log f ``(B, H, S)`` of entries; see `AttentionBase.log_forget_gates`."""
        if self.forget_proj is None:
            return None
        logs = entries[:, 2 * self.num_kv_heads :].transpose(2, 3)  # (B, gate heads, D, S)
        return logs.flatten(1, 2)[:, : self.num_heads]

    def keys_values(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads of keys and of values, before those of forget gates."""
        return entries[:, : self.num_kv_heads], entries[:, self.num_kv_heads : 2 * self.num_kv_heads]

    def merge(self, attended: Tensor, inputs: Tensor) -> Tensor:
        """Concatenate the heads, gate them, and apply W^O."""
        joined = attended.transpose(1, 2).flatten(2)
        if self.gate_proj is not None:
            joined = joined * torch.sigmoid(self.gate_proj(inputs))
        return cast(Tensor, self.o_proj(joined))


def heads(hidden_size: int, num_heads: int | None, *, least: int = HEAD_SIZE) -> int:
    """Return the number of heads that share a width, by default the largest that leaves each ``least`` features."""
    if num_heads is None:
        return max(n for n in _divisors(hidden_size) if n == 1 or hidden_size // n >= least)
    check_divides("num_heads", num_heads, "the width", hidden_size)
    return num_heads


def check_divides(option: str, value: int, dividend: str, number: int) -> None:
    """Raise InputError where an option does not divide a number."""
    if value < 1 or number % value:
        raise RangeError(
            f"model.options.{option}: {dividend}, {number}, cannot be divided by {value}; choose {_divisors(number)}"
        )


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})
