"""What a model gains from its context: the numbers of the first screen, and the section on context and state."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import NamedTuple

import torch

from ..core.errors import InputError
from ..core.state import State, state_bytes
from ..evaluation.context_use import ContextExcess, Excess
from ..evaluation.intervals import interval_digits, written
from ..layers.positions import learned_positions
from ..pages.chart import Axis, Chart, Series, log_axis
from ..pages.page import PageBlock, Prose, Tile
from ..pages.statements import Statement, told
from ..pages.theme import layer_style
from ..pages.wording import in_bytes
from .inspected_run import ALONE, InspectedRun, SectionBody

NEAR = 4
"""Tokens of context beyond which the gain is stated."""
TOLERANCE = 0.02
"""Bits a token by which a loss may differ from that of the full context and still count as equal to it."""
MIN_EXCESS = 0.005
"""Bits a token by which it must differ, at least, for the difference to be stated."""
TOKENS = (1, 10, 100, 1_000)
"""Tokens after which the size of a state is measured."""


class Reach(NamedTuple):
    """How far back a model uses its context, by the bits a token that short contexts are worse.

    ``helped`` is the longest context that is clearly worse than the full one, as are all shorter ones; ``left`` says by
    how much. ``enough`` is the shortest that is as good as the full one, as are all longer ones. None if none is.
    """

    helped: int | None
    enough: int | None
    left: str

    @property
    def unit(self) -> str:
        """Of the reach."""
        return "token" if (self.enough or self.helped) == 1 else "tokens"

    @classmethod
    def of(cls, by_size: Mapping[int, Excess]) -> "Reach":
        """Return the reach that held-out data show."""
        worse = takewhile(lambda size: by_size[size].low > MIN_EXCESS, sorted(by_size))
        equal = takewhile(
            lambda size: max(-by_size[size].low, by_size[size].high) <= TOLERANCE, sorted(by_size, reverse=True)
        )
        helped, enough = max(worse, default=None), min(equal, default=None)
        return cls(helped, enough, "" if helped is None else bits_and_interval(by_size[helped])[0])


def bits_and_interval(excess: Excess) -> tuple[str, str]:
    """Return bits a token and their interval, as they are written."""
    digits = interval_digits(excess.low, excess.high, 3)
    bits, low, high = (written(value, digits) for value in (excess.bits, excess.low, excess.high))
    return bits, f"{low} to {high}" if low != high else ""


REACH: tuple[Statement[Reach], ...] = (
    Statement(lambda reach: reach.enough is not None, "at most {enough} {unit}"),
    Statement(lambda reach: reach.enough is None and reach.helped is not None, "more than {helped} {unit}"),
    Statement(lambda reach: reach.enough is None and reach.helped is None, "not known"),
)
REACH_NOTES: tuple[Statement[Reach], ...] = (
    Statement(
        lambda reach: reach.enough is not None, f"what is further back gains less than {TOLERANCE:g} bits a token"
    ),
    Statement(lambda reach: reach.helped is not None, "with a context of {helped}, {left} bits a token are lost"),
    Statement(lambda reach: reach.helped is None and reach.enough is None, "the intervals are too wide to tell"),
)
"""How far back a model uses its context."""


def context_tiles(inspected: InspectedRun) -> list[Tile]:
    """Return the gain by context and its reach; none if they have no meaning, or the held-out data are too few."""
    found = inspected.context_excess
    if found is None or NEAR not in found.by_size:
        return []
    reach, (gain, ends) = Reach.of(found.by_size), bits_and_interval(found.by_size[NEAR])
    gained = f"gained by {ALONE}" if inspected.is_blended else "gained"
    note = f"{gained} from what is further back than {NEAR} tokens, on {inspected.held_out_name}"
    return [
        Tile("Context used", f"{gain} bits a token", ends, note),
        Tile("Reach", " ".join(told(REACH, reach)), note="; ".join(told(REACH_NOTES, reach))),
    ]


def memory_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the cost of shorter contexts and the size of the state."""
    found, blocks = inspected.context_excess, list[PageBlock]()
    if found is not None and found.by_size:
        blocks.append(context_chart(found, inspected.held_out_name, layer=inspected.layer))
    positions = learned_positions(inspected.run.model)
    try:
        sizes = state_sizes(inspected.explainer.state_after, positions=positions)
    except InputError:  # a model without a state still has losses
        if not blocks:
            raise
        return SectionBody(blocks)
    if len(set(sizes.values())) == 1:
        blocks.append(Prose(f"The state takes {in_bytes(sizes[TOKENS[0]])}, for any number of tokens."))
    else:
        of = "the source, before the answer" if inspected.explainer.searches else "a text"
        blocks.append(state_chart(sizes, of, layer=inspected.layer))
    return SectionBody(blocks)


def context_chart(found: ContextExcess, data: str, *, layer: str) -> Chart:
    """Return what is lost with only the last k tokens, with intervals, in the look of a ``layer``."""
    sizes = sorted(found.by_size)
    bits = [found.by_size[size].bits for size in sizes]
    intervals = [(found.by_size[size].low, found.by_size[size].high) for size in sizes]
    return Chart(
        "What a shorter context costs",
        log_axis("k, last tokens seen", "{:,.0f}".format),
        Axis("bits a token lost"),
        [Series(layer, sizes, bits, intervals=intervals, look=layer_style(layer))],
        f"On {found.measured} of the held-out data ({data}), the same tokens for every k; strokes are 95 % intervals "
        "over stretches or lines.",
        [("full context", 0.0)],
    )


def state_chart(sizes: Mapping[int, int], of: str, *, layer: str) -> Chart:
    """Return the bytes of a state against the tokens read."""
    series = [Series(layer, list(sizes), list(sizes.values()), look=layer_style(layer))]
    return Chart("Size of the state", log_axis(f"tokens of {of}"), log_axis("state", in_bytes), series)


@torch.inference_mode()
def state_sizes(state_after: Callable[[int], State], *, positions: int | None = None) -> dict[int, int]:
    """Return the bytes of a state for one text by the tokens read, in the precision of the model.

    That of a decoder is measured before its answer, by the tokens of the source. Sizes above the number of learned
    ``positions`` are left out.
    """
    return {size: state_bytes(state_after(size)) for size in TOKENS if size <= (positions or size)}
