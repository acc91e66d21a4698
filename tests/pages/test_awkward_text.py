"""Pages hold any text: control characters, half of a surrogate pair, long words, and scripts from right to left."""

import itertools
import re
import xml.etree.ElementTree
from html import unescape

import pytest

from seriatim.pages.chart import Axis, Chart, Series
from seriatim.pages.chart_svg import LONGEST, NARROW, SPACED, WIDE, draw
from seriatim.pages.page import (
    TEMPLATES,
    Cell,
    PageSection,
    Prose,
    Table,
    render,
)
from seriatim.pages.strip import Links, Strip, StripRow, StripToken, Values, Weights
from seriatim.pages.wording import MAX_LISTED, listed

from .test_page import check_page, sections

pytestmark = pytest.mark.usefixtures("laid_out")

AWKWARD = {
    "controls": "a\x00b\x07c\x1b[31m\x7f",
    "surrogate": "half \ud83d of a pair",
    "hebrew": "שלום עולם (כן!)",
    "arabic": "مرحبا بالعالم",
    "combining": "e\u0301\u0302\u0303\u20dd",
    "new lines": "a\r\nb\nc\u2028d",
    "spaces": " \t\u00a0\u3000",
    "markup": "]]></script><script>alert(1)</script> &amp; \" '",
    "formula": "$x_{1}$ \\alpha %s {0}",
}


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
def test_awkward_text_gives_a_whole_page(text: str) -> None:
    html = render(text, text, sections(text))
    check_page(html)
    assert html.encode()
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", html)


def drawings(html: str) -> list[str]:
    return re.findall(r"<svg .*?</svg>", html, flags=re.DOTALL)


def test_a_drawing_with_control_characters_is_xml() -> None:
    text = AWKWARD["controls"]
    svgs = drawings(render(text, text, sections(text)))
    assert svgs
    for svg in svgs:
        assert "␛[31m" in "".join(xml.etree.ElementTree.fromstring(svg).itertext())


def test_a_long_word_in_a_table_can_be_broken() -> None:
    word = "x" * 10_000
    html = render(
        "A title", "A sentence.", [PageSection("one", "One", [Table(["a"], [[word], [Cell(word, note=word)]])])]
    )
    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert max(len(part) for part in re.split(r"[\s<>\u200b]+", body)) < 48
    assert body.count("x" * 24) == 3 * (10_000 // 24)


def test_a_number_stays_with_its_unit() -> None:
    html = render("A title", "A share of 5 % in 20 ms.", [PageSection("one", "One", [Prose("3.2 kB and 4 samples")])])
    assert "5\u00a0% in 20\u00a0ms" in html
    assert "3.2\u00a0kB and 4 samples" in html


@pytest.mark.parametrize("text", [*AWKWARD.values(), "x" * 10_000])
def test_labels_of_figures_are_short_lines(text: str) -> None:
    chart = Chart(text, Axis(names=[text, text]), Axis(text), [Series(text, [0, 1], [1, 2], names=[text, text])], text)
    svg = draw(chart, "figure-1").svg
    labels = re.findall(r"<text[^>]*>([^<]*)<", svg)
    assert sum(1 for label in labels if len(unescape(label)) <= LONGEST) >= 2
    assert not any("\n" in label for label in labels)


def test_a_sentence_lists_few_names() -> None:
    names = [f"n{i}" for i in range(300)]
    assert listed(names).endswith("n19 and 280 others")
    assert listed(names[: MAX_LISTED + 1]).endswith("n19 and n20")


def test_marks_without_a_letter_and_tokens_without_width_are_seen() -> None:
    texts = ["\u0301", "\u200b", "\u200d ", "a\u0301"]
    strip = Strip([StripRow("", [StripToken(text) for text in texts])], [Links("n", [Weights([[1.0]])])])
    html = render("A title", "A sentence.", [PageSection("one", "One", [strip])])
    for text in ("◌\u0301", "◌\u200b", "◌\u200d", "a\u0301"):
        assert html.count(f">{text}<") == 1
    assert "◌a" not in html


def test_the_space_after_a_word_is_not_shaded() -> None:
    tokens = [StripToken("</s> ", symbol=True), *map(StripToken, ("word ", "a", " "))]
    assert [token.is_apart for token in tokens] == [False, True, False, False]
    html = render(
        "A title",
        "A sentence.",
        [PageSection("one", "One", [Strip([StripRow("", tokens)], [Values("n", [1.0], 2.0)])])],
    )
    assert ">word</span> <span" in html
    assert ">&lt;/s&gt; </span>" in html


def test_arrow_keys_follow_the_direction_of_the_text() -> None:
    scripts = {name: (TEMPLATES / name).read_text() for name in ("page.js", "strip.js")}
    assert scripts["page.js"].count('direction === "rtl"') == 1
    assert "tokenReached(event.key, group" in scripts["strip.js"]
    assert "ArrowRight" not in scripts["strip.js"]


@pytest.mark.parametrize("count", [5, 60, 128, 1000])
@pytest.mark.parametrize("is_narrow", [False, True])
def test_an_axis_names_as_many_tokens_as_fit(count: int, is_narrow: bool) -> None:
    tokens = [f"t{i:04}" for i in range(count)]
    chart = Chart("t", Axis(names=tokens), Axis("y"), [Series("a", range(count), range(count))])
    svg = draw(chart, "figure-1", is_narrow=is_narrow).svg
    named = [int(name[1:]) for name in re.findall(r">(t\d{4})<", svg)]
    assert len({b - a for a, b in itertools.pairwise(named)}) == 1
    assert len(named) >= min(count, 10)
    assert len(named) * SPACED <= (NARROW if is_narrow else WIDE)
