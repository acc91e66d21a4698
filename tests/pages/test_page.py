"""Pages hold what they are given and fetch nothing; plots follow the theme of the page."""

import importlib
import itertools
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from seriatim.pages.drawing import to_svg
from seriatim.pages.page import (
    Cell,
    Code,
    Folded,
    PageSection,
    Plot,
    Plots,
    Prose,
    Sample,
    Samples,
    Table,
    Token,
    Tokens,
    render,
    write_page,
)
from seriatim.pages.palette import COLOURS, DARK, HEAT, LIGHT
from seriatim.pages.theme import STYLES, new_figure, plain, style

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


def lines(text: str = "a layer"):
    figure, axes = new_figure()
    for i in range(len(COLOURS)):
        axes[0, 0].plot([1, 10, 100], [i + 1, i + 2, i + 4], label=plain(f"{text} {i}"), **style(i))
    axes[0, 0].set_xscale("log")
    axes[0, 0].legend()
    axes[0, 0].text(1, 1, "outside the look: in Matplotlib's own colours")
    return figure


def heat():
    figure, axes = new_figure()
    figure.colorbar(axes[0, 0].imshow([[0.1, 0.5], [0.3, 0.9]], cmap=HEAT))
    return figure


def sections(text: str = "text") -> list[PageSection]:
    plots = [Plot(draw, text, text, text) for draw in (lines(text), heat(), new_figure(1, 2, width=9.0)[0])]
    return [
        PageSection("one", text, [Prose(f"{text}\n\n{text}"), plots[0], Plots(plots[1:])]),
        PageSection("two", text, [Table([text, text], [[text, Cell(text, "best", text)], [text, "2"]], text, {1})]),
        PageSection(
            "three", text, [Tokens([Token(text, 3.0, 0.5, [(text, 0.25)], text), Token("\n", 0.0, 0.0)], text)]
        ),
        PageSection("folded", text, [Folded(text, [Prose(text), Folded(text, [Code(text)])])]),
        PageSection("four", text, [Samples([(text, text), Sample(text, text, text, "wrong")], text), Code(text, text)]),
        PageSection("empty", "left out", []),
    ]


def test_titles_and_legends_have_the_look_of_the_pages() -> None:
    figure, axes = new_figure()
    axes[0, 0].plot([1, 2], label="a line")
    axes[0, 0].set_title("a title")
    legend = axes[0, 0].legend()
    assert axes[0, 0].get_title(loc="left") == "a title"
    assert not legend.get_frame_on()
    assert "a title" in to_svg(figure, title="t", description="d")


def test_a_page_is_whole_and_fetches_nothing() -> None:
    page = check_page(render("A title", "A sentence.", sections()))
    assert [each["href"] for each in page.all("a")] == ["#content", "#one", "#two", "#three", "#folded", "#four"]
    assert any("Content-Security-Policy" in str(each) for each in page.all("meta"))


def test_hostile_text_stays_text() -> None:
    page = check_page(render(HOSTILE, HOSTILE, sections(HOSTILE)))
    assert page.text().count(HOSTILE) >= 15
    assert not page.all("img")
    data = [json.loads(text) for tag, text in page.within if tag == "script" and text.startswith(("{", "["))]
    assert len(data) == len(page.all("script")) - 1  # that of the page
    assert sum(HOSTILE in json.dumps(each, ensure_ascii=False).replace('\\"', '"') for each in data) == 2


def test_the_same_page_is_the_same_bytes() -> None:
    once, again = (
        render("A title", "A sentence.", [PageSection("plots", "Plots", [Plots([Plot(draw(), "a", "b", "c")])])])
        for draw in (lines, lines)
    )
    assert once == again


def test_a_plot_takes_its_colours_from_the_page() -> None:
    for figure in (lines(), heat()):
        svg = to_svg(figure, title="t", description="d")
        assert set(re.findall(r"var\(--(\w+)\)", svg)) <= set(LIGHT)
        assert not re.search(r"(?:fill|stroke): (?:#|rgb|black|white)", svg)
        assert "font-family" not in svg
        assert "<metadata" not in svg
        assert "<style" not in svg


def test_two_plots_share_no_ids() -> None:
    both = [re.findall(r' id="([^"]+)"', to_svg(lines(), title=name, description="")) for name in ("a", "b")]
    assert both[0]
    assert not set(both[0]) & set(both[1])


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
