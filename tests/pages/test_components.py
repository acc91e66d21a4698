"""Components of pages: tables of confusions, browsers over items, and tables that are sorted."""

import json
import math
import re

import pytest

from seriatim.evaluation.error_analysis import MAX_LABELS, AnsweredItem, count_confusions
from seriatim.pages.confusion import STRONGEST, Confusion
from seriatim.pages.items import MAX_CHARACTERS, MAX_SIZE, WITHOUT_SCRIPT, Items, for_page
from seriatim.pages.page import TEMPLATES, Cell, Interval, PageSection, Table, render
from seriatim.pages.palette import DARK, LIGHT

from .test_page import HOSTILE, check_page

HEBREW = "\u05e9\u05dc\u05d5\u05dd"


def page_of(*blocks):
    return check_page(render("A title", "", [PageSection("one", "one", blocks)]))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_can_be_read_on_the_strongest_colours(theme: dict[str, str]) -> None:
    def mixed(name: str, percent: float) -> float:
        colours = ([int(theme[key][i : i + 2], 16) / 255 for i in (1, 3, 5)] for key in (name, "paper"))
        channels = [a * percent / 100 + b * (1 - percent / 100) for a, b in zip(*colours, strict=True)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    ink = mixed("ink", 100)
    for behind in (mixed("c2", STRONGEST), mixed("c2", 55), mixed("c1", 45)):
        assert max(ink, behind) / min(ink, behind) >= 4.5
    grey, soft = mixed("ink", 6), mixed("soft", 100)
    assert max(grey, soft) / min(grey, soft) >= 4.5


def test_rows_and_columns_of_confusions_add_up() -> None:
    labels = [f"label {i:05}" for i in range(10_000)]
    counts = count_confusions(labels, [*labels[1:], labels[0]])
    assert (len(counts.labels), counts.all_labels, counts.wrong) == (MAX_LABELS, 10_000, 10_000)
    block = Confusion("Confusions", counts)
    assert block.has_others
    for (cells, others), total in zip(block.rows, counts.true, strict=True):
        assert sum(cell.number for cell in cells) + others == total
    assert sum(block.of_others) + sum(map(sum, counts.matrix)) == sum(counts.predicted)
    assert "10,000" in page_of(block).text()


def test_labels_with_the_most_errors_are_shown() -> None:
    truth = [f"l{i:02}" for i in range(30) for _ in range(i)]
    counts = count_confusions(truth, ["l00"] * len(truth))
    assert counts.labels == ["l00", *(f"l{i:02}" for i in range(11, 30))]
    assert count_confusions([], []).labels == []


def test_errors_are_coloured_by_their_share_of_the_true_label() -> None:
    block = Confusion("", count_confusions(["a"] * 4 + ["b"], ["a", "a", "a", "b", "a"]))
    (same, wrong), (worst, none) = (cells for cells, _ in block.rows)
    assert (same.strength, wrong.strength, worst.strength) == (None, math.ceil(STRONGEST / 2), STRONGEST)
    assert (none.number, none.strength) == (0, None)


@pytest.mark.parametrize("label", [HOSTILE, HEBREW, "", "x" * 1000])
def test_labels_of_any_kind_stay_text(label: str) -> None:
    page = page_of(Confusion(label, count_confusions([label, "b"], ["b", label])))
    assert not page.all("img")
    assert len(page.all("td")) == 9  # two labels and their sums


def item(text, truth="", answers=("a", "b"), figures=(0.5, None), right=(True, False)) -> AnsweredItem:
    return AnsweredItem(text, truth, answers, figures, right)


@pytest.mark.parametrize(
    "each",
    [
        item(HOSTILE, HEBREW, (HOSTILE, "")),
        item([HOSTILE, HEBREW], ["A", "B"], (["A", "A"], [HOSTILE, "B"])),
        item([HOSTILE, "\n"], "", ([1.0, None], [None, None])),
    ],
    ids=["answers", "tags", "tokens"],
)
def test_items_are_shown_without_a_script_and_read_by_it(each: AnsweredItem) -> None:
    html = render("", "", [PageSection("one", "one", [Items("Items", ["m", HOSTILE], [each] * 30, "loss", False)])])
    page = check_page(html)
    assert len(page.all("tr")) == 1 + WITHOUT_SCRIPT
    assert page.text().count("<script>alert(1)") >= WITHOUT_SCRIPT
    (data,) = [json.loads(text) for tag, text in page.within if tag == "script" and text.startswith("{")]
    assert len(data["items"]) == 30
    assert data["items"][0][3] == [0.5, None]


def test_one_model_and_no_items_make_a_page() -> None:
    page_of(Items("Items", ["m"], []), Items("Items", ["m"], [item(["a"], "", ([2.0],), (2.0,), ())], "bits"))


def test_items_of_a_page_are_short_and_few() -> None:
    items = for_page([item("x" * 10_000, "y", figures=(math.inf, math.nan))] * 20_000)
    assert len(items[0].text) == MAX_CHARACTERS
    assert items[0].figures == [None, None]
    assert MAX_SIZE // 400 < len(items) < 20_000
    assert len(json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()) <= MAX_SIZE
    words = for_page([item(["w"] * 500, ["A"] * 500, (["A"] * 500,))])[0]
    assert len(words.text) == len(words.truth) == len(words.answers[0]) < 500


def test_columns_know_which_values_are_better() -> None:
    table = Table(["a", Cell("b", note="in bits")], [["x", Cell("1", value=1.0)]], best=["", "min"])
    page = page_of(table)
    assert [each.get("data-best") for each in page.all("th")[:2]] == [None, "min"]
    assert "in bits" in page.text()
    drawn = page_of(Table(["a", "b"], [["x", Cell("0.5", "", "0.4 to 0.6", drawn=Interval(0.5, 0.4, 0.6))]]))
    assert [each["style"] for each in drawn.all("span") if "drawn-interval" in each.get("class", "")] == [
        "--at: 0.5; --low: 0.4; --high: 0.6"
    ]


def test_no_two_scripts_declare_the_same_name() -> None:
    names = [
        name
        for path in TEMPLATES.glob("*.js")
        for name in re.findall(r"^(?:const|let|async function|function) (\w+)", path.read_text(encoding="utf-8"), re.M)
    ]
    assert len(names) == len(set(names))
