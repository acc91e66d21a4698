"""Layers of the user's own under a name, here and in the processes that a comparison trains in."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.comparison import workers
from seriatim.comparison.worker import WorkerJob
from seriatim.core.errors import InputError
from seriatim.layers import REGISTRY
from seriatim.layers.outside_code import Origin, import_origins, origin_of

from ..refusals import refused

CELL = """
import torch

import seriatim

class {name}(seriatim.RecurrentCell):
    def __init__(self, input_size, hidden_size, *, scale=1.0):
        super().__init__()
        self.input_size, self.output_size, self.scale = input_size, hidden_size, scale
        self.map = torch.nn.Linear(input_size + hidden_size, hidden_size)

    def initial_state(self, batch_size):
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs, state):
        state = torch.tanh(self.scale * self.map(torch.cat([inputs, state], 1)))
        return state, state
"""


class Cell(seriatim.RecurrentCell):
    """A cell that is never run."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()


class Demanding(Cell):
    """A constructor that a name and two widths are not enough for."""

    def __init__(self, input_size: int, hidden_size: int, heads: int) -> None:
        super().__init__(input_size, hidden_size)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_a_registered_layer_works_wherever_a_layer_is_named() -> None:
    seriatim.register("my-cell", Cell)
    assert seriatim.layers.names()[-1] == "my-cell"
    assert seriatim.layers.find("my-cell") is Cell
    seriatim.register("my-cell", Cell)  # a class that is defined again, as in a notebook
    assert "register" in seriatim.__all__


@pytest.mark.parametrize(
    ("name", "architecture", "kind", "place"),
    [
        ("lstm", Cell, "exists", "register"),
        ("ngram", Cell, "exists", "register"),
        ("a,b", Cell, "malformed", "register"),
        ("a+b", Cell, "malformed", "register"),
        ("a@8", Cell, "malformed", "register"),
        ("", Cell, "malformed", "register"),
        (None, Cell, "malformed", "register"),
        ("mine", dict, "contract", "register"),
        ("mine", Cell(1, 1), "contract", "register"),
        ("mine", Demanding, "contract", ""),
    ],
)
def test_what_cannot_be_registered_is_refused(name: str, architecture: type, kind: str, place: str) -> None:
    with refused(kind, place):
        seriatim.register(name, architecture)


@pytest.mark.parametrize("annotation", ["", ": float", ": 'float'"])
def test_options_of_a_registered_class_need_no_annotation(annotation: str) -> None:
    names: dict = {}
    exec(CELL.format(name="Own").replace("scale=1.0", f"scale{annotation}=1.0"), names)
    seriatim.register("own", names["Own"])
    assert seriatim.layer("own", 2, 3, scale=0.5).cell.scale == 0.5


def test_a_name_is_not_taken_over_by_another_class() -> None:
    seriatim.register("mine", Cell)

    class Another(Cell):
        pass

    with refused("exists", "register"):
        seriatim.register("mine", Another)


def test_another_process_imports_the_class_from_its_module(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "cells_of_a_user.py").write_text(CELL.format(name="Own"))
    monkeypatch.syspath_prepend(tmp_path)
    import cells_of_a_user  # type: ignore[import-not-found]

    seriatim.register("own", cells_of_a_user.Own)
    origin = origin_of("own")
    path = tmp_path / "cells_of_a_user.py"
    assert origin == ("own", "cells_of_a_user", "Own", str(path), hashlib.sha256(path.read_bytes()).hexdigest())
    del REGISTRY["own"]
    import_origins([origin], [])
    assert REGISTRY["own"] is cells_of_a_user.Own
    with refused("conflict", "elsewhere.py"):
        import_origins([origin._replace(path=str(tmp_path / "elsewhere.py"), sha256="")], [])


def test_a_script_is_loaded_without_its_main_part(tmp_path: Path, monkeypatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(CELL.format(name="Own") + "if __name__ == '__main__':\n    raise SystemExit(3)\n")
    import_origins([Origin("own", None, "Own", str(script))], [])
    assert seriatim.layer("own", 2, 3, scale=0.5).output_size == 3


@pytest.mark.parametrize(
    ("body", "kind", "place"),
    [
        ("seriatim.compare({}, layers=['own'])\n", "contract", "script.py"),
        ("seriatim.train({})\n", "contract", "script.py"),
        ("1 / 0\n", "contract", "script.py:18"),
        ("del Own\n", "missing", "script.py"),
    ],
)
def test_a_script_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch, body: str, kind: str, place: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CELL.format(name="Own") + body)
    with refused(kind, place):
        import_origins([Origin("own", None, "Own", str(script))], [])


def test_a_class_that_cannot_be_imported_is_refused_before_anything_is_written(texts, tmp_path: Path) -> None:
    names: dict = {}
    exec(CELL.format(name="Typed"), names)

    class Local(names["Typed"]):  # type: ignore[misc, name-defined]
        pass

    out = tmp_path / "out"
    config = {"data": {"train": texts["train"], "valid": texts["valid"]}, "out": str(out)}
    for architecture, place in ((Local, "a function"), (names["Typed"], "a notebook or an interactive session")):
        REGISTRY.pop("typed", None)
        seriatim.register("typed", architecture)
        with refused("unsupported", "layer 'typed'", place):
            seriatim.compare(config, layers=["rnn", "typed"], steps=1)
    assert not out.exists()


def test_a_comparison_tells_its_processes_where_the_class_is(texts, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "cells_to_compare.py").write_text(CELL.format(name="Own"))
    monkeypatch.syspath_prepend(tmp_path)
    import cells_to_compare  # type: ignore[import-not-found]

    seriatim.register("own", cells_to_compare.Own)
    jobs: list[WorkerJob] = []

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        jobs.append(WorkerJob(**json.loads(json.dumps(vars(job)))))
        raise InputError("enough")

    monkeypatch.setattr(workers, "run_worker", run)
    config = {
        "data": {"train": texts["train"], "valid": texts["valid"]},
        "model": {"hidden_size": 8, "embedding_size": 8},
        "out": str(tmp_path / "out"),
    }
    with pytest.raises(InputError, match="enough"):
        seriatim.compare(config, layers=["rnn", "own+gru"], steps=1)
    assert [record for job in jobs for record in job.registered] == [origin_of("own").to_record()]
    assert not jobs[0].registered
    assert str(tmp_path) in jobs[1].search_path
