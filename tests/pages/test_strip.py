"""A text under a lens: the digits that are stored, absolute shades, and one strip of several."""

import json
import math
import re

import pytest

from seriatim.pages.page import PageSection, render
from seriatim.pages.strip import STEPS, Links, Strip, StripRow, StripToken, Values, Weights, encoded_row, joined
from seriatim.pages.wording import percent


def stored(digits: str) -> list[float | None]:
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    return [(int(group, 36) / STEPS) ** 2 if group.strip() else None for group in groups]


def test_stored_digits_keep_the_weights_that_are_shown() -> None:
    assert encoded_row([math.nan]) == ""
    assert stored(encoded_row([0.5, math.nan, 0.0])) == [pytest.approx(0.5, abs=1e-4), None, 0.0]
    for weights in ([0.5, 0.0074, 0.0149, 0.0024], [0.996, 0.003, 0.001], [0.31, 0.099, 0.0996], [1.0, 0.0]):
        assert [percent(weight) for weight in stored(encoded_row(weights))] == [percent(weight) for weight in weights]


def test_the_scale_is_absolute() -> None:
    """A largest weight of 5 % has a fifth of the full shade, and so has a value of a fifth of the full value."""
    links = Links("n", [Weights([[0.05, 0.01]], 1)])
    assert links.pinned == 1
    assert links.shades(3) == [pytest.approx(math.sqrt(0.05)), pytest.approx(0.1), None]
    assert [name.replace("\u00a0", " ") for name in links.scale] == ["0 %", "6 %", "25 %", "56 %", "100 %"]
    values = Values("n", [2.0, 20.0, math.inf, math.nan, -1.0], 10.0, "bits", first=1, ends=("low", "high"))
    assert values.shades(7) == [None, 0.2, 1.0, 1.0, None, 0.0, None]
    assert values.scale == ["0 bits (low)", "2.5", "5", "7.5", "10 bits (high)"]
    assert values.data["values"] == [None, 2.0, 20.0, "Infinity", None, -1.0]


def test_several_strips_share_the_lenses_that_all_have() -> None:
    def strip(name: str, tokens: int, full: float, extra: list[Links]) -> Strip:
        lens = Values("surprisal", [1.0] * (tokens - 1), full, first=1, details=[[("a", 0.5)]] * (tokens - 1))
        links = Links("influence", [Weights([[0.25]], 1)])
        return Strip([StripRow("", [StripToken(f"{name}{i}") for i in range(tokens)])], [lens, links, *extra])

    only = Links("head 1", [Weights([[1.0]])], group="Attention")
    both = joined([("A", strip("a", 2, 3.0, [only])), ("B", strip("b", 3, 6.0, []))])
    assert [(row.heading, len(row.tokens)) for row in both.rows] == [("A", 2), ("B", 3)]
    values, links = both.lenses
    assert isinstance(values, Values)
    assert isinstance(links, Links)
    assert values.full == 6.0
    assert values.shades(5) == [None, pytest.approx(1 / 6), None, pytest.approx(1 / 6), pytest.approx(1 / 6)]
    assert [len(each) for each in values.details] == [0, 1, 0, 1, 1]
    assert [(block.first_row, block.first_column) for block in links.weights] == [(1, 0), (3, 2)]


def test_a_strip_without_lenses_keeps_its_text_among_others() -> None:
    plain = Strip([StripRow("", [StripToken("a"), StripToken("b")])], [])
    lens = Strip(plain.rows, [Values("surprisal", [1.0, 2.0], 2.0), Links("influence", [Weights([[0.25]], 1)])])
    values, links = joined([("A", plain), ("B", lens), ("C", plain)]).lenses
    assert values.shades(6) == [None, None, 0.5, 1.0, None, None]
    assert isinstance(links, Links)
    assert [(block.first_row, block.first_column) for block in links.weights] == [(3, 2)]
    assert joined([("A", plain), ("C", plain)]).lenses == []


def test_texts_of_a_strip_stay_texts() -> None:
    texts = ("</script><script>alert(1)</script> ", "a" * 60, "\u0301", "שלום ", '"&')
    tokens = [StripToken(text, above="<b>", gold="<i>") for text in texts]
    lens = Links("n<b>", [Weights([[0.2], [0.1, math.nan, 0.7]])], "s</script>", "g</script>")
    html = render("t", "", [PageSection("a", "A", [Strip([StripRow("h<b>", tokens)], [lens])])])
    assert "<script>alert" not in html
    assert "<b>" not in html.split("<h2")[1]
    assert f"{'a' * 23}…<" in html, "a long token is cut"
    assert f'data-text="{"a" * 60}"' in html, "and is there as a whole"
    data = re.search(r'class="lenses">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    (stored_lens,) = json.loads(data[1])
    assert stored_lens["sentence"] == "s</script>"
    assert stored_lens["pinned"] == 1
