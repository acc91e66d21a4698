"""Pages that show: one HTML file that needs nothing else, in light and dark, on a phone and on paper.

A page is a title and sections; a section is a sequence of the parts below. Whatever text they hold is escaped.
"""

import base64
import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import InputError
from ..storage.atomic_files import write_whole
from .theme import DARK, LIGHT, to_svg

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ModuleNotFoundError as error:
    raise InputError("a page of plots: needs matplotlib and jinja2; pip install 'seriatim[report]'") from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"
WIDE = 6.0
"""Inches from which a figure gets the whole width of the page."""


@dataclass(frozen=True)
class Prose:
    """Paragraphs of plain text, between which there are blank lines."""

    text: str


@dataclass(frozen=True)
class Plot:
    """A figure, what it is called, what to read from it, and what is to be seen in it for who does not see it."""

    figure: "Figure"
    title: str
    caption: str
    description: str


@dataclass(frozen=True)
class Plots:
    """Figures side by side, as many as there is room for."""

    plots: Sequence[Plot]


class Cell(NamedTuple):
    """A cell of a table that is more than its text.

    ``mark`` is ``"best"``, ``"wrong"`` or ``"right"``, shown by a sign as well as by colour; ``note`` stands below the
    text in small letters; ``span`` is the number of columns it takes.
    """

    text: str
    mark: str = ""
    note: str = ""
    span: int = 1


@dataclass(frozen=True)
class Table:
    """Rows of cells, of which the first is the heading of its row.

    ``numeric`` are the columns set to the right. Where there is no room a table scrolls sideways in its own box;
    one of sentences is ``stacked`` instead, cell below cell.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    numeric: Collection[int] = ()
    stacked: bool = False


@dataclass(frozen=True)
class Code:
    """A command or a file, line by line, with a button that copies it."""

    text: str
    caption: str = ""


class Token(NamedTuple):
    """A token as it is read: its surprisal in bits, how dark that is from 0 to 1, what else could have stood there."""

    text: str
    value: float
    shade: float
    details: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True)
class Tokens:
    """A text, token by token, each shaded by its surprisal; a token in hand shows its alternatives.

    ``scale`` is what no shade and full shade mean.
    """

    tokens: Sequence[Token]
    caption: str = ""
    scale: tuple[str, str] = ("expected", "surprising")


class Sample(NamedTuple):
    """A text under a heading. ``lead`` is what it was the answer to; ``mark`` as of a `Cell`."""

    heading: str
    text: str
    lead: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Samples:
    """Texts side by side: ``(heading, text)`` or `Sample`."""

    items: Sequence[tuple[str, str] | Sample]
    caption: str = ""


Part = Prose | Plot | Plots | Table | Code | Tokens | Samples


@dataclass(frozen=True)
class Section:
    """``name`` is what the address of the section ends with: letters, digits and hyphens, unique in the page."""

    name: str
    title: str
    parts: Sequence[Part] = field(default_factory=tuple)


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a complete page: it contains its style, script and drawings, and loads nothing.

    Args:
        title: of the page.
        lead: what it says in a sentence or two.
        sections: in order; those without parts are left out.

    Returns:
        HTML; the same bytes for the same parts.
    """
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            lead=lead,
            sections=[section for section in sections if section.parts],
            light=LIGHT,
            dark=DARK,
            css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def write_page(path: Path, html: str) -> None:
    """Write a page completely, or not at all.

    Raises:
        InputError: there is no such folder, or nothing may be written there.
    """
    try:
        write_whole(path, html)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it, or name another file") from error
    except PermissionError as error:
        raise InputError(f"{path}: may not be written; give yourself the right to, or name another file") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a folder; name a file in it") from error


def _environment() -> Environment:
    """Templates with what they ask of Python."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers: dict[str, Any] = {}
    made.globals["number"] = lambda of: next(numbers.setdefault(of, count(1)))
    made.filters |= {
        "kind": lambda part: type(part).__name__.lower(),
        "cell": lambda cell: cell if isinstance(cell, Cell) else Cell(cell),
        "sample": lambda item: Sample(*item),
        "paragraphs": lambda text: [each.strip() for each in text.split("\n\n") if each.strip()],
        "wide": lambda plot: bool(plot.figure.get_size_inches()[0] > WIDE),
        "inches": lambda plot: float(plot.figure.get_size_inches()[0]),
        "svg": lambda plot, name: Markup(
            to_svg(plot.figure, title=plot.title, description=plot.description, name=name)
        ),
        "bits": lambda value: f"{value:.2f}" if math.isfinite(value) else "Infinity",  # as JavaScript reads it
        "visible": lambda token: token.replace("\n", "↵\n").replace("\t", "⇥\t"),
    }
    return made
