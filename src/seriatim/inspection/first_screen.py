"""The first screen of a page on a run and a text: the strip with its lenses, the answer, and three numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.errors import InputError
from ..models.probabilities import NotFiniteError
from ..pages.page import Banner, PageBlock, Sample, Samples, Tile, Tiles
from ..pages.statements import told
from ..pages.strip import Lens, Strip
from ..tasks.explainer import Refusal
from .context_section import context_tiles
from .influence import link_lenses
from .inspected_run import InspectedRun
from .standing import BELOW, Standing, below_baseline, held_out_tiles
from .surprisal import Reading, read_text

MAX_TILES = 3


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
    def main_tiles(self) -> list[Tile]:
        """The tiles that the page and the console show."""
        return self.tiles[:MAX_TILES]

    @property
    def strip(self) -> Strip:
        """The text under its lenses."""
        return Strip(self.reading.layout.rows, self.lenses)

    def blocks(self, lenses: Sequence[Lens] = ()) -> list[PageBlock]:
        """Return the first screen, whose strip has more ``lenses``."""
        shown: list[PageBlock] = [Banner([self.warning])] if self.below else []
        strip = replace(self.strip, lenses=[*self.lenses, *lenses])
        shown += [strip] if strip.lenses else [Samples([self.text])]
        shown += [Samples(self.reading.answers)] if self.reading.answers else []
        return [*shown, Tiles(self.main_tiles)]

    @property
    def text(self) -> Sample:
        """The text, for a page that shows it under no lens."""
        return Sample("Text", self.inspected.text)

    @property
    def answer_lines(self) -> list[str]:
        """The answer and the gold one, as lines of the console."""
        marks = {"right": " ✓", "wrong": " ✗"}
        answers = self.reading.answers[:2]
        return [f"{each.heading.lower()}: {each.text[:100]}{marks.get(each.mark, '')}" for each in answers]

    @property
    def headline(self) -> str:
        """The answer, or else what the text costs, and whether the model is worse than a simpler one, in one line."""
        bits = self.reading.bits
        by_byte = f"{bits.per_byte} bits a byte, {bits.total} in all" if bits and bits.per_byte else ""
        line = by_byte or next(iter([*self.answer_lines, *(tile.line for tile in self.tiles)]), "")
        return f"{line}; {self.below.degree} than {self.below.other}" if self.below else line

    @property
    def summary(self) -> list[str]:
        """The lines of the console: the warning, the answer, and the tiles."""
        warning = [f"! {self.warning}"] if self.below else []
        return [*warning, *self.answer_lines, *(tile.line for tile in self.main_tiles)]


def first_screen(inspected: InspectedRun) -> FirstScreen:
    """Measure what the first screen shows."""
    reading, below = read_text(inspected), below_baseline(inspected.run)
    lenses: list[Lens] = list(reading.lenses)
    tiles = [*([reading.bits.tile] if reading.bits and reading.bits.size else []), *reading.tiles]

    # Nothing of a model that is worse than a simple one is interpreted; its page says what it predicts.
    if below is not None and not isinstance(inspected.explainer.label_effect, Refusal):
        lenses, tiles = [], []
    if below is None:
        tiles += context_tiles(inspected)
        try:
            lenses += link_lenses(inspected, reading.layout)
        except NotFiniteError:  # nothing can be said about such a model
            raise
        except InputError:  # a model without layers has neither influence nor attention
            pass
    tiles += held_out_tiles(inspected.run)
    return FirstScreen(inspected, reading, lenses, tiles, below)
