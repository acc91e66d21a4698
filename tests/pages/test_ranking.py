"""The first chart of a comparison: all rows on one axis."""

import re
from collections.abc import Sequence

import pytest

from seriatim.pages.page import PageSection, render
from seriatim.pages.ranking import Bar, RankedRow, Ranking


def page(rows: Sequence[RankedRow], costs: Sequence[str] = ()) -> str:
    return render("x", "", [PageSection("x", "x", [Ranking("accuracy", rows, costs)])])


def test_the_axis_is_as_wide_in_all_rows() -> None:
    """The column of the values has one width, that of the longest of them."""
    rows = [RankedRow("a", 0.5, "0.5"), RankedRow("b", 0.25, "0.2500 (0.2400–0.2600)", (0.24, 0.26))]
    assert Ranking("accuracy", rows).longest == len(rows[1].text)
    (template,) = re.findall(r"\.ranking \.head, \.ranking \.ranked \{[^}]*grid-template-columns: ([^;]*);", page(rows))
    assert "content" not in template
    assert f"--text: {len(rows[1].text)}" in page(rows)


@pytest.mark.parametrize(("costs", "columns"), [((), 1), (("seconds",), 1), (("seconds", "memory"), 2)])
def test_rows_without_costs_have_a_grid(costs: Sequence[str], columns: int) -> None:
    rows = [RankedRow("a", None, note="failed", bars=[Bar("1", 1.0)] * len(costs))]
    assert f"--costs: {columns};" in page(rows, costs)
