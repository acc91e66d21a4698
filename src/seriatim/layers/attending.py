"""Attention of a sequence to itself, written once for every kind of query, key and value.

Position t sees itself and what came before it; the last `window` inputs where there is a window; everything where the
attention is not causal. Queries are taken in blocks, so that no mask grows with the square of the length, and with a
window neither does the work. Dot products never hold the scores of a sequence at once; the scores of the other
functions are held a block at a time, and all of them while gradients are recorded.
"""

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import zero_padding
from ..core.state import State
from .cache import KeptInputs, append, newest, newest_of_each
from .path_lengths import direct_paths
from .scoring import Dot, attend

BLOCK = 256
"""Queries that share a mask; a mask over a whole sequence would grow with its square."""


class Attending(SequenceLayer):
    """Attention of a sequence to itself, whatever the queries, keys and values are made of.

    A subclass writes `project` and `merge` and sets ``kept_heads`` and ``kept_size``, the shape of what is kept of an
    input. The state is `KeptInputs`: it grows with time, up to ``window − 1``.
    """

    parallel = True
    kept_heads: int
    kept_size: int
    score: nn.Module
    slopes: Tensor | None

    def __init__(self, *, causal: bool, window: int | None, slopes: Tensor | None = None) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise InputError(f"window must be at least 1, the input itself; got {window}")
        self.causal, self.window = causal, window
        self.register_buffer("slopes", slopes, persistent=False)

    def project(self, inputs: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of inputs ``(B, T, input_size)`` after ``count (B,)`` others.

        Returns:
            Queries ``(B, H, T, D)``, keys and values ``(B, heads, T, D)``, and what is kept of these.
        """
        raise NotImplementedError

    def keys_values(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, both ``(B, heads, S, D)``, of what is kept ``(B, kept_heads, S, kept_size)``."""
        raise NotImplementedError

    def merge(self, attended: Tensor) -> Tensor:
        """What the heads found ``(B, H, T, D)`` to outputs ``(B, T, output_size)``."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> State:
        """Nothing kept, nothing counted."""
        return KeptInputs(self.zeros(batch_size, self.kept_heads, 0, self.kept_size), self.zeros(batch_size).long())

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attends over ``(batch, time, input_size)`` and what is kept; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        past, count = state
        assert isinstance(past, Tensor)
        assert isinstance(count, Tensor)
        if inputs.shape[1] == 0:
            return inputs.new_zeros(inputs.shape[0], 0, self.output_size), state
        if lengths is not None:
            lengths = lengths.to(inputs.device)
        queries, keys, values, new = self.project(inputs, count)
        kept = append(past, new)
        if past.shape[2]:
            keys, values = self.keys_values(kept)
        attended = self.look(queries, keys, values, count, lengths)
        end = self.keep(kept, past.shape[2], count, lengths)
        return zero_padding(self.merge(attended), lengths), end

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One input.

        Raises:
            ValueError: it is not causal.
        """
        if not self.causal:
            raise ValueError(
                "attention that is not causal needs the whole sequence and cannot step; set causal to true"
            )
        return super().step(inputs, state)

    def path_lengths(self, distance: int) -> Tensor:
        """Every input of the window is seen directly."""
        return direct_paths(distance, None if self.window is None else self.window - 1)

    def keep(self, kept: Tensor, past: int, count: Tensor, lengths: Tensor | None) -> KeptInputs:
        """The state after inputs that made ``past`` entries grow to ``kept``."""
        most = kept.shape[2] if self.window is None else self.window - 1
        if lengths is None:
            return KeptInputs(newest(kept, most), count + kept.shape[2] - past)
        valid = count.clamp(max=past) + lengths
        return KeptInputs(newest_of_each(kept, valid, past + lengths, most), count + lengths)

    def look(self, queries: Tensor, keys: Tensor, values: Tensor, count: Tensor, lengths: Tensor | None) -> Tensor:
        """What each query ``(B, H, T, D)`` finds in its past and present: ``(B, H, T, D)``."""
        time, total = queries.shape[2], keys.shape[2]
        past = total - time
        whole = past == 0 or bool((count >= past).all())
        narrow = self.window is not None and self.window < total
        if whole and not narrow and self.slopes is None and isinstance(self.score, Dot):
            if self.causal and (past == 0 or time == 1):
                return attend(self.score, queries, keys, values, causal=time > 1)
            if not self.causal and lengths is None:
                return attend(self.score, queries, keys, values)
        found, keys_values = [], _Blocks(keys, values, apart=time > BLOCK and torch.is_grad_enabled())
        for start, block in zip(range(0, time, BLOCK), torch.split(queries, BLOCK, dim=2), strict=True):
            end = start + block.shape[2]
            low = max(0, past + start - self.window + 1) if self.window is not None else 0
            high = past + end if self.causal else total
            mask = self.mask(
                torch.arange(past + start, past + end, device=keys.device),
                torch.arange(low, high, device=keys.device),
                None if whole else past - count,
                None if self.causal or lengths is None else past + lengths,
            )
            if self.slopes is not None:
                mask = self.lower(mask, past + start, low)
            seen = keys_values.between(low, high)
            found.append(attend(self.score, block, *seen, mask=mask.to(_mask_type(mask, queries))))
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)

    def mask(self, query: Tensor, key: Tensor, first: Tensor | None, end: Tensor | None) -> Tensor:
        """Where queries at places ``(T,)`` may look among keys at places ``(S,)``: ``(B or 1, 1, T, S)``.

        ``first`` and ``end`` ``(B,)`` bound the places of each row that hold something. Every query sees itself, so
        that padding, whose outputs are thrown away, computes no NaN.
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

    def lower(self, mask: Tensor, query: int, key: int) -> Tensor:
        """ALiBi's scores to add, −∞ where ``mask`` forbids to look; ``query`` and ``key`` are the first places."""
        assert self.slopes is not None
        rows, columns = mask.shape[2:]
        place = torch.arange(max(query + rows, key + columns), device=mask.device)
        distance = place[query : query + rows].unsqueeze(1) - place[key : key + columns]
        bias = -self.slopes.view(1, -1, 1, 1) * distance.abs().to(self.slopes)
        return bias.masked_fill(~mask, -torch.inf)


class _Blocks:
    """Keys and values ``(B, heads, S, D)``, of which blocks of queries see parts that overlap.

    Args:
        keys: all of them.
        values: all of them.
        apart: cut them once, and join what a block of queries sees; the gradient of a part of the whole would be as
            large as the whole, for every block.
    """

    def __init__(self, keys: Tensor, values: Tensor, *, apart: bool) -> None:
        self.size = BLOCK if apart else keys.shape[2]
        self.blocks = torch.split(keys, self.size, dim=2), torch.split(values, self.size, dim=2)

    def between(self, low: int, high: int) -> list[Tensor]:
        """Keys and values of the places from ``low`` to ``high``."""
        first, last = low // self.size, (high - 1) // self.size + 1
        joined = [torch.cat(blocks[first:last], dim=2) if last - first > 1 else blocks[first] for blocks in self.blocks]
        return [part[:, :, low - first * self.size : high - first * self.size] for part in joined]


def _mask_type(mask: Tensor, like: Tensor) -> torch.dtype:
    return torch.bool if mask.dtype == torch.bool else like.dtype
