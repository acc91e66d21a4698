"""The section of a page on memory: how much context a model uses, and the size of its state."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InputError, NotSupportedError
from ..core.state import State, map_state, state_to_dict
from ..evaluation.context_use import ContextExcess, ContextScore, ContextUse, Excess
from ..evaluation.intervals import interval_digits, written
from ..layers.positions import learned_positions
from ..pages.drawing import show
from ..pages.page import PageBlock, Plot, Plots, Prose, Table
from ..pages.palette import SOFT
from ..pages.theme import model_style, new_figure, style
from ..tasks.explainer import StateReader
from .inspected_run import InspectedRun, SectionBody
from .recording import DECODER, primitive_layers

TOLERANCE = 0.02
"""Bits a token by which a loss may differ from that of the full context and still count as equal to it."""
MIN_EXCESS = 0.005
"""Bits a token by which it must differ, at least, for the difference to be stated."""
MIN_TOKENS = 32
"""Tokens that a text needs before the loss with short contexts is drawn."""

Scores = Mapping[int | None, ContextScore]
TOKENS = (1, 10, 100, 1_000, 10_000)
MAX_READ = 1_000
"""Tokens that are actually read; larger sizes follow from the contract of states."""
Growth = Literal["constant", "bounded", "grows"]


class StateSize(NamedTuple):
    """A leaf of a state by its path (see `state_to_dict`) or its layer, and its bytes by the tokens read.

    ``growth`` is ``constant`` from the first token on, ``bounded`` (grows up to some size), or ``grows``.
    """

    name: str
    sizes: dict[int, int]
    growth: Growth


def memory_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the use of context and the size of the state."""
    explainer = inspected.explainer
    found = inspected.context_excess
    sentence = needed_sentence(found.by_size) if found else ""
    blocks: list[PageBlock] = []

    # What holds for data is said first; one text supports no statement on how much context the model uses.
    if found and sentence:
        about = f"Measured on {found.measured} of the held-out data ({inspected.held_out_name})"
        blocks.append(Prose(f"{sentence} {about}, with the same tokens for every k."))

    # The two halves are independent: a model without a state still has losses, and the other way round.
    missing = []
    try:
        if found and found.by_size:
            blocks += _excess_blocks(found, inspected.layer)
        else:
            result = explainer.require(explainer.context_use)(inspected.item)
            draw = _answer_blocks if result.scores[None].accuracy is None else _text_blocks
            blocks += draw(inspected, result)
    except InputError as error:
        missing.append(f"The loss with short contexts is not shown: {str(error).rstrip('.')}.")
    try:
        reader = explainer.state_reader()
        costs = state_costs(reader, positions=learned_positions(inspected.run.model))
        blocks += _cost_blocks(named_leaves(costs, inspected.run.model), reader)
    except InputError as error:
        missing.append(f"The size of the state is not shown: {str(error).rstrip('.')}.")
    if not blocks:
        raise NotSupportedError(" ".join(missing))
    return SectionBody(
        [*blocks, *map(Prose, missing)],
        [f"memory, on held-out data: {sentence[:1].lower()}{sentence[1:]}"] if sentence else [],
    )


def needed_sentence(excess: Mapping[int, Excess]) -> str:
    """Return what the intervals say of the loss with the last k tokens; empty if they say nothing.

    The sizes are tested in ascending order, until one is not clearly worse than the full context, so that many sizes do
    not make a chance finding more likely. That the full context is worse is tested for the largest size only.
    """
    sizes, sentences = sorted(excess), list[str]()
    equal = itertools.takewhile(lambda size: max(-excess[size].low, excess[size].high) <= TOLERANCE, sizes[::-1])
    enough = list(equal)
    above = itertools.takewhile(lambda size: excess[size].low > MIN_EXCESS, sizes)
    worse = [size for size in above if size not in enough]
    if worse:
        difference = _by(excess[worse[-1]])
        sentences.append(f"With only {_last(worse[-1])}, the loss is {difference} above that with the full context.")
    if enough:
        sentences.append(
            f"With {_last(enough[-1])} or more, the loss is within {TOLERANCE:g} bits a token of that with the full "
            "context, and so are the 95 % intervals."
        )
    elif sizes and excess[sizes[-1]].high < -MIN_EXCESS:
        sentences.append(
            f"With only {_last(sizes[-1])}, the loss is {_by(excess[sizes[-1]])} below that with the full context."
        )
    return " ".join(sentences)


def _last(size: int) -> str:
    return "the last token" if size == 1 else f"the last {size:,} tokens"


def _by(excess: Excess) -> str:
    """Return the size of an excess, whose sign is written in words, with its interval."""
    low, high = sorted((abs(excess.low), abs(excess.high)))
    digits = interval_digits(low, high, 3)
    bits, low_text, high_text = (written(value, digits) for value in (abs(excess.bits), low, high))
    return f"{bits} bits a token (95 % interval {low_text} to {high_text})"


