"""Attention of a sequence to itself, for every kind of queries, keys and values.

Position t sees itself and earlier inputs; with a window, the last `window` inputs; and all inputs where the attention
is not causal. Queries are processed in blocks, so that no mask grows with the square of the length, and with a window
the number of operations does not either. Dot products never hold the scores of a whole sequence at once. The scores of
the other functions are held for one block at a time, and all of them while gradients are recorded.
"""

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import zero_padding
from ..core.state import State
from .key_value_cache import Entries, KeyValueCache, append, newest, newest_of_each
from .path_lengths import direct_paths
from .scoring import Dot, attend

BLOCK = 256
"""The number of queries that share a mask; a mask over a whole sequence would grow with its square."""


class AttentionBase(SequenceLayer):
    """Attention of a sequence to itself.

    A subclass writes `project`, `keys_values` and `merge` and sets ``cache_heads`` and ``cache_size``, the shape of the
    entries of one input in the cache. The state is a `KeyValueCache`; with a window it has at most ``window − 1``
    entries.
    """

    parallel = True
    cache_heads: int
    cache_size: int
    score: nn.Module
    slopes: Tensor | None

    def __init__(self, *, causal: bool, window: int | None, slopes: Tensor | None = None) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise InputError(f"window must be at least 1, the input itself; got {window}")
        self.causal, self.window = causal, window
        self.register_buffer("slopes", slopes, persistent=False)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map inputs ``(B, T, input_size)`` that follow ``count (B,)`` others.

        Returns:
            Queries ``(B, H, T, D)``, keys and values ``(B, heads, T, D)``, and the entries for the cache ``(B,
            cache_heads, T, cache_size)``.
        """
        raise NotImplementedError

    def keys_values(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, both ``(B, heads, S, D)``, of entries ``(B, cache_heads, S, cache_size)``."""
        raise NotImplementedError

    def merge(self, attended: Tensor) -> Tensor:
        """Map the outputs of the heads ``(B, H, T, D)`` to outputs ``(B, T, output_size)``."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> State:
        """Return an empty cache."""
        return KeyValueCache(
            self.zeros(batch_size, self.cache_heads, 0, self.cache_size), self.zeros(batch_size).long()
        )

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend over ``(batch, time, input_size)`` and the cache; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        past, count = state
        assert isinstance(past, Tensor)
        assert isinstance(count, Tensor)
        if inputs.shape[1] == 0:
            return inputs.new_zeros(inputs.shape[0], 0, self.output_size), state
        if lengths is not None:
            lengths = lengths.to(inputs.device)
        queries, keys, values, new = self.project(inputs, count)
        entries = Entries(past, state.buffer, state.end) if isinstance(state, KeyValueCache) else Entries(past)
        entries = append(entries, new)
        if past.shape[2]:
            keys, values = self.keys_values(entries.values)
        attended = self.look(queries, keys, values, count, lengths)
        end = self.next_state(entries, past.shape[2], count, lengths)
        return zero_padding(self.merge(attended), lengths), end

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Process one input of each row.

        Raises:
            ValueError: the attention is not causal.
        """
        if not self.causal:
            raise ValueError(
                "attention that is not causal needs the whole sequence and cannot step; set causal to true"
            )
        return super().step(inputs, state)

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: every input of the window is seen directly."""
        return direct_paths(distance, None if self.window is None else self.window - 1)

    def next_state(self, entries: Entries, past: int, count: Tensor, lengths: Tensor | None) -> KeyValueCache:
        """Return the state after inputs whose entries were appended to ``past`` earlier entries."""
        total = entries.values.shape[2]
        limit = total if self.window is None else self.window - 1
        if lengths is None:
            return KeyValueCache.of(newest(entries, limit), count + total - past)
        valid = count.clamp(max=past) + lengths
        return KeyValueCache(newest_of_each(entries.values, valid, past + lengths, limit), count + lengths)

    def look(self, queries: Tensor, keys: Tensor, values: Tensor, count: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the attention of queries ``(B, H, T, D)`` to past and present: ``(B, H, T, D)``."""
        time, total = queries.shape[2], keys.shape[2]
        past = total - time
        full = past == 0 or bool((count >= past).all())
        narrow = self.window is not None and self.window < total
        if full and not narrow and self.slopes is None and isinstance(self.score, Dot):
            if self.causal and (past == 0 or time == 1):
                return attend(self.score, queries, keys, values, causal=time > 1)
            if not self.causal and lengths is None:
                return attend(self.score, queries, keys, values)
        outputs, blocks = [], _Blocks(keys, values, apart=time > BLOCK and torch.is_grad_enabled())
        for start, block in zip(range(0, time, BLOCK), torch.split(queries, BLOCK, dim=2), strict=True):
            end = start + block.shape[2]
            low = max(0, past + start - self.window + 1) if self.window is not None else 0
            high = past + end if self.causal else total
            mask = self.mask(
                torch.arange(past + start, past + end, device=keys.device),
                torch.arange(low, high, device=keys.device),
                None if full else past - count,
                None if self.causal or lengths is None else past + lengths,
            )
            if self.slopes is not None:
                mask = self.with_slopes(mask, past + start, low).to(queries.dtype)
            outputs.append(attend(self.score, block, *blocks.between(low, high), mask=mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)

    def mask(self, query: Tensor, key: Tensor, first: Tensor | None, end: Tensor | None) -> Tensor:
        """Return where queries at positions ``(T,)`` may look among keys at positions ``(S,)``: ``(B or 1, 1, T, S)``.

        ``first`` and ``end`` ``(B,)`` bound the positions of each row that hold an input. Every query sees itself, so
        that padding, whose outputs are dropped, computes no NaN.
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
        return seen

    def with_slopes(self, mask: Tensor, query: int, key: int) -> Tensor:
        """Return ALiBi's bias, −∞ where ``mask`` is False; ``query`` and ``key`` are the first positions."""
        assert self.slopes is not None
        rows, columns = mask.shape[2:]
        position = torch.arange(max(query + rows, key + columns), device=mask.device)
        distance = position[query : query + rows].unsqueeze(1) - position[key : key + columns]
        bias = -self.slopes.view(1, -1, 1, 1) * distance.abs().to(self.slopes)
        return bias.masked_fill(~mask, -torch.inf)


class _Blocks:
    """Keys and values ``(B, heads, S, D)``, of which blocks of queries see overlapping parts.

    Args:
        keys: all keys.
        values: all values.
        apart: split them once and join the parts that a block of queries sees. Otherwise the gradient of a part would
            be as large as the whole, for every block.
    """

    def __init__(self, keys: Tensor, values: Tensor, *, apart: bool) -> None:
        self.size = BLOCK if apart else keys.shape[2]
        self.blocks = torch.split(keys, self.size, dim=2), torch.split(values, self.size, dim=2)

    def between(self, low: int, high: int) -> list[Tensor]:
        """Return keys and values at the positions from ``low`` to ``high``."""
        first, last = low // self.size, (high - 1) // self.size + 1
        joined = [torch.cat(blocks[first:last], dim=2) if last - first > 1 else blocks[first] for blocks in self.blocks]
        return [part[:, :, low - first * self.size : high - first * self.size] for part in joined]
