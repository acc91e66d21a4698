"""The data beside a figure are those that it draws, at the places where it draws them."""

import json
import re
from html import unescape

import numpy as np
import pytest
from matplotlib.figure import Figure

from seriatim.pages.charts import ChartLine, line_chart
from seriatim.pages.drawing import MAX_CELLS, drawing, name_cells, show
from seriatim.pages.page import SCRIPTS, TEMPLATES, Cell, PageSection, Plot, Table, render
from seriatim.pages.palette import HEAT
from seriatim.pages.theme import new_figure, plain, style
from seriatim.pages.wording import in_bytes

from .test_page import HOSTILE, check_page

pytestmark = pytest.mark.usefixtures("laid_out")

POINTS = [(1.0, 3.25), (10.0, 2.5), (1000.0, 1.0 / 3.0)]


def data_of(figure: Figure) -> dict:
    return json.loads(json.dumps(drawing(figure, title="t", description="d").data, allow_nan=False))


def chart(names: tuple[str, ...] = ("gru", "lstm")) -> Figure:
    lines = [ChartLine(name, POINTS, [(10.0, 2.0 - i, 2.9)]) for i, name in enumerate(names)]
    figure = line_chart(lines, x="$tokens", y="size", x_format=in_bytes)
    assert figure is not None
    return figure


def page_data(html: str) -> list[dict]:
    return [
        json.loads(each) for each in re.findall(r'<script type="application/json" class="data">(.*?)</script>', html)
    ]


def test_embedded_data_equal_the_plotted_data() -> None:
    figure = chart()
    html = render("t", "l", [PageSection("s", "s", [Plot(figure, "a", "b", "c")])])
    (data,) = page_data(html)
    (plot,) = data["plots"]
    assert data["series"] == ["gru", "lstm"]
    assert (plot["x_name"], plot["x_unit"], plot["y_name"], plot["y_unit"]) == ("$tokens", "B", "size", "")
    for i, line in enumerate(plot["lines"]):
        assert data["series"][line["series"]] == ("gru", "lstm")[i]
        assert list(zip(line["x"], line["y"], strict=True)) == [pytest.approx(point, rel=1e-6) for point in POINTS]
        assert line["y_intervals"] == [None, [2 - i, 2.9], None]


def test_coordinates_are_those_of_the_drawing() -> None:
    svg, data = drawing(chart(("gru",)), title="t", description="d")
    (line,) = data["plots"][0]["lines"]  # type: ignore[index]
    group = re.search(r'<g data-series="0">(.*?)</g>', svg, re.DOTALL)
    assert group
    path = re.search(r' d="([^"]*)"', group[1])
    assert path
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path[1])]
    assert np.reshape(numbers, (-1, 2)).tolist() == [pytest.approx(at, abs=0.06) for at in line["at"]]


def test_labelled_lines_are_data_without_further_statements() -> None:
    figure, [[axes]] = new_figure()
    axes.plot([1, 2], [3, float("nan")], label=plain("a $ line"), **style(0))
    axes.plot([1, 2], [3, 4])
    axes.axhline(2.5, label="level")
    axes.axvline(1.5, label="upright")
    axes.scatter([1, 2], [3, 4], label="points")
    axes.legend()
    data = data_of(figure)
    assert data["series"] == ["a $ line", "level", "upright", "points"]
    line, level, upright, points = data["plots"][0]["lines"]
    assert (line["x"], line["y"]) == ([1, 2], [3, None])
    assert line["at"][1][1] is None
    assert (level["x"], level["y"], level["at"][0][0]) == ([None], [2.5], None)
    assert (upright["x"], upright["y"], upright["at"][0][1]) == ([1.5], [None], None)
    assert (points["x"], points["y"]) == ([1, 2], [3, 4])


def test_the_names_in_legends_select_their_series() -> None:
    figure, [[axes]] = new_figure()
    for i, name in enumerate(("one", "two")):
        show(axes.plot([1, 2], [i, 2], label=f"{name} (counted)"), name, part="counted")
    axes.legend()
    for drawn in (chart(), figure):
        svg, data = drawing(drawn, title="t", description="d")
        labels = re.findall(r'<g data-label="(\d)">\s*<text[^>]*>([^<]*)<', svg)
        assert [text.split()[0] for _, text in labels] == data["series"]
        assert [int(index) for index, _ in labels] == [0, 1]
    assert {line["part"] for line in data_of(figure)["plots"][0]["lines"]} == {"counted"}