def _excess_blocks(found: ContextExcess, layer: str) -> list[PageBlock]:
    """Return the losses of short contexts on held-out data."""
    sizes = [f"{size:,}" for size in sorted(found.by_size)]
    plot = Plot(
        excess_figure(found.by_size, layer),
        "Loss with only the last k tokens",
        f"By how much it exceeds the loss with the full context, on {found.measured} of the held-out data. "
        "Lines are 95 % intervals over stretches of neighbouring tokens, or lines of the text.",
        f"Loss above that with the full context for k = {', '.join(sizes)}.",
    )
    return [Plots([plot])]


def excess_figure(excess: Mapping[int, Excess], layer: str = "") -> Figure:
    """Draw by how many bits the loss of each length of context exceeds that of the full context, with intervals.

    The curve has the style of ``layer``, if one is named.
    """
    figure, [[plot]] = new_figure()
    sizes, look = sorted(excess), model_style(layer)
    show(plot.plot(sizes, [excess[size].bits for size in sizes], **look), "last k tokens")
    for size in sizes:
        ends = [excess[size].low, excess[size].high]
        show(plot.plot([size, size], ends, color=look["color"], linewidth=1.0), "last k tokens", is_interval=True)
    plot.axhline(0, color=SOFT, linestyle="--", linewidth=1.2)
    _context_axis(plot, sizes)
    plot.set_ylabel("loss above the full context (bits a token)")
    return figure


def _text_blocks(inspected: InspectedRun, result: ContextUse) -> list[PageBlock]:
    """Return the curve over the text itself, where there are no held-out data; it is too short to compare contexts."""
    scores, full = result.scores, result.scores[None]
    reason = _not_comparable(full)
    if reason or result.tokens < MIN_TOKENS:
        return [Prose(reason or f"The text has {result.tokens} tokens, too few to draw the loss with short contexts.")]
    largest = max(size for size in scores if size is not None)
    plot = Plot(
        loss_figure(scores, layer=inspected.layer),
        "Loss when only the last k tokens are seen",
        f"Mean over the same {full.tokens:,} tokens of the text for every k.{_infinite_sizes(scores)}",
        f"Loss in nats per token for k from 1 to {largest}; the full context gives {full.loss:.3f}.",
    )
    return [Plots([plot])]


def _answer_blocks(inspected: InspectedRun, result: ContextUse) -> list[PageBlock]:
    """Return the curve of one answer, which says nothing about others."""
    answer = inspected.explainer.wording.answer
    caption = f"−log P of the model's own answer ({answer}) when only the last k tokens of the text are seen."
    figure = loss_figure(result.scores, name="−log P (nats)", layer=inspected.layer)
    plot = Plot(figure, "The answer with only the last k tokens", caption, "−log P of the answer against k.")
    return [Plots([plot])]


def _not_comparable(full: ContextScore) -> str:
    """Return why losses cannot be compared if that of the full context is not finite; else an empty string."""
    if full.impossible:
        return (
            f"The model gives probability zero to {full.impossible:,} of {full.tokens:,} predicted tokens, so that its "
            "loss is infinite and the loss of shorter contexts cannot be compared with it."
        )
    if not math.isfinite(full.loss):
        return "The model's loss is not a number, so that contexts cannot be compared."
    return ""


def _infinite_sizes(scores: Scores) -> str:
    sizes = [str(size) for size, score in scores.items() if size is not None and not math.isfinite(score.loss)]
    return (
        f" The loss is infinite for k = {', '.join(sizes)}: some tokens have probability zero there." if sizes else ""
    )


def named_leaves(costs: Sequence[StateSize], model: nn.Module) -> list[StateSize]:
    """Return the leaves of a state with the names of their layers instead of their paths, where these are known.

    The numbers in the path of a layer, its positions in the containers around it, begin the path of its state.
    """
    known = primitive_layers(model)
    readers = [primitive for primitive in known if primitive.decodes] or known
    layers = {
        tuple(component for component in primitive.path.split(".") if component.isdigit()): primitive.name
        for primitive in readers
    }

    apart = any(cost.name.startswith(f"{DECODER}.") for cost in costs)  # other leaves belong to no layer

    def name(path: str) -> str:
        if apart and not path.startswith(f"{DECODER}."):
            return path
        components = tuple(filter(None, path.removeprefix(f"{DECODER}.").split(".")))
        for size in range(len(components), -1, -1):
            if components[:size] in layers:
                return f"{layers[components[:size]]}, {'.'.join(components[size:]) or 'state'}"
        return path

    return [cost._replace(name=name(cost.name)) for cost in costs]


