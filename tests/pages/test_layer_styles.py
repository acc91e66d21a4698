"""An architecture has one style, which follows from its name alone."""

import itertools
import re

import numpy as np
import pytest

from seriatim.layers.registry import BUILT_IN, REGISTRY
from seriatim.pages.chart import Axis, Chart, Series
from seriatim.pages.chart_svg import draw
from seriatim.pages.palette import COLOURS, DARK, LIGHT
from seriatim.pages.theme import layer_style
from seriatim.tasks import FITTED

from .colour_vision import VISION, ciede2000, contrast, lab

SHARMA = [  # published pairs of CIELAB colours and their differences
    ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
    ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0),
    ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
    ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
    ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
    ((50.0, 2.5, 0.0), (56.0, -27.0, -3.0), 31.9030),
    ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
]
DEMONSTRATION = ["prior", "ngram", "window", "rnn", "lstm", "gru", "convolution", "transformer", "mamba"]
NAMES = [*BUILT_IN, *FITTED]
OUTSIDE = [*(f"cells.py:Cell{i}" for i in range(20)), *("+".join(pair) for pair in itertools.pairwise(NAMES))]


@pytest.mark.parametrize(("first", "second", "difference"), SHARMA)
def test_the_difference_of_colours_is_the_published_one(
    first: tuple[float, ...], second: tuple[float, ...], difference: float
) -> None:
    for pair in ((first, second), (second, first)):
        assert ciede2000(*map(np.array, pair)) == pytest.approx(difference, abs=5e-5)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("vision", "smallest"), [("normal", 15.0), ("protan", 8.0), ("deutan", 8.0)])
def test_colours_differ_from_each_other(theme: dict[str, str], vision: str, smallest: float) -> None:
    colours = [lab(theme[f"c{i}"], vision) for i in range(1, len(COLOURS) + 1)]
    assert min(ciede2000(*pair) for pair in itertools.combinations(colours, 2)) >= smallest
    assert np.allclose(VISION[vision].sum(1), 1, atol=1e-5)  # white stays white


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_seen_on_the_paper(theme: dict[str, str]) -> None:
    assert min(contrast(theme[f"c{i}"], theme["paper"]) for i in range(1, len(COLOURS) + 1)) >= 3.0


def test_the_architectures_of_the_demonstration_have_different_colours() -> None:
    assert len({layer_style(name)["color"] for name in DEMONSTRATION}) == len(DEMONSTRATION) == len(COLOURS)


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
    def drawn(names: list[str]) -> set[str]:
        series = [Series(each, [1.0, 10.0], [2.0, 3.0]) for each in names]
        svg = draw(Chart("t", Axis("x"), Axis("y"), series), "figure-1").svg
        lines = re.findall(rf'data-series="{names.index(name)}">\s*<path [^>]*style="([^"]*)"', svg)
        return set(lines)

    others = [each for each in ("rnn", "gru", "transformer", "mine") if each != name]
    assert drawn([name])
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
