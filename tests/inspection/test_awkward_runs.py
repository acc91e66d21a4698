"""Runs whose files are removed after loading, and labels and texts that are hostile, very long or very many."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim.inspection.inspection import inspect
from seriatim.recurrence import uncompiled

from ..pages.test_page import check_page
from ..refusals import refused

LABELS = ['<script>alert(1)</script> & "x"', "עברית (כן!)", "عربي", "e\u0301\u0302", "y" * 10_000]
MARKUP = "</td><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


def train(folder: Path, rows: list[tuple[str, str]]) -> Any:
    lines = [json.dumps({"label": label, "text": text}) for label, text in rows]
    for name in ("train.jsonl", "valid.jsonl"):
        (folder / name).write_text("\n".join(lines) + "\n")
    return seriatim.train(
        {
            "task": "classify",
            "data": {"train": str(folder / "train.jsonl"), "valid": str(folder / "valid.jsonl")},
            "model": {
                "layer": "gru",
                "embedding_size": 4,
                "hidden_size": 4,
                "options": {"word_features": [], "characters": "none"},
            },
            "training": {"steps": 2, "batch_size": 4, "baseline": "none"},
            "out": str(folder / "run"),
        }
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hostile")
    return train(folder, [(label, f"{MARKUP} {label} {i % 3}") for i in range(4) for label in LABELS])


@pytest.mark.exhaustive
def test_hostile_labels_and_texts_stay_text(hostile: Any, tmp_path: Path) -> None:
    page = inspect(hostile, f"{MARKUP} {LABELS[2]} {'z' * 10_000} \x1b", out=tmp_path / "page.html")
    html = page.path.read_text()
    text = check_page(html).text()
    assert MARKUP in text
    assert "\x1b" not in html
    assert len(html) < 3_000_000


@pytest.mark.exhaustive
def test_a_run_whose_folder_is_removed_after_loading_is_inspected(hostile: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(hostile.path, folder)
    run = seriatim.load(folder)
    shutil.rmtree(folder)
    page = inspect(run, "some words", out=tmp_path / "page.html")
    check_page(page.path.read_text())
    with refused("missing", "--out"):
        inspect(run, "some words")


@pytest.mark.parametrize(
    "given", [{"run": None}, {"text": 5}, {"out": 5}, {"out": "a\0b"}, {"permute": "x"}, {"beam": None}], ids=str
)
def test_arguments_of_another_type_are_refused(hostile: Any, given: dict[str, Any]) -> None:
    with pytest.raises(seriatim.InputError):
        inspect(**{"run": hostile, "text": "some words", **given})


@pytest.mark.exhaustive
def test_very_many_classes_give_a_small_page(tmp_path: Path) -> None:
    run = train(tmp_path, [(f"class {i}", f"text {i}") for i in range(10_000)])
    html = inspect(run, "text 17").path.read_text()
    text = check_page(html).text()
    assert len(html) < 3_000_000
    assert "labels with the most errors" in text