def test_bars_are_points_at_their_ends() -> None:
    figure, [[axes]] = new_figure()
    axes.bar([0, 1], [2.5, 1], label="counts")
    svg, data = drawing(figure, title="t", description="d")
    line = data["plots"][0]["lines"][0]  # type: ignore[index]
    assert (data["series"], line["x"], line["y"]) == (["counts"], [0, 1], [2.5, 1])
    assert svg.count('data-series="0"') == 2


def test_points_have_the_names_that_are_stated() -> None:
    figure, [[axes]] = new_figure()
    show([axes.scatter([1, 2], [3, 4])], "tokens", names=["a", "b"])
    assert data_of(figure)["plots"][0]["lines"][0]["names"] == ["a", "b"]


def test_heat_maps_are_data_with_the_names_of_rows_and_columns() -> None:
    values = np.array([[0.1, 0.25, 1 / 3], [0.5, 0.75, np.nan]])
    figure, [[axes]] = new_figure()
    image = axes.imshow(values, cmap=HEAT, aspect="auto")
    figure.colorbar(image, label="weight")
    axes.set_xticks(range(3), ["a", plain("$"), "c"])
    axes.set_yticks([0.5], ["between"])
    (plot,) = data_of(figure)["plots"]
    (heat_map,) = plot["maps"]
    assert (heat_map["rows"], heat_map["columns"], heat_map["name"]) == (["0", "1"], ["a", "$", "c"], "weight")
    assert heat_map["values"] == [[0.1, 0.25, 0.333], [0.5, 0.75, None]]
    assert heat_map["box"] == pytest.approx(plot["box"], abs=0.2)


def test_names_of_cells_may_be_stated() -> None:
    figure, [[axes]] = new_figure()
    name_cells(axes.imshow(np.eye(2)), (), ["a", "b"])
    heat_map = data_of(figure)["plots"][0]["maps"][0]
    assert (heat_map["rows"], heat_map["columns"]) == (["0", "1"], ["a", "b"])


def test_large_heat_maps_have_no_data() -> None:
    figure, [[axes]] = new_figure()
    axes.imshow(np.zeros((2, MAX_CELLS)))
    assert data_of(figure) == {}
    page = check_page(render("a", "b", [PageSection("c", "d", [Plot(figure, "large", "A caption.", "a map")])]))
    assert f"Its {2 * MAX_CELLS:,} values are too many for this page" in page.text()


def test_drawing_leaves_no_ids_in_a_figure() -> None:
    figure = chart()
    drawing(figure, title="t", description="d")
    assert not any(artist.get_gid() for artist in figure.findobj())


def test_the_same_charts_are_the_same_bytes() -> None:
    once, again = (render("t", "l", [PageSection("s", "s", [Plot(chart(), "a", "b", "c")])]) for _ in range(2))
    assert once == again


def test_names_of_users_stay_text() -> None:
    names = ("</script><script>alert(1)</script>", HOSTILE, 'a"b')
    html = render("t", "l", [PageSection("s", "s", [Plot(chart(names), "a", "b", "c")])])
    check_page(html)
    (data,) = page_data(html)
    assert data["series"] == list(names)
    labels = re.findall(r'<g data-label="\d">\s*<text[^>]*>([^<]*)<', html)
    assert [unescape(label) for label in labels] == list(names)


def test_ids_are_unique_where_figures_have_the_same_series() -> None:
    plots = [Plot(chart(), "a", "b", "c") for _ in range(3)]
    page = check_page(render("t", "l", [PageSection("s", "s", plots)]))
    assert len(page.all("svg")) == 3
    assert {each["data-series"] for _, each in page.tags if "data-series" in each} == {"0", "1"}


def test_values_of_cells_are_stated_for_sorting() -> None:
    table = Table(["a", "b"], [["x", Cell("1.2 kB", value=1200.0)], ["y", Cell("512 B", value=512)]])
    page = check_page(render("t", "l", [PageSection("s", "s", [table])]))
    assert [each["data-value"] for each in page.all("td")] == ["1200.0", "512"]


def test_the_script_of_a_page_is_small() -> None:
    assert sum((TEMPLATES / name).stat().st_size for name in SCRIPTS) < 31_000
    assert {path.name for path in TEMPLATES.glob("*.js")} == set(SCRIPTS)
