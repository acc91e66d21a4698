"""An architecture has one style, which follows from its name alone."""

import itertools

import pytest
from matplotlib.figure import Figure

from seriatim.layers.registry import BUILT_IN, REGISTRY
from seriatim.pages.charts import ChartLine, line_chart
from seriatim.pages.palette import COLOURS, LIGHT
from seriatim.pages.theme import layer_style
from seriatim.tasks import FITTED

NAMES = [*BUILT_IN, *FITTED]
OUTSIDE = [*(f"cells.py:Cell{i}" for i in range(20)), *("+".join(pair) for pair in itertools.pairwise(NAMES))]


def test_no_two_architectures_have_the_same_style() -> None:
    styles = {str(layer_style(name)) for name in NAMES}
    assert len(styles) == len(NAMES)
    assert not styles & {str(layer_style(name)) for name in [*OUTSIDE, *(f"{name}@32" for name in NAMES)]}


def test_no_two_architectures_differ_by_colour_alone() -> None:
    without = {str(layer_style(name) | {"color": ""}) for name in NAMES}
    assert len(without) == len(NAMES)


def test_colours_are_shared_only_where_there_are_too_few() -> None:
    """A task has at most one of the standalone models, which share a colour."""
    used = {layer_style(name)["color"] for name in NAMES}
    assert used == set(COLOURS) <= set(LIGHT.values())
    layers = [layer_style(name)["color"] for name in BUILT_IN]
    assert max(map(layers.count, layers)) <= -(-len(layers) // len(COLOURS)) + 1
    assert not {layer_style(name)["color"] for name in FITTED} & set(layers)


@pytest.mark.parametrize("name", ["lstm", "ngram", *OUTSIDE[:2], "lstm@32", "mamba+transformer"])
def test_a_style_does_not_depend_on_the_other_lines(name: str) -> None:
    def drawn(names: list[str]) -> tuple[str, str, str]:
        figure = line_chart([ChartLine(each, [(1.0, 2.0), (10.0, 3.0)]) for each in names], x="x", y="y")
        assert isinstance(figure, Figure)
        line = figure.axes[0].lines[names.index(name)]
        return str(line.get_color()), str(line.get_linestyle()), str(line.get_marker())

    others = [each for each in ("rnn", "gru", "transformer", "mine") if each != name]
    assert drawn([name]) == drawn([*others, name]) == drawn([name, *others])


def test_a_width_keeps_the_colour_of_its_layer() -> None:
    for name in (*NAMES, OUTSIDE[0]):
        assert {layer_style(f"{name}@{width}")["color"] for width in (8, 32, 128)} == {layer_style(name)["color"]}


def test_a_stack_has_one_style_however_it_is_written() -> None:
    assert layer_style("mamba,transformer") == layer_style("mamba+transformer")


def test_registering_a_layer_changes_no_style(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [layer_style(name) for name in [*NAMES, "mine"]]
    monkeypatch.setitem(REGISTRY, "mine", BUILT_IN["lstm"])
    assert [layer_style(name) for name in [*NAMES, "mine"]] == before
