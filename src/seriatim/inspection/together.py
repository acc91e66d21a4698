"""The page on several runs that read the same text: a strip with a row for each of them, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from ..core.errors import ConflictError, EmptyError
from ..pages.page import Banner, Cell, Link, PageBlock, PageSection, Samples, Table, framed, render, write_page
from ..pages.strip import joined
from ..pages.wording import listed, without_isolates
from ..runs.run import Run
from .first_screen import FirstScreen
from .standing import WORSE

PAGE = "inspect.html"
MAX_NAME = 100
"""Characters of the name of a page."""
MAX_LINES = 6
"""Lines that the console shows."""


@dataclass(frozen=True)
class Inspection:
    """Result of `inspect`: the file of the page, which a notebook shows, and the main results, one line each.

    The ``screens`` are what the page begins with, for each run.
    """

    path: Path
    summary: list[str]
    screens: list[FirstScreen] = field(repr=False)

    @classmethod
    def of(cls, path: Path, lines: Sequence[str], screens: Sequence[FirstScreen]) -> "Inspection":
        """Return the result with the first of some lines."""
        return cls(path, list(map(without_isolates, lines[:MAX_LINES])), list(screens))

    def _repr_html_(self) -> str:
        """Return the page in a frame for notebooks, or the summary if the file is gone."""
        return framed(self.path, self.summary)


def check_together(runs: Sequence[Run]) -> None:
    """Raise InputError if there are no runs, or runs of different tasks."""
    if not runs:
        raise EmptyError("inspect: there is no run; name one")
    for run in runs:
        if run.config.task != runs[0].config.task:
            first, other = (f"{each.path} is of the task {each.config.task}" for each in (runs[0], run))
            raise ConflictError(f"inspect: {first}, and {other}; give runs of one task")


def page_name(names: Sequence[str]) -> str:
    """Return the name of the page on several runs, in the current folder: ``inspect-A-B.html``."""
    return "-".join(["inspect", *(name.replace("/", "-") for name in names)])[:MAX_NAME] + ".html"


def write_together(
    screens: Sequence[FirstScreen],
    names: Sequence[str],
    file: Path,
    *,
    pages: Sequence[str] = (),
    links: Sequence[Link] = (),
) -> Inspection:
    """Write the page on several runs.

    Args:
        screens: the first screen of each run.
        names: of the runs.
        file: the page to write.
        pages: the address of each run's page relative to ``file``, of which those are linked that exist.
        links: related pages.
    """
    addresses = [quote(page) if (file.parent / page).is_file() else "" for page in pages] or [""] * len(names)
    warned = [replace(screen.below, who=name) for name, screen in zip(names, screens, strict=True) if screen.below]
    opening: list[PageBlock] = [Banner([WORSE.of(each) for each in warned])] if warned else []
    strip = joined([(name, screen.strip) for name, screen in zip(names, screens, strict=True)])
    opening += [strip] if strip.lenses else [Samples([screens[0].text])]
    title, table = f"{listed(names)} on one text", _table(screens, names, addresses)
    sections = [PageSection("models", "The models", [table])]
    write_page(file, render(title, " ".join(screens[0].inspected.notes), sections, opening=opening, links=links))
    lines = [f"{name}: {screen.headline}" for name, screen in zip(names, screens, strict=True)]
    return Inspection.of(file, lines, screens)


def _table(screens: Sequence[FirstScreen], names: Sequence[str], addresses: Sequence[str]) -> Table:
    """Return the table of the models: their answers and the numbers of their first screens."""
    same = len({screen.inspected.run.vocabulary.fingerprint() for screen in screens}) == 1
    columns: dict[str, list[Cell]] = {}
    unknown = [Cell("–", note="not interpreted" if screen.below else "") for screen in screens]

    def add(row: int, heading: str, cell: Cell) -> None:
        columns.setdefault(heading, list(unknown))[row] = cell

    for row, screen in enumerate(screens):
        bits = screen.reading.bits
        for answer in screen.reading.answers[:1]:
            add(row, answer.heading, Cell(answer.text, answer.mark))
        if bits is not None:
            if bits.per_byte:
                add(row, "Bits a byte", Cell(bits.per_byte))
            add(row, "Bits in all", Cell(bits.total, note=bits.count))
            if same:
                mean, ends = bits.mean
                add(row, "Bits a token", Cell(mean, note=f"95 % interval {ends}" if ends else ""))
        for tile in screen.tiles:
            if bits is None or tile != bits.tile:
                add(row, tile.name, Cell(tile.value, note=tile.notes))
    rows = [
        [Cell(name, address=address), *(cells[row] for cells in columns.values())]
        for row, (name, address) in enumerate(zip(names, addresses, strict=True))
    ]
    caption = "Each model on this text, and on its held-out data."
    if not same:
        caption = "The same text, cut into other tokens by each tokenizer: bits a byte and in all can be compared."
    return Table(["model", *columns], rows, caption, stacked=True)
