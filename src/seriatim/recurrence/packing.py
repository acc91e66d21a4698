"""Joins the rows of many sequences step by step, without padding.

Sequences are sorted from the longest to the shortest, so that the active ones are first at every step. The joined rows
are those of the first step, then those of the second, and so on; states follow the initial ones in the same order.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..compiler.expressions import Node, with_offsets
from ..core.state import S, select_state


class Ragged(NamedTuple):
    """Indices for sequences that differ in length."""

    order: Tensor  # the sequences from the longest to the shortest
    indices: Tensor  # the index of each joined row in a batch (batch · time,)
    before: Tensor  # the index of the state before each joined row
    ends: Tensor  # the index of each sorted sequence's last state


class SequencePacking(NamedTuple):
    """How ``batch`` sequences of up to ``time`` steps are joined."""

    batch: int
    time: int
    counts: Tensor  # rows of each step
    starts: Tensor  # first row of each step
    rows: int  # rows of all steps together
    ragged: Ragged | None = None  # None if all sequences are full

    def to(self, device: torch.device) -> "SequencePacking":
        """Move the indices to another device; counts and starts stay on the CPU."""
        if self.ragged is None:
            return self
        return self._replace(ragged=Ragged(*(index.to(device) for index in self.ragged)))

    def join(self, inputs: Tensor) -> Tensor:
        """Join the rows of ``(batch, time, width)`` to ``(rows, width)``."""
        if self.ragged is None:
            return inputs.transpose(0, 1).reshape(self.rows, -1)
        return inputs.reshape(self.batch * self.time, -1).index_select(0, self.ragged.indices)

    def split(self, outputs: Tensor) -> Tensor:
        """Split ``(rows, width)`` to ``(batch, time, width)``, zero on padding."""
        if self.ragged is None:
            return outputs.view(self.time, self.batch, -1).transpose(0, 1)
        padded = outputs.new_zeros(self.batch * self.time, outputs.shape[1])
        return padded.index_copy_(0, self.ragged.indices, outputs).view(self.batch, self.time, -1)

    def sort(self, state: S) -> S:
        """Return a state with its rows in the order of the packing."""
        return state if self.ragged is None else select_state(state, self.ragged.order)

    def order(self) -> Tensor:
        """Return the row of the batch of each sequence, from the longest sequence to the shortest."""
        return torch.arange(self.batch) if self.ragged is None else self.ragged.order

    def unsort(self, state: S) -> S:
        """Return a state with its rows in the order of the batch."""
        return state if self.ragged is None else select_state(state, torch.argsort(self.ragged.order))

    def noise(self, leaves: Sequence[Node], like: Tensor) -> dict[Node, Tensor]:
        """Draw random numbers ``(rows, width)`` for each ``noise`` leaf."""
        uniform = [leaf for leaf in leaves if leaf.attribute.probability is None]
        others = [leaf for leaf in leaves if leaf.attribute.probability is not None]
        if uniform and like.device.type == "cpu":
            noise = self.uniform(uniform, like.dtype)
        else:
            noise = {leaf: leaf.attribute.draw(self.rows, leaf.width, like) for leaf in uniform}
        return noise | {leaf: leaf.attribute.draw(self.rows, leaf.width, like) for leaf in others}

    def uniform(self, leaves: Sequence[Node], dtype: torch.dtype) -> dict[Node, Tensor]:
        """Draw the uniform numbers ``(rows, width)`` that the plain loop draws step by step on a CPU."""
        total = sum(leaf.width for leaf in leaves)
        drawn = torch.rand(self.rows * total, dtype=dtype)
        step = torch.repeat_interleave(torch.arange(len(self.counts)), self.counts)
        row, start = torch.arange(self.rows) - self.starts[step], self.starts[step] * total
        noise = {}
        for passed, leaf in with_offsets(leaves):
            first = start + self.counts[step] * passed + row * leaf.width
            noise[leaf] = drawn[first.unsqueeze(1) + torch.arange(leaf.width)]
        return noise

    def before(self, states: Tensor) -> Tensor:
        """Return the state before each row, given the initial states and those after each row."""
        return states[: self.rows] if self.ragged is None else states[self.ragged.before]

    def ends(self, states: Tensor) -> Tensor:
        """Return the last state of each sequence, given the initial states and those after each row."""
        return states[-self.batch :].clone() if self.ragged is None else states[self.ragged.ends]


def pack(batch: int, time: int, lengths: Tensor | None) -> SequencePacking:
    """Plan how sequences ``(batch, time)`` are joined; ``lengths`` is None if all are full."""
    if lengths is None:
        return _full(batch, time)
    return _ragged(time, tuple(lengths.tolist()))


@functools.lru_cache(maxsize=8)
def _ragged(time: int, lengths: tuple[int, ...]) -> SequencePacking:
    """Return the packing of sequences that differ in length; both directions of a layer use the same one."""
    with torch.inference_mode(False):
        batch = len(lengths)
        ordered, order = torch.sort(torch.tensor(lengths), descending=True, stable=True)
        is_active = torch.arange(int(ordered[0])).unsqueeze(1) < ordered  # (steps, batch)
        counts = is_active.sum(1)
        starts = counts.cumsum(0) - counts
        step, row = is_active.nonzero(as_tuple=True)
        before = torch.where(step == 0, row, batch + starts[(step - 1).clamp_min(0)] + row)
        ends = torch.arange(batch)
        is_nonempty = ordered > 0
        ends[is_nonempty] += batch + starts[ordered[is_nonempty] - 1]
        return SequencePacking(
            batch, time, counts, starts, len(row), Ragged(order, order[row] * time + step, before, ends)
        )


@functools.lru_cache(maxsize=64)
def _full(batch: int, time: int) -> SequencePacking:
    """Return the packing of full sequences, which is the same for every batch of this shape."""
    with torch.inference_mode(False):
        return SequencePacking(batch, time, torch.full((time,), batch), torch.arange(time) * batch, batch * time)
