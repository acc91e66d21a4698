"""Pages: one HTML file without other files, in light and dark, for wide and narrow screens and for paper.

A page is a title and sections; a section is a sequence of the blocks below. All text is escaped.
"""

import base64
import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError, MissingError, UnavailableError, UnwritableError
from ..storage.files import read_text, write_whole
from .chart import Chart, HeatMap, Switch
from .confusion import Confusion
from .items import Items
from .palette import DARK, LIGHT
from .ranking import Ranking
from .stepper import Stepper
from .strip import Strip
from .theme import printable
from .wording import seen

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from .chart_svg import draw
except ModuleNotFoundError as error:
    raise UnavailableError("a page of plots: needs matplotlib and jinja2; pip install 'seriatim[report]'") from error

TEMPLATES = Path(__file__).parent / "templates"
UNITS = re.compile(r"(?<=\d) (?=(?:%|[kMGTPE]?B|μs|ms|s|min|h)(?!\w))")
"""The space between a number and its unit, where no line may end."""
LONG_WORD, BREAK = re.compile(r"\S{48,}"), 24
"""A word of a table that may be broken, and after how many characters."""


@dataclass(frozen=True)
class Prose:
    """Paragraphs of plain text, separated by blank lines."""

    text: str


class Interval(NamedTuple):
    """A fraction and its interval, which a cell draws as a dot on a line from 0 to 1."""

    value: float
    low: float
    high: float


class Cell(NamedTuple):
    """A cell of a table that spans a number of columns, with a small note below its text, or ``drawn`` in its place.

    The mark ``"best"``, ``"wrong"`` or ``"right"`` is shown by a sign as well as by colour. Columns are sorted by the
    value of their cells, or by the number in the text where no value is given. The text is a link if there is an
    ``address``, which is relative to the page.
    """

    text: str
    mark: str = ""
    note: str = ""
    span: int = 1
    value: float | None = None
    address: str = ""
    drawn: Interval | None = None


class Link(NamedTuple):
    """The name of another page, and its address relative to this one."""

    name: str
    address: str


@dataclass(frozen=True)
class Table:
    """A table with a caption above it. The first cell of a row is the heading of the row.

    The ``numeric`` columns are aligned to the right. A narrow page shows the cells of a ``stacked`` table, one of
    sentences, below each other instead of scrolling. ``best`` says of each column whether its smallest (``min``) or
    largest (``max``) value is the best, which is sorted first.
    """

    headings: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    numeric: Collection[int] = ()
    stacked: bool = False
    best: Sequence[str] = ()


@dataclass(frozen=True)
class Code:
    """Lines of a command or a file, with a button to copy them."""

    text: str
    caption: str = ""


class Sample(NamedTuple):
    """A text with a heading; ``lead`` is the text that it continues, ``mark`` is that of a `Cell`."""

    heading: str
    text: str
    lead: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Samples:
    """Texts side by side."""

    items: Sequence[Sample]
    caption: str = ""


@dataclass(frozen=True)
class Banner:
    """Warnings that come before everything else, the gravest first."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names and short texts side by side: the facts that a reader needs beside a chart."""

    pairs: Sequence[tuple[str, str]]


class Tile(NamedTuple):
    """A number in large type: what it is, the number with its unit, its 95 % interval, and a note."""

    name: str
    value: str
    interval: str = ""
    note: str = ""

    @property
    def notes(self) -> str:
        """What stands below the number."""
        return "; ".join(filter(None, [self.interval and f"95 % interval {self.interval}", self.note]))

    @property
    def line(self) -> str:
        """The tile as a line of the console."""
        name = self.name if self.name[:2].isupper() else f"{self.name[:1].lower()}{self.name[1:]}"
        return f"{name}: {self.value}{f' ({self.interval})' if self.interval else ''}"


