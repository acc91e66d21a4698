"""The data beside a figure are those that it draws, at the positions where it draws them."""

import json
import math
import re
from html import unescape

import numpy as np
import pytest

from seriatim.pages.chart import Axis, Chart, HeatMap, Series, Switch, log_axis
from seriatim.pages.chart_svg import MAX_CELLS, draw
from seriatim.pages.page import Cell, PageSection, Table, render
from seriatim.pages.palette import LIGHT
from seriatim.pages.wording import in_bytes

from .test_page import HOSTILE, check_page

pytestmark = pytest.mark.usefixtures("laid_out")

X, Y = [1.0, 10.0, 1000.0], [3.25, 2.5, 1.0 / 3.0]


def chart(names: tuple[str, ...] = ("gru", "lstm"), **more: object) -> Chart:
    series = [Series(name, X, Y, intervals=[None, (2.0 - i, 2.9), None]) for i, name in enumerate(names)]
    return Chart("A title", log_axis("$tokens", in_bytes), Axis("size"), series, "A caption.", **more)


def heat_map(panels: int = 1, **more: object) -> HeatMap:
    values = [[0.1, 0.25, 1 / 3], [0.5, 0.75, math.nan]]
    return HeatMap(
        "A map", [(f"head {i}", values) for i in range(panels)], ["a", "$"], ["x", "y", "z"], "weight", **more
    )


def data_of(figure: Chart | HeatMap, *, is_narrow: bool = False) -> dict:
    return json.loads(json.dumps(draw(figure, "figure-1", is_narrow=is_narrow).data, allow_nan=False))


def page_of(*blocks: Chart | HeatMap | Switch | Table) -> str:
    return render("t", "l", [PageSection("s", "s", blocks)])


def page_data(html: str) -> list[dict]:
    return [json.loads(each) for each in re.findall(r'class="data">(.*?)</script>', html)]


@pytest.mark.parametrize("is_narrow", [False, True])
def test_the_data_are_those_that_were_declared(is_narrow: bool) -> None:
    data = data_of(chart(levels=[("a level", 2.0)]), is_narrow=is_narrow)
    (plot,) = data["plots"]
    assert data["series"] == ["gru", "lstm", "a level"]
    assert (plot["x_name"], plot["x_unit"], plot["y_name"], plot["y_unit"]) == ("$tokens", "B", "size", "")
    for i, line in enumerate(plot["lines"][:2]):
        assert line["series"] == i
        assert (line["x"], line["y"]) == (X, pytest.approx(Y, rel=1e-6))
        assert line["y_intervals"] == [None, [2 - i, 2.9], None]
    assert (plot["lines"][2]["x"], plot["lines"][2]["y"]) == ([None], [2])


def test_coordinates_are_those_of_the_drawing() -> None:
    svg, data = draw(Chart("t", log_axis("x"), Axis("y"), [Series("gru", X, Y)]), "figure-1")
    (line,) = data["plots"][0]["lines"]  # type: ignore[index]
    path = re.search(r'data-series="0">\s*<path d="([^"]*)"', svg)
    assert path
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path[1])]
    assert np.reshape(numbers, (-1, 2)).tolist() == [pytest.approx(at, abs=0.06) for at in line["at"]]


def test_gaps_names_dots_and_bands_are_data() -> None:
    gap = data_of(Chart("t", Axis("x"), Axis("y"), [Series("a", [1, 2, 3], [1, math.nan, 2], "curve")]))
    assert gap["plots"][0]["lines"][0]["y"] == [1, None, 2]
    assert gap["plots"][0]["lines"][0]["at"][1][1] is None
    named = data_of(Chart("t", Axis(names=["one", "two"]), Axis("count"), [Series("a", [0, 1], [2.5, 1])]))
    assert named["plots"][0]["lines"][0]["names"] == ["one", "two"]
    dots = Series("a", [1, 2], [3, 4], "dots", names=["p", "q"], x_intervals=[(0.5, 1.5), None])
    (line,) = data_of(Chart("t", Axis("x"), Axis("y"), [dots]))["plots"][0]["lines"]
    assert (line["names"], line["x_intervals"]) == (["p", "q"], [[0.5, 1.5], None])
    band = Series("a", [1, 2], [3, 4], "curve", [(2, 4), (3, 5)], is_band=True)
    assert "fill-opacity" in draw(Chart("t", Axis("x"), Axis("y"), [band]), "figure-1").svg


