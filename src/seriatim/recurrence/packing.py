"""Rows of many sequences, joined step by step without padding.

Sequences are sorted from the longest to the shortest, so that those still going at a step are the first ones. Joined
rows are those of the first step, then those of the second, and so on. States lie behind the initial ones likewise.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..compiler.expressions import Node
from ..core.state import S, select_state


class Ragged(NamedTuple):
    """Where rows lie when sequences differ in length."""

    order: Tensor
    """Sequences from the longest to the shortest."""
    place: Tensor
    """Where each joined row lies in a batch ``(batch · time,)``."""
    before: Tensor
    """Where the state before each joined row lies."""
    ends: Tensor
    """Where each sorted sequence's last state lies."""


class Packing(NamedTuple):
    """How the sequences of one batch are joined."""

    batch: int
    time: int
    counts: Tensor
    """Rows of each step."""
    starts: Tensor
    """Each step's first row."""
    rows: int
    """Of all steps together."""
    ragged: Ragged | None = None
    """None where all sequences are full."""

    def to(self, device: torch.device) -> "Packing":
        """With what tensors are indexed by on another device; counts and starts stay with the host."""
        if self.ragged is None:
            return self
        return self._replace(ragged=Ragged(*(index.to(device) for index in self.ragged)))

    def join(self, inputs: Tensor) -> Tensor:
        """``(batch, time, width)`` to ``(rows, width)``."""
        if self.ragged is None:
            return inputs.transpose(0, 1).reshape(self.rows, -1)
        return inputs.reshape(self.batch * self.time, -1).index_select(0, self.ragged.place)

    def split(self, outputs: Tensor) -> Tensor:
        """``(rows, width)`` to ``(batch, time, width)``, zero on padding."""
        if self.ragged is None:
            return outputs.view(self.time, self.batch, -1).transpose(0, 1)
        padded = outputs.new_zeros(self.batch * self.time, outputs.shape[1])
        return padded.index_copy_(0, self.ragged.place, outputs).view(self.batch, self.time, -1)

    def sort(self, state: S) -> S:
        """A state with its rows in the order of the packing."""
        return state if self.ragged is None else select_state(state, self.ragged.order)

    def unsort(self, state: S) -> S:
        """A state with its rows in the order of the batch."""
        return state if self.ragged is None else select_state(state, torch.argsort(self.ragged.order))

    def noise(self, leaves: Sequence[Node], like: Tensor) -> dict[Node, Tensor]:
        """Random numbers ``(rows, width)`` for each leaf of that kind; uniform ones are those a loop would draw."""
        uniform = [leaf for leaf in leaves if leaf.note.probability is None]
        found = dict(zip(uniform, self.uniform([leaf.width for leaf in uniform], like), strict=True))
        for leaf in leaves:
            if leaf.note.probability is not None:
                found[leaf] = like.new_empty(self.rows, leaf.width).bernoulli_(leaf.note.probability)
        return found

    def uniform(self, widths: Sequence[int], like: Tensor) -> list[Tensor]:
        """Uniform random numbers ``(rows, width)`` for every width, drawn as a loop would, step after step.

        A GPU draws other numbers in one call than in many, so that there they are not those of a loop.
        """
        if not widths:
            return []
        if like.device.type != "cpu":
            return [like.new_empty(self.rows, width).uniform_() for width in widths]
        total = sum(widths)
        drawn = torch.rand(self.rows * total, dtype=like.dtype)
        step = torch.repeat_interleave(torch.arange(len(self.counts)), self.counts)
        row, start = torch.arange(self.rows) - self.starts[step], self.starts[step] * total
        found, passed = [], 0
        for width in widths:
            first = start + self.counts[step] * passed + row * width
            found.append(drawn[first.unsqueeze(1) + torch.arange(width)])
            passed += width
        return found

    def before(self, states: Tensor) -> Tensor:
        """Of all states (the initial ones and those after each row), those before each row."""
        return states[: self.rows] if self.ragged is None else states[self.ragged.before]

    def ends(self, states: Tensor) -> Tensor:
        """Of all states, each sequence's last."""
        return states[-self.batch :].clone() if self.ragged is None else states[self.ragged.ends]


def pack(batch: int, time: int, lengths: Tensor | None) -> Packing:
    """Plans how sequences ``(batch, time)`` are joined; ``lengths`` is None where all are full."""
    if lengths is None:
        return _full(batch, time)
    ordered, order = torch.sort(lengths, descending=True, stable=True)
    going = torch.arange(int(ordered[0])).unsqueeze(1) < ordered  # (steps, batch)
    counts = going.sum(1)
    starts = counts.cumsum(0) - counts
    step, row = going.nonzero(as_tuple=True)
    before = torch.where(step == 0, row, batch + starts[(step - 1).clamp_min(0)] + row)
    ends = torch.arange(batch)
    some = ordered > 0
    ends[some] += batch + starts[ordered[some] - 1]
    return Packing(batch, time, counts, starts, len(row), Ragged(order, order[row] * time + step, before, ends))


@functools.lru_cache(maxsize=64)
def _full(batch: int, time: int) -> Packing:
    """Every sequence full: the same for every batch of that shape."""
    with torch.inference_mode(False):
        return Packing(batch, time, torch.full((time,), batch), torch.arange(time) * batch, batch * time)
