"""What is kept of the past costs: bytes of every part of a state, after few tokens and after many."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.state import State, map_state, state_to_dict
from ..layers.positions import learned_positions
from ..models.base_models import TextModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS = (1, 10, 100, 1_000, 10_000)
READ = 1_000
"""Tokens that are really read; what is kept of more follows from the contract of states."""
MEMORY = 20
"""Tokens of the source that a decoder attends to, or as many as there are positions for."""


class Cost(NamedTuple):
    """A part of a state.

    Attributes:
        name: its path in the state, as `seriatim.core.state.state_to_dict` names it.
        sizes: tokens read to bytes kept.
        growth: ``constant`` from the first token on, ``bounded`` (grows at first, then no more), or ``grows``.
    """

    name: str
    sizes: dict[int, int]
    growth: Literal["constant", "bounded", "grows"]


def state_costs(model: nn.Module, *, sizes: Sequence[int] = TOKENS) -> list[Cost]:
    """What each part of a model's state takes, for one text, as the model's own type holds it.

    Args:
        model: a model of a run, in evaluation mode: a language model, a classifier or tagger that reads in one
            direction, or an encoder-decoder, of which it is the decoder's state after sources of `memory_tokens`.
        sizes: numbers of tokens, rising; those beyond learned positions are left out.

    Raises:
        InputError: the model reads a text from both sides, and has no state that goes from token to token.
    """
    most = learned_positions(model) or max(sizes)
    begin, read = _reader(model)
    with torch.inference_mode():
        return _measured(begin, read, [size for size in sizes if size <= most], most)


def memory_tokens(model: nn.Module) -> int:
    """Tokens of the source after which a decoder's state is measured."""
    return min(MEMORY, learned_positions(model) or MEMORY)


def _reader(model: Any) -> tuple[State, Callable[[int, State], State]]:
    """The initial state, and what reads so many tokens more."""

    def ids(count: int) -> Tensor:
        return torch.zeros(1, count, dtype=torch.long, device=next(model.parameters()).device)

    if isinstance(model, TextModel):
        return model.initial_state(1), lambda count, state: model.token_losses(ids(count), ids(count), state)[1]
    if hasattr(model, "encode"):
        return model.encode(ids(memory_tokens(model))), lambda count, state: model.features(ids(count), state, None)[1]
    layer = getattr(model, "layer", None)
    if layer is None or not layer.causal:
        raise InputError("a model that reads from both sides keeps the whole text and has no state to measure")
    width: int = layer.input_size
    return layer.initial_state(1), lambda count, state: layer(layer.zeros(1, count, width), state)[1]


def _measured(begin: State, read: Callable[[int, State], State], sizes: Sequence[int], most: int) -> list[Cost]:
    state, at = begin, 0
    found: dict[int, dict[str, int]] = {}
    for size in [size for size in sizes if size <= READ]:
        state, at = read(size - at, state), size
        found[size] = _bytes(state)
    before, growing = state, set[str]()
    if at < most:
        state, at = read(1, state), at + 1
        growing = {name for name, size in _bytes(state).items() if size > _bytes(before)[name]}
    for size in [size for size in sizes if size > READ]:
        found[size] = _bytes(read(1, _as_after(before, state, size - at)))
    return [_cost(name, {size: found[size][name] for size in found}, name in growing) for name in state_to_dict(begin)]


def _cost(name: str, sizes: dict[int, int], grows: bool) -> Cost:
    bounded = len(set(sizes.values())) > 1
    return Cost(name, sizes, "grows" if grows else "bounded" if bounded else "constant")


def _bytes(state: State) -> dict[str, int]:
    return {name: leaf.numel() * leaf.element_size() for name, leaf in state_to_dict(state).items()}


def _as_after(before: State, after: State, tokens: int) -> State:
    """``after`` as wide as ``tokens`` − 1 tokens more make it, if one makes of ``before`` what ``after`` is.

    A row that has kept less than the longest of its batch is zero in front: so a state as long can be had without
    reading as much. What is bounded is cut again by the step that follows.
    """

    def widened(old: Tensor, new: Tensor) -> Tensor:
        more = [(b - a) * (tokens - 1) for a, b in zip(old.shape, new.shape, strict=True)]
        return F.pad(new, [n for size in reversed(more) for n in (size, 0)]) if any(more) else new

    return map_state(widened, before, after)


def state_figure(costs: Sequence[Cost]) -> "Figure":
    """Bytes of what grows in a state, and of what does not, against the tokens read.

    Args:
        costs: of `state_costs`.
    """
    from ..report.theme import new_figure, style

    figure, axes = new_figure()
    plot = axes[0, 0]
    parts = {
        "parts that grow": [cost for cost in costs if cost.growth != "constant"],
        "parts of constant size": [cost for cost in costs if cost.growth == "constant"],
    }
    for i, (name, own) in enumerate(parts.items()):
        if any(max(cost.sizes.values()) for cost in own):
            sizes = list(own[0].sizes)
            plot.plot(sizes, [sum(cost.sizes[size] for cost in own) for size in sizes], label=name, **style(i))
    plot.set(xscale="log", yscale="log", xlabel="tokens read", ylabel="bytes kept")
    if plot.lines:
        plot.legend()
    return figure
