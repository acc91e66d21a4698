"""Multi-head latent attention, whose cache is a latent vector of each input instead of its keys and values.

DeepSeek-AI, "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model", arXiv:2405.04434,
2024; the same in DeepSeek-V3, arXiv:2412.19437.

    c_t     = norm(W_c x_t),  r_t = rotated(W_r x_t)      the entries of the cache, which all heads share
    k_t^h   = [r_t; W_k^h c_t],  v_t^h = W_v^h c_t        keys and values of head h
    q_t^h   = [rotated(W_p^h x_t); W_q^h x_t]
    head_h  = softmax(q^h · k^h / √d) v^h,  y = [head_1; …; head_H] W^O

x inputs · W_r, W_c, stacked ``kv_a_proj`` · norm ``kv_a_norm`` · W_k, W_v of all heads, stacked ``kv_b_proj`` · W_p and
W_q of all heads, stacked ``q_proj`` · W^O ``o_proj`` · d the width of a query. With ``query_latent_size``, queries are
computed from a normalized latent vector of their own; ``q_proj`` holds both maps and the norm.

Many queries at once read keys and values, which are computed from all entries. A single query reads the entries
themselves, as q · W_k c = (W_kᵀ q) · c and Σ α W_v c = W_v Σ α c: this is the attention of many heads of queries to one
head of keys, which are the values.

Differences from DeepSeek's code: the rotated features come first, and a feature i is rotated with i + r/2, where
DeepSeek's checkpoints rotate neighbours; both only number the rows of the matrices in another way. Keys without their
rotated features and values have one width. There is no longer context by YaRN.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.exporting import exporting
from ..core.key_value_cache import KeyValueCache
from ..core.state import OutputsAndState
from .attention import RotaryBase, heads
from .attention_base import AttentionBase
from .option_types import Size, check_sizes
from .pointwise import norm_named, per_head
from .positions import BASE, positions
from .scoring import Dot

NORM_EPSILON = 1e-6


class LatentCache(KeyValueCache):
    """The state of a `LatentAttention`: rotated keys and latent vectors ``(batch, 1, entries, rotary + latent)``."""


class LatentAttention(AttentionBase):
    """Multi-head attention to latent vectors.

    Args:
        num_heads: None for as many as leave each head at least 32 features.
        head_size: features of a value, and of a key without those that are rotated; None for the head's share of the
            width.
        latent_size: width of the latent vector; None for a quarter of the width.
        rotary_size: features of a key that are rotated; None for half of ``head_size``, but at least 2.
        query_latent_size: width of the latent vector of the queries; None for none.
        causal: whether the future is hidden.
        window: the number of inputs that are seen, including the present one; None for all.
        rotary_base: the base of the angles of rotary positions.
        bias: whether the maps to latent vectors and that of the outputs have biases.
    """

    keeps = "a latent vector and a rotated key of all inputs, or of a window"
    state_type = LatentCache
    paper = "DeepSeek-AI 2024"
    wrap = "block"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        head_size: Size | None = None,
        latent_size: Size | None = None,
        rotary_size: Size | None = None,
        query_latent_size: Size | None = None,
        causal: bool = True,
        window: Size | None = None,
        rotary_base: RotaryBase = BASE,
        bias: bool = False,
    ) -> None:
        count = num_heads if num_heads and head_size else heads(hidden_size, num_heads)
        size = hidden_size // count if head_size is None else head_size
        latent = max(1, hidden_size // 4) if latent_size is None else latent_size
        rotary = max(2, size // 2) if rotary_size is None else rotary_size
        check_sizes(num_heads=count, head_size=size, latent_size=latent, rotary_size=rotary)
        super().__init__(
            causal=causal,
            window=window,
            position="rotary",
            num_heads=count,
            head_size=rotary,
            rotary_base=rotary_base,
        )
        self.input_size, self.output_size, self.num_heads, self.head_size = input_size, hidden_size, count, size
        self.latent_size, self.rotary_size = latent, rotary
        self.cache_heads, self.cache_size = 1, rotary + latent
        self.score = Dot((rotary + size) ** -0.5)

        width = count * (rotary + size)
        if query_latent_size is None:
            self.q_proj: nn.Module = nn.Linear(input_size, width, bias=False)
        else:
            check_sizes(query_latent_size=query_latent_size)
            down = nn.Linear(input_size, query_latent_size, bias=bias)
            norm = norm_named("rms", query_latent_size, epsilon=NORM_EPSILON)
            self.q_proj = nn.Sequential(down, norm, nn.Linear(query_latent_size, width, bias=False))
        self.kv_a_proj = nn.Linear(input_size, self.cache_size, bias=bias)
        self.kv_a_norm = norm_named("rms", latent, epsilon=NORM_EPSILON)
        self.kv_b_proj = nn.Linear(latent, 2 * count * size, bias=False)
        self.o_proj = nn.Linear(count * size, hidden_size, bias=bias)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries ``(B, H, T, rotary + D)``, and the entries ``(B, 1, T, rotary + latent)`` three times."""
        queries = self.q_proj(inputs).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        shared, latent = torch.split(self.kv_a_proj(inputs), [self.rotary_size, self.latent_size], dim=2)
        entries = torch.cat([shared, self.kv_a_norm(latent)], dim=2).unsqueeze(1)
        if self.rotary is not None:
            position = positions(count, inputs.shape[1])
            queries, entries = self.rotary(queries, position, self.num_heads), self.rotary(entries, position, 1)
        return queries, entries, entries, entries

    def keys_values(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries twice; `attend` decides what is computed from them."""
        return entries, entries

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        count: Tensor,
        lengths: Tensor | None,
        forgotten: Tensor | None = None,
    ) -> Tensor:
        """Return what `merge` takes: values ``(B, H, T, D)``, or a mean of entries ``(B, H, 1, rotary + latent)``."""
        if self.reads_entries(queries.shape[2]):
            return super().attend(self.to_latent(queries), keys, values, count, lengths)
        shared, latent = torch.split(keys, [self.rotary_size, self.latent_size], dim=3)
        parts = self.kv_b_proj(latent.squeeze(1)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, H, S, 2D)
        plain, values = parts.chunk(2, dim=3)
        keys = torch.cat([shared.expand(-1, self.num_heads, -1, -1), plain], dim=3)
        values = F.pad(values, (0, self.rotary_size))  # PyTorch's kernel takes keys and values of one width only
        return super().attend(queries, keys, values, count, lengths)[..., : self.head_size]

    def traced_step(
        self, inputs: Tensor, queries: Tensor, new: Tensor, past: KeyValueCache, key_heads: int
    ) -> OutputsAndState:
        """Return what the compiler records for one step, whose query reads the entries."""
        return super().traced_step(inputs, self.to_latent(queries), new, past, key_heads)

    def merge(self, attended: Tensor, inputs: Tensor) -> Tensor:
        """Concatenate the heads and apply W^O, after W_v where a query has read the entries."""
        if self.reads_entries(attended.shape[2]):
            means = attended[:, :, 0, self.rotary_size :]  # (B, H, latent)
            attended = per_head(means, self.maps()[1].transpose(1, 2)).unsqueeze(2)
        return cast(Tensor, self.o_proj(attended.transpose(1, 2).flatten(2)))

    def reads_entries(self, time: int) -> bool:
        """Return whether so many queries read the entries themselves; an exported program has no number to ask for."""
        return not exporting() and time == 1

    def to_latent(self, queries: Tensor) -> Tensor:
        """Map queries ``(B, H, 1, rotary + D)`` to those of entries, ``(B, H, 1, rotary + latent)``."""
        rotated, plain = torch.split(queries.squeeze(2), [self.rotary_size, self.head_size], dim=2)
        return torch.cat([rotated, per_head(plain, self.maps()[0])], dim=2).unsqueeze(2)

    def maps(self) -> tuple[Tensor, ...]:
        """Return W_k and W_v of all heads, both ``(H, D, latent)``."""
        return torch.unflatten(self.kv_b_proj.weight, 0, (self.num_heads, -1)).chunk(2, dim=1)
