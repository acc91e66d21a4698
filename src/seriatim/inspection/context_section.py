"""The section of a page on memory: what a model loses with a shorter context, and the size of its state."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InputError, NotSupportedError
from ..core.state import State, map_state, state_bytes, state_to_dict
from ..evaluation.context_use import ContextUse, Excess
from ..layers.positions import learned_positions
from ..pages.chart import Axis, Chart, Series, log_axis
from ..pages.page import Folded, PageBlock, Prose, Table
from ..pages.statements import Statement, told
from ..pages.theme import layer_style
from ..pages.wording import in_bytes
from ..tasks.explainer import StateReader
from .inspected_run import InspectedRun, SectionBody
from .recording import DECODER, primitive_layers

TOLERANCE = 0.02
"""Bits a token by which a loss may differ from that of the full context and still count as equal to it."""
MIN_EXCESS = 0.005
"""Bits a token by which it must differ, at least, for the difference to be stated."""
MIN_TOKENS = 32
"""Tokens that a text needs before the loss with short contexts is drawn."""
TOKENS = (1, 10, 100, 1_000, 10_000)
SOURCES = (1, 10, 100, 1_000)
"""Lengths of sources after which the state of a decoder is measured."""
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


class MeasuredContexts(NamedTuple):
    """Where the loss with short contexts was measured."""

    source: str
    has_intervals: bool
    is_answer: bool
    infinite: Sequence[int]  # contexts with which some tokens have probability zero


CAPTION = (
    Statement[MeasuredContexts](
        lambda facts: facts.has_intervals,
        "On {source}, the same tokens for every k; strokes are 95 % intervals over stretches or lines.",
    ),
    Statement[MeasuredContexts](
        lambda facts: not facts.has_intervals and not facts.is_answer,
        "On {source}, the same tokens for every k; one text says little about others.",
    ),
    Statement[MeasuredContexts](
        lambda facts: facts.is_answer, "On {source}, as the model gives it; one answer says little about others."
    ),
    Statement[MeasuredContexts](
        lambda facts: len(facts.infinite) > 0, "Where no point is drawn, the loss is infinite."
    ),
)


def memory_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the cost of shorter contexts and the size of the state."""
    blocks: list[PageBlock] = []
    missing = []
    for draw in (_context_blocks, _state_blocks):  # a model without a state still has losses, and the other way round
        try:
            blocks += draw(inspected)
        except InputError as error:
            missing.append(str(error))
    if not blocks:
        raise NotSupportedError("; ".join(missing) or "neither losses nor a state to measure")
    return SectionBody(blocks)


def _context_blocks(inspected: InspectedRun) -> list[PageBlock]:
    """Return what shorter contexts cost on held-out data, or on the text if there are none."""
    found, explainer = inspected.context_excess, inspected.explainer
    if found is not None and found.by_size:
        facts = MeasuredContexts(f"{found.measured} of the held-out data ({inspected.held_out_name})", True, False, ())
        return [context_chart(found.by_size, facts, layer=inspected.layer)]
    use = explainer.require(explainer.context_use)(inspected.item)
    is_answer = use.scores[None].accuracy is None
    if not is_answer and use.tokens < MIN_TOKENS:
        return []
    above = excess_of_text(use)
    infinite = [size for size, excess in above.items() if not math.isfinite(excess.bits)]
    source = explainer.wording.answer if is_answer else f"{use.scores[None].tokens:,} tokens of the text"
    chart = context_chart(above, MeasuredContexts(source, False, is_answer, infinite), layer=inspected.layer)
    return [chart] if chart else []


def excess_of_text(use: ContextUse) -> dict[int, Excess]:
    """Return by how many bits the loss of each length of context exceeds that of the full one; NaN if not finite."""
    full = use.scores[None].loss
    bits = {size: (score.loss - full) / math.log(2) for size, score in use.scores.items() if size is not None}
    known = {size: value if math.isfinite(value) else math.nan for size, value in bits.items()}
    return {size: Excess(value, math.nan, math.nan) for size, value in known.items()}


def context_chart(excess: Mapping[int, Excess], facts: MeasuredContexts, *, layer: str = "") -> Chart:
    """Return what is lost with only the last k tokens, with intervals, in the look of ``layer`` if one is named."""
    sizes = sorted(excess)
    intervals = [(excess[size].low, excess[size].high) for size in sizes] if facts.has_intervals else ()
    name = layer or "last k tokens"
    values = [excess[size].bits for size in sizes]
    unit = "bits lost" if facts.is_answer else "bits a token lost"
    return Chart(
        "What a shorter context costs",
        log_axis("k, last tokens seen", "{:,.0f}".format),
        Axis(unit),
        [Series(name, sizes, values, intervals=list(intervals), look=layer_style(name))],
        " ".join(told(CAPTION, facts)),
        [("full context", 0.0)],
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


def _state_blocks(inspected: InspectedRun) -> list[PageBlock]:
    """Return the size of the state: a line if it is constant, else a chart against the tokens read, or of a source."""
    model, reader = inspected.run.model, inspected.explainer.state_reader()
    positions = learned_positions(model)
    costs = named_leaves(state_costs(reader, positions=positions), model)
    sizes, of = list(costs[0].sizes), reader.text
    drawn = {size: sum(cost.sizes[size] for cost in costs) for size in sizes}
    if reader.after_source is not None:
        drawn, of = source_costs(reader, positions=positions), "the source, before the answer"
    table = Table(
        ["leaf", *(f"{size:,}" for size in sizes), "growth"],
        [[cost.name or "state", *(f"{cost.sizes[size]:,}" for size in sizes), cost.growth] for cost in costs],
        f"Bytes after so many tokens of {reader.text}.",
        set(range(1, len(sizes) + 1)),
    )
    leaves = Folded("Leaf by leaf", [table])
    if len(set(drawn.values())) == 1:
        return [Prose(f"The state takes {in_bytes(next(iter(drawn.values())))}, for any number of tokens."), leaves]
    return [state_chart(drawn, of, layer=inspected.layer), leaves]


def state_chart(sizes: Mapping[int, int], of: str, *, layer: str = "") -> Chart:
    """Return the bytes of a state against the tokens read."""
    name = layer or "state"
    series = [Series(name, list(sizes), list(sizes.values()), look=layer_style(name))]
    return Chart("Size of the state", log_axis(f"tokens of {of}"), log_axis("state", in_bytes), series)


@torch.inference_mode()
def source_costs(reader: StateReader, *, positions: int | None = None) -> dict[int, int]:
    """Return the bytes of a decoder's state before its answer, by the tokens of the source."""
    assert reader.after_source is not None
    return {size: state_bytes(reader.after_source(size)) for size in SOURCES if size <= (positions or size)}


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
