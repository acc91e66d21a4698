"""The first screen of a page on a run and a text: the strip with its lenses, the answer, and three numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core.errors import InputError
from ..evaluation.context_use import ContextExcess, Excess
from ..evaluation.intervals import interval_digits, written
from ..models.probabilities import NotFiniteError
from ..pages.opening import Banner, Tile, Tiles
from ..pages.page import PageBlock, Samples
from ..pages.statements import Statement, told
from ..pages.strip import Lens, Strip
from ..tasks.explainer import Refusal
from .context_section import MIN_EXCESS, TOLERANCE
from .influence import link_lenses
from .inspected_run import ALONE, InspectedRun
from .standing import BELOW, Standing, below_baseline, held_out_tiles
from .surprisal import Reading, read_text

NEAR = 4
"""Tokens of context beyond which the gain is stated."""
MAX_TILES = 3


class ContextFacts(NamedTuple):
    """What held-out data say of the use of context, in bits a token."""

    found: ContextExcess
    data: str
    of: str = ""

    @property
    def sizes(self) -> list[int]:
        """The lengths of context that were tried, in tokens."""
        return sorted(self.found.by_size)

    @property
    def near(self) -> Excess:
        """What the tokens further back than `NEAR` gain."""
        return self.found.by_size[NEAR]

    @property
    def gain(self) -> str:
        """Their gain."""
        return _written(self.near)[0]

    @property
    def gain_interval(self) -> str:
        """The interval of their gain."""
        return _written(self.near)[1]

    @property
    def helped(self) -> int | None:
        """The longest context that is clearly worse than the full one, as are all shorter ones; None if none is."""
        longest = None
        for size in self.sizes:
            if self.found.by_size[size].low <= MIN_EXCESS:
                break
            longest = size
        return longest

    @property
    def enough(self) -> int | None:
        """The shortest context that is as good as the full one, as are all longer ones; None if none is."""
        shortest = None
        for size in reversed(self.sizes):
            if max(-self.found.by_size[size].low, self.found.by_size[size].high) > TOLERANCE:
                break
            shortest = size
        return shortest

    @property
    def left(self) -> str:
        """What is lost with the longest context that is worse than the full one."""
        return _written(self.found.by_size[self.helped or NEAR])[0]

    @property
    def tolerance(self) -> str:
        """The difference that counts as none."""
        return f"{TOLERANCE:g}"


def _written(excess: Excess) -> tuple[str, str]:
    """Return bits a token and their interval."""
    digits = interval_digits(excess.low, excess.high, 3)
    bits, low, high = (written(value, digits) for value in (excess.bits, excess.low, excess.high))
    return bits, f"{low} to {high}" if low != high else ""


CONTEXT: tuple[Statement[ContextFacts], ...] = (
    Statement(lambda facts: True, "gained{of} from what is further back than 4 tokens, on {data}"),
)
REACH: tuple[Statement[ContextFacts], ...] = (
    Statement(lambda facts: facts.enough is not None, "{enough} tokens at most"),
    Statement(lambda facts: facts.enough is None and facts.helped is not None, "more than {helped} tokens"),
    Statement(lambda facts: facts.enough is None and facts.helped is None, "not known"),
)
REACH_NOTES: tuple[Statement[ContextFacts], ...] = (
    Statement(lambda facts: facts.enough is not None, "what is further back gains less than {tolerance} bits a token"),
    Statement(lambda facts: facts.helped is not None, "with the last {helped} alone, {left} bits a token are lost"),
    Statement(lambda facts: facts.helped is None and facts.enough is None, "the held-out data are too few to tell"),
)
"""How far back a model uses its context."""


def context_tiles(inspected: InspectedRun) -> list[Tile]:
    """Return the gain by context and its reach; none of a model for which they have no meaning."""
    found = inspected.context_excess
    if isinstance(inspected.explainer.context_excess, Refusal):
        return []
    if found is None or NEAR not in found.by_size:
        return [Tile("Context used", "not known", note="there are no held-out data, or too few")]
    facts = ContextFacts(found, inspected.held_out_name, f" by {ALONE}" if inspected.is_blended else "")
    return [
        Tile("Context used", f"{facts.gain} bits a token", facts.gain_interval, " ".join(told(CONTEXT, facts))),
        Tile("Reach", " ".join(told(REACH, facts)), note="; ".join(told(REACH_NOTES, facts))),
    ]


@dataclass(frozen=True)
class FirstScreen:
    """What a model makes of the text, and tiles; ``below`` is a simpler model that is better, beside this one."""

    inspected: InspectedRun
    reading: Reading
    lenses: list[Lens]
    tiles: list[Tile]
    below: Standing | None

    @property
    def warning(self) -> str:
        """The warning that the model is worse than a simpler one; empty if it is not."""
        return "" if self.below is None else " ".join(told(BELOW, self.below))

    @property
    def strip(self) -> Strip:
        """The text under its lenses."""
        return Strip(self.reading.layout.rows, self.lenses)

    def blocks(self, lenses: Sequence[Lens] = ()) -> list[PageBlock]:
        """Return the first screen, whose strip has more ``lenses``."""
        banner = [Banner(self.warning)] if self.below else []
        strip = replace(self.strip, lenses=[*self.lenses, *lenses])
        shown: list[PageBlock] = [*banner, strip] if strip.lenses else [*banner]
        answers = self.reading.answers
        return [*shown, *([Samples(answers)] if answers else []), Tiles(self.tiles)]

    @property
    def answer_lines(self) -> list[str]:
        """The answer and the gold one, as lines of the console."""
        marks = {"right": " ✓", "wrong": " ✗"}
        answers = self.reading.answers[:2]
        return [f"{each.heading.lower()}: {each.text[:100]}{marks.get(each.mark, '')}" for each in answers]

    @property
    def headline(self) -> str:
        """The answer, or else what the text costs, in one line."""
        bits = self.reading.bits
        by_byte = f"{bits.per_byte} bits a byte, {bits.total} in all" if bits and bits.per_byte else ""
        return by_byte or next(iter([*self.answer_lines, *(tile.line for tile in self.tiles)]), "")

    @property
    def summary(self) -> list[str]:
        """The lines of the console: the warning, the answer, and the tiles."""
        warning = [f"! {self.warning}"] if self.below else []
        return [*warning, *self.answer_lines, *(tile.line for tile in self.tiles)]


def first_screen(inspected: InspectedRun) -> FirstScreen:
    """Measure what the first screen shows."""
    reading, below = read_text(inspected), below_baseline(inspected.run)
    lenses: list[Lens] = list(reading.lenses)
    tiles = [*([reading.bits.tile] if reading.bits and reading.bits.size else []), *reading.tiles]

    # Nothing of a model that is worse than a simple one is interpreted; its page says what it predicts.
    if below is None:
        tiles += context_tiles(inspected)
        try:
            lenses += link_lenses(inspected, reading.layout)
        except NotFiniteError:  # nothing can be said about such a model
            raise
        except InputError:  # a model without layers has neither influence nor attention
            pass
    tiles += held_out_tiles(inspected.run)
    return FirstScreen(inspected, reading, lenses, tiles[:MAX_TILES], below)
