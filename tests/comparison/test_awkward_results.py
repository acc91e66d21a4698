"""Reports of very many rows, and rows that are damaged, incomplete, removed or from another version."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from seriatim.comparison.assemble import _statistics
from seriatim.comparison.comparison_page import report
from seriatim.comparison.plan import read_row
from seriatim.comparison.results import MAX_DRAWN, ResultRow, Results, TrainingRow
from seriatim.version import __version__

from ..pages.test_page import check_page
from ..refusals import refused
from .comparisons import made_up
from .test_comparison_page import without_plots

REQUIRED = {each.name for each in fields(TrainingRow) if each.default is each.default_factory is MISSING}
ROW = dict.fromkeys(REQUIRED, 1) | {"version": __version__, "metrics": {"loss": 1.0}, "layer": "lstm"}
PLAN = SimpleNamespace(digests={})


def many(count: int = 300) -> dict:
    """Results of many layers with three seeds; the last one is the baseline."""
    values = without_plots(made_up(("rnn", "lstm"), seeds=3))
    first = values["rows"][0]
    worse = [{key: value * (1 + i / 100) for key, value in first["metrics"].items()} for i in range(count)]
    values["rows"] = [first | {"layer": f"rnn+{i}", "metrics": metrics} for i, metrics in enumerate(worse)]
    values["rows"][-1]["baseline"] = True
    return values


def test_figures_of_very_many_layers_show_the_best_and_the_baseline() -> None:
    values = many()
    drawn = [row.layer for row in Results(values).drawn().rows]
    assert drawn == [*(f"rnn+{i}" for i in range(MAX_DRAWN)), "rnn+299"]
    few = Results(many(MAX_DRAWN))
    assert few.drawn() is few


def test_the_page_of_very_many_layers_is_small_and_names_all() -> None:
    html = report(many())
    text = check_page(html).text()
    assert len(html) < 3_000_000
    assert all(f"rnn+{i}" in text for i in range(300))
    assert html.count('class="ranked"') == MAX_DRAWN + 1


def write(folder: Path, row: object) -> None:
    (folder / "rows").mkdir(exist_ok=True)
    (folder / "rows" / "lstm-1.json").write_text(json.dumps(row))
    (folder / "rows" / "lstm-1.safetensors").touch()


def test_a_row_is_read_if_it_has_all_fields(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    row = read_row(tmp_path, "lstm-1", PLAN)
    assert row is not None
    assert ROW.items() <= row.to_json().items()


@pytest.mark.parametrize("row", [[], 1, {}, ROW | {"metrics": []}, ROW])
def test_a_damaged_row_is_refused_in_one_line(row: object, tmp_path: Path) -> None:
    for field in REQUIRED if row == ROW else [None]:
        given = {key: value for key, value in row.items() if key != field} if field else row
        write(tmp_path, given)
        with refused("damaged", "lstm-1.json"):
            read_row(tmp_path, "lstm-1", PLAN)


def test_a_row_of_another_version_is_refused_whatever_it_lacks(tmp_path: Path) -> None:
    write(tmp_path, {"version": "0.0.1"})
    with refused("mismatch", "lstm-1.json"):
        read_row(tmp_path, "lstm-1", PLAN)


def test_a_row_that_was_removed_is_named(tmp_path: Path) -> None:
    with refused("missing", "lstm-1.safetensors"):
        _statistics(tmp_path, ResultRow(layer="lstm", runs=[{"seed": 1}]))