def test_the_names_in_legends_select_their_series() -> None:
    svg, data = draw(chart(levels=[("a level", 2.0)]), "figure-1")
    labels = re.findall(r'<g data-label="(\d)">\s*<text[^>]*>([^<]*)<', svg)
    assert [(int(index), text) for index, text in labels] == list(enumerate(data["series"]))  # type: ignore[arg-type]


def test_heat_maps_are_data_with_the_names_of_rows_and_columns() -> None:
    for plot in data_of(heat_map(2))["plots"]:
        (cells,) = plot["maps"]
        assert (cells["rows"], cells["columns"], cells["name"]) == (["a", "$"], ["x", "y", "z"], "weight")
        assert cells["values"] == [[0.1, 0.25, 0.333], [0.5, 0.75, None]]
    large = HeatMap("t", [("", np.zeros((2, MAX_CELLS)).tolist())], ["a", "b"], ["c"] * MAX_CELLS, "weight")
    assert data_of(large) == {}


def test_a_figure_without_values_is_nothing() -> None:
    assert not Chart("t", Axis(), Axis(), [])
    assert not Chart("t", Axis(), Axis(), [Series("a", [1], [math.nan])])
    assert chart()


@pytest.mark.parametrize("value", [1e101, 1e300, 1.7e308, math.inf, math.nan])
def test_a_value_that_cannot_be_drawn_leaves_a_gap(value: float) -> None:
    huge = Series("gru", [1.0, 2.0], [value, 2.0], intervals=[(value / 2, value), (1.0, 3.0)])
    figure = Chart("t", Axis("x"), Axis("y"), [huge], levels=[("level", value)])
    (line,) = data_of(figure)["plots"][0]["lines"]
    assert (line["y"], line["y_intervals"]) == ([None, 2], [None, [1, 3]])
    assert bool(figure)
    assert not Chart("t", Axis("x"), Axis("y"), [Series("gru", [1.0], [value])])


def test_a_page_has_every_figure_wide_and_narrow_with_unique_ids() -> None:
    html = page_of(
        chart(), chart(missing={"mamba": "it is 0"}), heat_map(3), Switch("S", [("time", chart()), ("tokens", chart())])
    )
    page = check_page(html)
    assert len(page.all("svg")) == 2 * 5
    assert len(page_data(html)) == 2 * 5
    assert "mamba (it is 0)" in page.text()
    assert [each["value"] for each in page.all("option")] == ["0", "1"]


def test_the_same_charts_are_the_same_bytes() -> None:
    once, again = (page_of(chart(), heat_map()) for _ in range(2))
    assert once == again


def test_names_of_users_stay_text() -> None:
    names = ("</script><script>alert(1)</script>", HOSTILE, 'a"b')
    html = page_of(chart(names))
    check_page(html)
    assert all(data["series"] == list(names) for data in page_data(html))
    labels = re.findall(r'<g data-label="\d">\s*<text[^>]*>([^<]*)<', html)
    assert {unescape(label) for label in labels} == set(names)


def test_figures_take_their_colours_from_the_page() -> None:
    for figure in (chart(levels=[("a level", 2.0)]), heat_map(2)):
        svg = draw(figure, "figure-1").svg
        assert set(re.findall(r"var\(--(\w+)\)", svg)) <= set(LIGHT)
        assert not re.search(r"(?:fill|stroke): (?:#|rgb|black|white)", svg)
        assert not any(unwanted in svg for unwanted in ("font-family", "<metadata", "<style"))


def test_values_of_cells_are_stated_for_sorting() -> None:
    table = Table(["a", "b"], [["x", Cell("1.2 kB", value=1200.0)], ["y", Cell("512 B", value=512)]])
    page = check_page(page_of(table))
    assert [each["data-value"] for each in page.all("td")] == ["1200.0", "512"]
