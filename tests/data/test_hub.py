"""Data sets of the ``datasets`` package, with a stand-in for it: the package itself is not needed."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from seriatim.cli.main import main
from seriatim.data.sources import find_sources
from seriatim.data.tables import read_labelled
from seriatim.data.text import read_objects

from ..refusals import refused


class Value:
    """The type of a column."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class ClassLabel(Value):
    """Numbers that stand for names."""

    names = ("no", "yes")

    def int2str(self, value: int) -> str:
        if not 0 <= value < len(self.names):
            raise ValueError("invalid class")
        return self.names[value]


class Part:
    """What is used of `datasets.Dataset`."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        kinds = {"text": Value("string"), "label": ClassLabel("int64"), "vector": Value("list")}
        self.features = {name: kinds[name] for name in rows[0]}
        self.column_names = list(rows[0])

    def __getitem__(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


ROWS = [{"text": "a", "label": 1, "vector": [0.5]}, {"text": "b\nc", "label": 0, "vector": []}]
PARTS = {"train": Part(ROWS), "validation": Part(ROWS[:1]), "test": Part([{"text": "a", "label": -1}])}


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module: Any = types.ModuleType("datasets")

    def load_dataset(name: str, config: str | None) -> dict[str, Part]:
        if (name, config) not in (("kinds", None), ("kinds", "small")):
            raise FileNotFoundError(f"no data set {name} {config}")
        return PARTS

    module.load_dataset = load_dataset
    module.load_from_disk = lambda name: PARTS["train"]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


@pytest.mark.parametrize("spec", ["hf:kinds", "hf:kinds:small", "hf:kinds:small:train", "hf:kinds::train"])
def test_numbers_of_classes_become_their_names(spec: str) -> None:
    found = [(row.text, row.label) for row in read_labelled(find_sources(spec))]
    assert found == [("a", "yes"), ("b\nc", "no")]


def test_the_part_is_chosen_by_what_it_is_for(tmp_path: Path) -> None:
    (source,) = find_sources("hf:kinds", split="valid")
    assert [record for _, record in read_objects(source)] == [{"text": "a", "label": "yes"}]
    (tmp_path / "dataset_info.json").write_text("{}")
    (source,) = find_sources(f"hf:{tmp_path}")
    assert len(list(read_objects(source))) == 2


def test_check_reads_labelled_data(capsys) -> None:
    assert main(["check", "classify", "--data", "hf:kinds", "--valid", "hf:kinds:small:validation"]) == 0
    assert "yes 1 no 1" in capsys.readouterr().out
    assert main(["check", "classify", "--data", "hf:kinds", "--data.text", "vector"]) == 2
    assert "--data.text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "split", "kind", "place"),
    [
        ("hf:kinds::dev", "train", "ambiguous", "hf:kinds::dev"),
        ("hf:other", "train", "unavailable", "hf:other"),
        ("hf:kinds", "test", "unknown", "hf:kinds:1"),
    ],
)
def test_what_is_not_there_is_named(spec: str, split: str, kind: str, place: str) -> None:
    with refused(kind, place):
        list(read_labelled(find_sources(spec, split=split)))


def test_without_the_package_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("unavailable", "hf:kinds"):
        list(read_labelled(find_sources("hf:kinds")))