def _cost_blocks(costs: Sequence[StateSize], reader: StateReader) -> list[PageBlock]:
    sizes = list(costs[0].sizes)
    rows = [[cost.name or "state", *(f"{cost.sizes[size]:,}" for size in sizes), cost.growth] for cost in costs]
    rows.append(["all", *(f"{sum(cost.sizes[size] for cost in costs):,}" for size in sizes), ""])
    caption = f"Size of the state in bytes after so many tokens of {reader.text}, for each part of it."
    table = Table(["part", *(f"{size:,}" for size in sizes), "growth"], rows, caption, set(range(1, len(sizes) + 1)))
    growing = ", ".join(cost.name for cost in costs if cost.growth != "constant")
    if not growing:
        unit = "answer" if reader.source else "text"
        longer = " A decoder with attention keeps more of a longer source." if reader.source else ""
        return [table, Prose(f"The state has one size, however long the {unit} is.{longer}")]
    bound = "" if any(cost.growth == "grows" for cost in costs) else ", up to a bound"
    caption = f"Parts that grow: {growing}{bound}."
    return [table, Plot(state_figure(costs), "Size of the state", caption, "Bytes kept against tokens read.")]


def loss_figure(scores: Scores, *, name: str = "loss (nats per token)", layer: str = "") -> Figure:
    """Draw the losses that `by_context` returns against the number of tokens seen, with a line for the full context.

    The curve has the style of ``layer``, if one is named.
    """
    figure, [[plot]] = new_figure()
    values = {size: score.loss if math.isfinite(score.loss) else math.nan for size, score in scores.items()}
    sizes = sorted(size for size in values if size is not None)
    plot.plot(sizes, [values[size] for size in sizes], label="last k tokens", **model_style(layer))
    if None in values and math.isfinite(values[None]):
        plot.axhline(values[None], label="full context", color=SOFT, linestyle="--", linewidth=1.2)
        plot.legend()
    _context_axis(plot, sizes)
    plot.set_ylabel(name)
    return figure


def _context_axis(plot: Axes, sizes: Sequence[int]) -> None:
    plot.set_xscale("log", base=2)
    plot.set_xticks(sizes, [f"{size:,}" for size in sizes])
    plot.set_xticks([], minor=True)
    plot.set_xlabel("k, last tokens seen")


@torch.inference_mode()
def state_costs(reader: StateReader, *, positions: int | None = None, sizes: Sequence[int] = TOKENS) -> list[StateSize]:
    """Return the size of each leaf of a state for one text, in the precision of the model.

    ``sizes`` are numbers of tokens, in ascending order; those above the number of learned ``positions`` are left out.
    """
    limit, state, count = positions or max(sizes), reader.initial, 0
    bytes_at: dict[int, dict[str, int]] = {}
    for size in [size for size in sizes if size <= min(limit, MAX_READ)]:
        state, count = reader.read(size - count, state), size
        bytes_at[size] = _bytes(state)

    # Longer texts are not read: by the contract of states, one more step shows which leaves grow, and by how much.
    before, growing = state, set[str]()
    if count < limit:
        state, count = reader.read(1, state), count + 1
        growing = {name for name, size in _bytes(state).items() if size > _bytes(before)[name]}
    for size in [size for size in sizes if MAX_READ < size <= limit]:
        bytes_at[size] = _bytes(reader.read(1, _extrapolated(before, state, size - count)))

    # A leaf whose size differs but which no longer grows has a bound, such as the window of an attention.
    costs = []
    for name in state_to_dict(reader.initial):
        sizes_of = {size: leaves[name] for size, leaves in bytes_at.items()}
        bounded: Growth = "bounded" if len(set(sizes_of.values())) > 1 else "constant"
        costs.append(StateSize(name, sizes_of, "grows" if name in growing else bounded))
    return costs


def _bytes(state: State) -> dict[str, int]:
    return {name: leaf.numel() * leaf.element_size() for name, leaf in state_to_dict(state).items()}


def _extrapolated(before: State, after: State, tokens: int) -> State:
    """Return the state ``tokens`` after ``before``, as to its size; ``after`` is the state after one token.

    It is padded with zeros at the front, which is how a row that is shorter than the longest of its batch looks. Leaves
    of bounded size are cut again by the step that follows.
    """

    def widened(old: Tensor, new: Tensor) -> Tensor:
        more = [(b - a) * (tokens - 1) for a, b in zip(old.shape, new.shape, strict=True)]
        return F.pad(new, [n for size in reversed(more) for n in (size, 0)]) if any(more) else new

    return map_state(widened, before, after)


def state_figure(costs: Sequence[StateSize]) -> Figure:
    """Draw the bytes of the leaves that grow, and of the leaves of constant size, against the tokens read."""
    figure, [[plot]] = new_figure()
    constant = [cost for cost in costs if cost.growth == "constant"]
    growing = [cost for cost in costs if cost.growth != "constant"]
    for i, (name, group) in enumerate((("parts that grow", growing), ("parts of constant size", constant))):
        if any(max(cost.sizes.values()) for cost in group):
            sizes = list(group[0].sizes)
            plot.plot(sizes, [sum(cost.sizes[size] for cost in group) for size in sizes], label=name, **style(i))
    plot.set(xscale="log", yscale="log", xlabel="tokens read", ylabel="bytes kept")
    if plot.lines:
        plot.legend()
    return figure