@dataclass(frozen=True)
class Tiles:
    """A few numbers side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Folded:
    """Blocks below a title, which are shown when the title is selected."""

    title: str
    blocks: Sequence["PageBlock"]


Text = Prose | Banner | Facts | Tiles | Table | Code | Samples
Figure = Chart | HeatMap | Switch | Ranking | Confusion | Strip | Stepper | Items
PageBlock = Text | Figure | Folded
"""What a page is made of; a block is shown by the template with the name of its class."""


@dataclass(frozen=True)
class PageSection:
    """A section. ``name`` ends its address: letters, digits and hyphens, unique in the page."""

    name: str
    title: str
    blocks: Sequence[PageBlock] = field(default_factory=tuple)


def render(
    title: str,
    lead: str,
    sections: Sequence[PageSection],
    *,
    opening: Sequence[PageBlock] = (),
    links: Sequence[Link] = (),
) -> str:
    """Return a page as HTML that contains its style, script and drawings, and loads nothing.

    The lead is the main result in a sentence or two; ``links`` to related pages follow it. The ``opening`` is the first
    screen, before the contents. Sections without blocks are left out. The same blocks give the same bytes.
    """
    css, script = ("\n".join(_files(kind)) for kind in ("css", "js"))
    page = _environment().get_template("page.html")
    html = page.render(
        title=title,
        lead=lead,
        opening=opening,
        sections=[section for section in sections if section.blocks],
        light=LIGHT,
        dark=DARK,
        css=Markup(css),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return with_links(printable(html), links)


def _files(kind: str) -> list[str]:
    """Return the style or the script of the page and then of each component, in the order of their names."""
    paths = sorted(TEMPLATES.glob(f"*.{kind}"), key=lambda path: (path.stem != "page", path.name))
    return [path.read_text(encoding="utf-8") for path in paths]


def with_links(html: str, links: Sequence[Link]) -> str:
    """Return a page that has no links to related pages yet with some at the end of its header."""
    if not links:
        return html
    names = Markup(", ").join(Markup('<a href="{}">{}</a>').format(link.address, link.name) for link in links)
    return html.replace("</header>", f"<p>Related pages: {names}.</p>\n</header>", 1)


def write_page(path: Path, html: str) -> None:
    """Write a page, completely or not at all.

    Raises:
        InputError: the folder does not exist, or the file cannot be written.
    """
    try:
        write_whole(path, html)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(
            f"{path}: the folder {path.parent} does not exist; create it, or name another file"
        ) from error
    except PermissionError as error:
        remedy = "change the permissions, or name another file"
        raise UnwritableError(f"{path}: cannot be written (no permission); {remedy}") from error
    except IsADirectoryError as error:
        raise UnwritableError(f"{path}: is a folder; name a file in it") from error


def _tied(text: str) -> str:
    return UNITS.sub("\N{NO-BREAK SPACE}", text)


def _broken(word: re.Match[str]) -> str:
    """Return a long word with places where a line may end; a column of a table is as wide as its longest word."""
    chunks = (word[0][start : start + BREAK] for start in range(0, len(word[0]), BREAK))
    return "\N{ZERO WIDTH SPACE}".join(chunks)


def _environment() -> Environment:
    """Return the environment of the templates, with the functions and filters that they use."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    written = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": True, "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = written
    numbers: dict[str, count[int]] = {}
    environment.globals["number"] = lambda kind: next(numbers.setdefault(kind, count(1)))
    environment.globals["show"] = lambda block: Markup(
        environment.get_template(f"{type(block).__name__.lower()}.html").render(block=block)
    )
    environment.filters |= {
        "cell": lambda cell: cell if isinstance(cell, Cell) else Cell(cell),
        "tied": _tied,
        "breakable": lambda text: LONG_WORD.sub(_broken, _tied(text)),
        "paragraphs": lambda text: [each.strip() for each in text.split("\n\n") if each.strip()],
        "draw": lambda figure, name, is_narrow: draw(figure, name, is_narrow=is_narrow),
        "signed": lambda value: f"{round(value, 3) + 0.0:.3f}".replace("-", "\N{MINUS SIGN}"),
        "visible": lambda token: seen(token.replace("\n", "↵\n").replace("\t", "⇥\t")),
    }
    return environment


# Display a page that is a file in a notebook.


HEIGHT = 700  # height of a page in a notebook, in pixels
MAX_BYTES = 1 << 28  # size of a page


def framed(path: Path, lines: Sequence[str] = ()) -> str:
    """Return HTML that shows a page in a frame, so that its styles and scripts do not affect the notebook.

    Args:
        path: file of the page.
        lines: the main results, which are shown instead if the page cannot be read.
    """
    try:
        page = read_text(path, max_bytes=MAX_BYTES, remedy="write it again")
    except InputError:
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        return f"<p>{escape(str(path))} cannot be read.</p><ul>{items}</ul>"
    return (
        f'<iframe title="{escape(str(path))}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {HEIGHT}px; border: 1px solid #d5d8db"></iframe>'
    )
