"""Size of the state: bytes of each part after few tokens and after many."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from ..core.state import State, map_state, state_to_dict
from ..report.theme import new_figure, style
from ..training.task_view import StateReader

TOKENS = (1, 10, 100, 1_000, 10_000)
MAX_READ = 1_000
"""Tokens that are actually read; larger sizes follow from the contract of states."""


class Cost(NamedTuple):
    """A part of a state.

    Attributes:
        name: path of the part in the state, as in `seriatim.core.state.state_to_dict`.
        sizes: bytes kept, by the number of tokens read.
        growth: ``constant`` from the first token on, ``bounded`` (grows up to some size), or ``grows``.
    """

    name: str
    sizes: dict[int, int]
    growth: Literal["constant", "bounded", "grows"]


def state_costs(reader: StateReader, *, positions: int | None = None, sizes: Sequence[int] = TOKENS) -> list[Cost]:
    """Return the size of each part of a state for one text, in the precision of the model.

    Args:
        reader: as returned by `TaskView.state_reader`.
        positions: number of learned positions; None for no limit. Larger sizes are left out.
        sizes: numbers of tokens, in ascending order.
    """
    limit = positions or max(sizes)
    with torch.inference_mode():
        return _measure(reader.initial, reader.read, [size for size in sizes if size <= limit], limit)


def _measure(initial: State, read: Callable[[int, State], State], sizes: Sequence[int], limit: int) -> list[Cost]:
    state, count = initial, 0
    bytes_at: dict[int, dict[str, int]] = {}
    for size in [size for size in sizes if size <= MAX_READ]:
        state, count = read(size - count, state), size
        bytes_at[size] = _bytes(state)
    before, growing = state, set[str]()
    if count < limit:
        state, count = read(1, state), count + 1
        growing = {name for name, size in _bytes(state).items() if size > _bytes(before)[name]}
    for size in [size for size in sizes if size > MAX_READ]:
        bytes_at[size] = _bytes(read(1, _extrapolated(before, state, size - count)))
    names = state_to_dict(initial)
    return [_cost(name, {size: parts[name] for size, parts in bytes_at.items()}, name in growing) for name in names]


def _cost(name: str, sizes: dict[int, int], grows: bool) -> Cost:
    bounded = len(set(sizes.values())) > 1
    return Cost(name, sizes, "grows" if grows else "bounded" if bounded else "constant")


def _bytes(state: State) -> dict[str, int]:
    return {name: leaf.numel() * leaf.element_size() for name, leaf in state_to_dict(state).items()}


def _extrapolated(before: State, after: State, tokens: int) -> State:
    """Return ``after`` with the size that ``tokens`` − 1 more tokens would give it.

    It is padded with zeros at the front, which is how a row that is shorter than the longest of its batch looks. Parts
    of bounded size are cut again by the step that follows.

    Args:
        before: a state.
        after: the state after one more token.
        tokens: number of tokens to extrapolate, including the one between the two states.
    """

    def widened(old: Tensor, new: Tensor) -> Tensor:
        more = [(b - a) * (tokens - 1) for a, b in zip(old.shape, new.shape, strict=True)]
        return F.pad(new, [n for size in reversed(more) for n in (size, 0)]) if any(more) else new

    return map_state(widened, before, after)


def state_figure(costs: Sequence[Cost]) -> Figure:
    """Draw the bytes of the parts that grow, and of the parts of constant size, against the tokens read."""
    figure, axes = new_figure()
    plot = axes[0, 0]
    groups = {
        "parts that grow": [cost for cost in costs if cost.growth != "constant"],
        "parts of constant size": [cost for cost in costs if cost.growth == "constant"],
    }
    for i, (name, parts) in enumerate(groups.items()):
        if any(max(cost.sizes.values()) for cost in parts):
            sizes = list(parts[0].sizes)
            plot.plot(sizes, [sum(cost.sizes[size] for cost in parts) for size in sizes], label=name, **style(i))
    plot.set(xscale="log", yscale="log", xlabel="tokens read", ylabel="bytes kept")
    if plot.lines:
        plot.legend()
    return figure
