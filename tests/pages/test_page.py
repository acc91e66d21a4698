"""Pages hold what they are given and fetch nothing; plots follow the theme of the page."""

import importlib
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from seriatim.pages.chart import Axis, Chart, HeatMap, Series
from seriatim.pages.page import (
    Banner,
    Cell,
    Code,
    Folded,
    PageSection,
    Prose,
    Sample,
    Samples,
    Table,
    Tile,
    Tiles,
    render,
    write_page,
)
from seriatim.pages.palette import COLOURS, DARK, LIGHT
from seriatim.pages.strip import Links, Strip, StripRow, StripToken, Values, Weights
from seriatim.pages.theme import STYLES

from ..refusals import refused

pytestmark = pytest.mark.usefixtures("laid_out")

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(1)> & "quoted" \'$$ {{ 7 * 7 }} ]]> -->'
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Document(HTMLParser):
    """What a page is made of; fails where its tags do not balance."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.within: list[tuple[str, str]] = []
        self.unfolded: list[str] = []
        self.source = html
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len({name for name, _ in attrs}), f"an attribute twice in <{tag}>"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.within.append((self.open[-1] if self.open else "", data))
        if not {"details", "style", "script", "svg", "option", "title"} & set(self.open):
            self.unfolded.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self) -> str:
        return "".join(data for tag, data in self.within if tag not in ("style", "script"))


def check_page(html: str) -> Document:
    """What holds of every page: balanced, alone, its ids unique, its pictures named, its headings in order."""
    page = Document(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            address = attributes.get(name, "#")
            assert address.startswith(("#", "data:")), f"fetches {address}"
            assert not address.startswith("#") or address == "#" or address[1:] in ids
        for name in ("aria-labelledby", "aria-describedby"):
            assert all(each in ids for each in attributes.get(name, "").split())
        assert not any(name.startswith("on") for name in attributes)
        assert "url(" not in re.sub(r"url\(#[^)]+\)", "", attributes.get("style", ""))
        assert not any(colour in attributes.get("style", "") for colour in LIGHT.values())
    assert "@import" not in html
    assert all(attributes["role"] == "img" and attributes["aria-labelledby"] for attributes in page.all("svg"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len([each for each in page.all("script") if each.get("type") != "application/json"]) == 1
    return page


def figures(text: str) -> list[Chart | HeatMap]:
    """A chart and a heat map, all of whose names are a text."""
    line, axis = Series(text, [1, 10, 100], [1, 2, 4], names=[text] * 3), Axis(text)
    return [Chart(text, axis, axis, [line], text), HeatMap(text, [(text, [[0.1]])], [text], [text], text, text)]


def strip(text: str) -> Strip:
    tokens = [StripToken(text, above=text, gold=text), StripToken("\n")]
    values = Values(text, [3.0, math.inf], 6.0, text, text, text, notes=[text, ""], details=[[(text, 0.25)], []])
    return Strip([StripRow(text, tokens)], [values, Links(text, [Weights([[1.0]])], text)])


def sections(text: str = "text") -> list[PageSection]:
    return [
        PageSection("one", text, [Prose(f"{text}\n\n{text}"), *figures(text)]),
        PageSection("two", text, [Table([text, text], [[text, Cell(text, "best", text)], [text, "2"]], text, {1})]),
        PageSection("three", text, [strip(text), Banner([text]), Tiles([Tile(text, text, text, text)])]),
        PageSection("folded", text, [Folded(text, [Prose(text), Folded(text, [Code(text)])])]),
        PageSection(
            "four", text, [Samples([Sample(text, text), Sample(text, text, text, "wrong")], text), Code(text, text)]
        ),
        PageSection("empty", "left out", []),
    ]


def test_a_page_is_whole_and_fetches_nothing() -> None:
    page = check_page(render("A title", "A sentence.", sections()))
    assert [each["href"] for each in page.all("a")] == ["#content", "#one", "#two", "#three", "#folded", "#four"]
    assert any("Content-Security-Policy" in str(each) for each in page.all("meta"))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_script_of_a_page_is_one_that_an_engine_accepts(tmp_path: Path) -> None:
    """A name that is declared twice leaves the page without any script."""
    (script,) = re.findall(r"<script>(.*?)</script>", render("A", "B", []), flags=re.DOTALL)
    (tmp_path / "page.js").write_text(script)
    done = subprocess.run(["node", "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_hostile_text_stays_text() -> None:
    page = check_page(render(HOSTILE, HOSTILE, sections(HOSTILE)))
    assert page.text().count(HOSTILE) >= 15
    assert not page.all("img")
    data = [json.loads(text) for tag, text in page.within if tag == "script" and text.startswith(("{", "["))]
    assert len(data) == len(page.all("script")) - 1  # that of the page
    quoted = [json.dumps(each, ensure_ascii=False).replace('\\"', '"') for each in data]
    assert sum(HOSTILE in each for each in quoted) == 5  # a chart and a heat map, wide and narrow, and alternatives


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_what_is_written_can_be_read(theme: dict[str, str]) -> None:
    """The contrast that WCAG 2 asks of text at level AA. Text has the colours of links and of errors at most."""
    for name in ("ink", "soft", "c1", "c2"):
        dark, light = sorted((luminance(theme[name]), luminance(theme["paper"])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_no_two_lines_look_alike_without_colour() -> None:
    assert len({str(each) for each in STYLES}) == len(STYLES) >= len(COLOURS)


def test_where_a_page_cannot_be_written_one_line_says_so(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "é")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "é"
    with refused("missing", "page.html"):
        write_page(tmp_path / "nowhere" / "page.html", "")
    with refused("missing", "page.html"):
        write_page(tmp_path / "page.html" / "page.html", "")
    (tmp_path / "folder").mkdir()
    with refused("unwritable", "folder"):
        write_page(tmp_path / "folder", "")


def test_no_permission_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, text: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("seriatim.pages.page.write_whole", refuse)
    with refused("unwritable", "page.html"):
        write_page(tmp_path / "page.html", "")


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_what_draws_one_line_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name
        for name in sys.modules
        if name.startswith(("seriatim.comparison.", "seriatim.inspection.", "seriatim.pages."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with refused("unavailable"):
        importlib.import_module("seriatim.comparison.comparison_page")
