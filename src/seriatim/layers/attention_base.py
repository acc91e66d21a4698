"""Attention of a sequence to itself, for every kind of queries, keys and values.

Queries are processed in blocks, so that no mask grows with the square of the length, and with a window
the number of operations does not either. Dot products never hold the scores of a whole sequence at once. The scores of
the other functions, and those with sinks, are held for one block at a time, and all of them while gradients are
recorded.

A sink is a learned logit s of a head, which joins the softmax without a value: e^s is added to its denominator, so that
a head may attend to nothing (OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv:2508.10925, 2025). With a forget
gate f in (0, 1), the score of query i and key j also gets Σ_{l=j+1..i} log f_l (Z. Lin et al., "Forgetting transformer:
softmax attention with a forget gate", arXiv:2503.02130, 2025).
"""

from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..core.contract import SequenceLayer
from ..core.errors import ConflictError, RangeError, require_known
from ..core.exporting import exporting
from ..core.key_value_cache import KeyValueCache, append, newest, newest_of_each
from ..core.lengths import zero_padding
from ..core.state import OutputsAndState, State
from ..core.step_operators import NotTraceableError, tracing_step
from .option_types import check_sizes
from .path_lengths import direct_paths
from .positions import BASE, RELATIVE, Rotary, slopes
from .scan import Context
from .scoring import Dot, attend

BLOCK = 256
"""The number of queries that share a mask; a mask over a whole sequence would grow with its square."""


