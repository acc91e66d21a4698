"""The section of a page on memory: what a model loses with a shorter context, and the size of its state."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ..core.errors import InputError, NotSupportedError
from ..core.state import state_bytes
from ..evaluation.context_use import ContextUse, Excess
from ..layers.positions import learned_positions
from ..pages.chart import Axis, Chart, Series, log_axis
from ..pages.page import PageBlock, Prose
from ..pages.statements import Statement, told
from ..pages.theme import layer_style
from ..pages.wording import in_bytes
from ..tasks.explainer import StateReader
from .inspected_run import InspectedRun, SectionBody

TOLERANCE = 0.02
"""Bits a token by which a loss may differ from that of the full context and still count as equal to it."""
MIN_EXCESS = 0.005
"""Bits a token by which it must differ, at least, for the difference to be stated."""
MIN_TOKENS = 32
"""Tokens that a text needs before the loss with short contexts is drawn."""
TOKENS = (1, 10, 100, 1_000)
"""Tokens after which the size of a state is measured."""


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


def _state_blocks(inspected: InspectedRun) -> list[PageBlock]:
    """Return the size of the state: a line if it is constant, else a chart against the tokens read, or of a source."""
    reader, positions = inspected.explainer.state_reader(), learned_positions(inspected.run.model)
    of = reader.text if reader.after_source is None else "the source, before the answer"
    sizes = state_sizes(reader, positions=positions)
    if len(set(sizes.values())) == 1:
        return [Prose(f"The state takes {in_bytes(next(iter(sizes.values())))}, for any number of tokens.")]
    return [state_chart(sizes, of, layer=inspected.layer)]


def state_chart(sizes: Mapping[int, int], of: str, *, layer: str = "") -> Chart:
    """Return the bytes of a state against the tokens read."""
    name = layer or "state"
    series = [Series(name, list(sizes), list(sizes.values()), look=layer_style(name))]
    return Chart("Size of the state", log_axis(f"tokens of {of}"), log_axis("state", in_bytes), series)


@torch.inference_mode()
def state_sizes(reader: StateReader, *, positions: int | None = None, sizes: Sequence[int] = TOKENS) -> dict[int, int]:
    """Return the bytes of a state for one text by the tokens read, in the precision of the model.

    That of a decoder is measured before its answer, by the tokens of the source. ``sizes`` are in ascending order;
    those above the number of learned ``positions`` are left out.
    """
    found, state, count = dict[int, int](), reader.initial, 0
    for size in [size for size in sizes if size <= (positions or size)]:
        if reader.after_source is not None:
            state = reader.after_source(size)
        else:
            state, count = reader.read(size - count, state), size
        found[size] = state_bytes(state)
    return found