class AttentionBase(SequenceLayer):
    """A subclass writes `project`, `keys_values` and `merge`; the state is a `KeyValueCache` of its own type.

    It sets ``cache_heads`` and ``cache_size``, the shape of the entries of one input in the cache.
    """

    parallel = True
    cache_heads: int
    cache_size: int
    state_type: ClassVar[type[KeyValueCache]]
    score: nn.Module
    sinks: nn.Parameter | None
    slopes: Tensor | None

    def __init__(
        self,
        *,
        causal: bool,
        window: int | None,
        position: str,
        num_heads: int,
        head_size: int,
        rotary_base: float = BASE,
        rotary_size: int | None = None,
        sinks: bool = False,
        forget_gate: bool = False,
    ) -> None:
        super().__init__()
        rotary_size = head_size if rotary_size is None else rotary_size
        check_sizes(window=1 if window is None else window, rotary_size=rotary_size)
        require_known("position", position, RELATIVE)
        if rotary_size > head_size:
            raise RangeError(
                f"model.options.rotary_size: a head has {head_size} features, fewer than {rotary_size}; give at most "
                f"{head_size}"
            )
        if forget_gate and not causal:
            raise ConflictError(
                "model.options.forget_gate: attention to both sides has no gate between the two; set "
                "model.bidirectional to true, with which one layer reads from each side"
            )
        self.causal, self.window, self.forgets = causal, window, forget_gate
        self.rotary = Rotary(rotary_size // 2, rotary_base) if position == "rotary" and rotary_size > 1 else None
        self.register_buffer("slopes", slopes(num_heads) if position == "alibi" else None, persistent=False)
        self.register_parameter("sinks", nn.Parameter(torch.zeros(num_heads)) if sinks else None)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map inputs ``(B, T, input_size)`` that follow ``count (B,)`` others to heads ``(B, heads, T, D)``.

        They are those of queries, of keys, of values, and of entries for the cache.
        """
        raise NotImplementedError

    def keys_values(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, both ``(B, heads, S, D)``, of entries ``(B, cache_heads, S, cache_size)``."""
        raise NotImplementedError

    def log_forget_gates(self, entries: Tensor) -> Tensor | None:
        """Return log f ``(B, H, S)`` of entries ``(B, cache_heads, S, cache_size)``; None without a forget gate."""
        return None

    def merge(self, attended: Tensor, inputs: Tensor) -> Tensor:
        """Map the outputs of the heads ``(B, H, T, D)`` to outputs, given inputs ``(B, T, input_size)``."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> State:
        """Return an empty cache."""
        empty = self.zeros(batch_size, self.cache_heads, 0, self.cache_size)
        return self.state_type(empty, self.zeros(batch_size).long())

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Attend over ``(batch, time, input_size)`` and the cache; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        past = cast(KeyValueCache, state)
        if inputs.shape[1] == 0:
            return inputs.new_zeros(inputs.shape[0], 0, self.output_size), state
        if lengths is not None:
            lengths = lengths.to(inputs.device)
        queries, keys, values, new = self.project(inputs, past.seen)
        if tracing_step():
            return self.traced_step(inputs, queries, new, past, keys.shape[1])
        cache = append(past, new, past.seen + (inputs.shape[1] if lengths is None else lengths))
        if past.kept.shape[2]:
            keys, values = self.keys_values(cache.kept)
        logs = self.log_forget_gates(cache.kept)
        attended = self.attend(queries, keys, values, past.seen, lengths, None if logs is None else running_sums(logs))
        return zero_padding(self.merge(attended, inputs), lengths), self.next_state(past, cache, lengths)

    def traced_step(
        self, inputs: Tensor, queries: Tensor, new: Tensor, past: KeyValueCache, key_heads: int
    ) -> OutputsAndState:
        """Return what the compiler records for one step; see `seriatim.core.step_operators`."""
        if not self.causal or not isinstance(self.score, Dot):
            raise NotTraceableError("attention is compiled if it is causal and its scores are dot products")
        vectors = [vector for vector in (self.slopes, self.sinks) if vector is not None]
        biases = torch.cat(vectors) if len(vectors) > 1 else next(iter(vectors), None)
        arguments = (queries.squeeze(2), new.squeeze(2), past.kept, past.seen, biases, self.sinks is not None)
        settings = (self.forgets, self.score.scale, self.window or 0, key_heads)
        attended = torch.ops.seriatim.append_and_attend(*arguments, *settings)
        return self.merge(attended.unsqueeze(2), inputs), self.state_type(past.kept, past.seen + 1)

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: every input of the window is seen directly."""
        return direct_paths(distance, None if self.window is None else self.window - 1)

    def next_state(self, past: KeyValueCache, cache: KeyValueCache, lengths: Tensor | None) -> KeyValueCache:
        """Return the newest entries of ``cache``, which are those of ``past`` and then those of the new inputs."""
        if exporting():  # sizes are not known; fewer entries than the window has are all kept
            last = slice(0) if self.window == 1 else slice(None if self.window is None else 1 - self.window, None)
            return self.state_type(cache.kept[:, :, last], cache.seen)
        limit = cache.kept.shape[2] if self.window is None else self.window - 1
        if lengths is None:
            return newest(cache, limit)
        before = past.kept.shape[2]
        valid = past.seen.clamp(max=before) + lengths
        return self.state_type(newest_of_each(cache.kept, valid, before + lengths, limit), cache.seen)

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        count: Tensor,
        lengths: Tensor | None,
        forgotten: Tensor | None = None,
    ) -> Tensor:
        """Return the attention of queries ``(B, H, T, D)`` to past and present: ``(B, H, T, D)``.

        ``forgotten`` ``(B, H, S)`` are the running sums of log f over all keys; see `running_sums`.
        """
        time, total = queries.shape[2], keys.shape[2]  # T queries, S = past + T keys
        past = total - time
        has_bias = self.slopes is not None or forgotten is not None
        if exporting():  # nothing depends on values or sizes
            query, key = torch.arange(total, device=keys.device)[past:], torch.arange(total, device=keys.device)
            last = None if self.causal or lengths is None else past + lengths
            mask = self.mask(query, key, past - count, last, forgotten, queries.dtype)
            return attend(self.score, queries, keys, values, mask=mask, sinks=self.sinks)

        # PyTorch's kernel needs no mask where every row has the same entries and the window hides none of them. Its
        # causal form compares the indices of queries and keys, and so it holds without a past only; a single query
        # sees everything.
        full = past == 0 or bool((count >= past).all())
        narrow = self.window is not None and self.window < total
        if full and not (narrow or has_bias) and self.sinks is None and isinstance(self.score, Dot):
            if self.causal and (past == 0 or time == 1):
                return attend(self.score, queries, keys, values, causal=time > 1)
            if not self.causal and lengths is None:
                return attend(self.score, queries, keys, values)

        # Otherwise queries are taken in blocks, each with a mask of its own over the keys between `low` and `high`, all
        # that it can see. Keys and values are split once, because the gradient of a slice is as large as the whole.
        size = BLOCK if time > BLOCK and torch.is_grad_enabled() else total
        split_entries, outputs = [torch.split(entries, size, dim=2) for entries in (keys, values)], []
        for start, block in zip(range(0, time, BLOCK), torch.split(queries, BLOCK, dim=2), strict=True):
            end = start + block.shape[2]
            low = max(0, past + start - self.window + 1) if self.window is not None else 0
            high = past + end if self.causal else total
            query = torch.arange(past + start, past + end, device=keys.device)
            key = torch.arange(low, high, device=keys.device)
            last = None if self.causal or lengths is None else past + lengths
            mask = self.mask(query, key, None if full else past - count, last, forgotten, queries.dtype)
            seen = (_between(blocks, size, low, high) for blocks in split_entries)
            outputs.append(attend(self.score, block, *seen, mask=mask, sinks=self.sinks))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        first: Tensor | None,
        end: Tensor | None,
        forgotten: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return where queries at positions ``(T,)`` may look among keys at positions ``(S,)``: ``(B or 1, 1, T, S)``.

        ``first`` and ``end`` ``(B,)`` bound the inputs of each row. Padding sees itself, so that it computes no NaN.
        With ALiBi or a forget gate, return their bias instead, ``(B or 1, H, T, S)`` of a type, which is −∞ where a
        query may not look.
        """
        distance = query.unsqueeze(1) - key
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.window is not None:
            seen = seen & (distance.abs() < self.window)
        seen = seen.view(1, 1, *seen.shape)
        if first is not None:
            seen = seen & (key >= first.view(-1, 1, 1, 1))
        if end is not None:
            seen = seen & (key < end.view(-1, 1, 1, 1)) | (distance == 0)
        biases = []
        if self.slopes is not None:
            biases.append((-self.slopes.view(1, -1, 1, 1) * distance.abs().to(self.slopes)).to(dtype))
        if forgotten is not None:
            ends = forgotten[:, :, query].unsqueeze(3), forgotten[:, :, key].unsqueeze(2)
            if exporting():
                biases.append((ends[0] - ends[1]).to(dtype))
            else:
                biases.append(_Differences.apply(*ends, dtype))  # type: ignore[no-untyped-call]
        return sum(biases[1:], biases[0]).masked_fill(~seen, -torch.inf) if biases else seen


def running_sums(logs: Tensor) -> Tensor:
    """Return the sums of log f ``(B, H, S)`` up to each entry, in float64: only their differences are needed."""
    return logs.to(torch.float32 if logs.device.type == "mps" else torch.float64).cumsum(2)


class _Differences(torch.autograd.Function):
    """Sums of queries ``(B, H, T, 1)`` less those of keys ``(B, H, 1, S)``, rounded after they are subtracted."""

    @staticmethod
    def forward(ctx: Context, of_queries: Tensor, of_keys: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = of_queries.dtype
        differences = of_queries.new_empty(*of_queries.shape[:3], of_keys.shape[3], dtype=dtype)
        return torch.sub(of_queries, of_keys, out=differences)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        of_queries, of_keys = (gradient.sum(dim, keepdim=True, dtype=ctx.dtype) for dim in (3, 2))
        return of_queries, -of_keys, None


def _between(blocks: tuple[Tensor, ...], size: int, low: int, high: int) -> Tensor:
    """Return the positions from ``low`` to ``high`` of keys or values that are split into blocks of one size."""
    first, last = low // size, (high - 1) // size + 1
    joined = torch.cat(blocks[first:last], dim=2) if last - first > 1 else blocks[first]
    return joined[:, :, low - first * size : high - first * size]
