"""Layers named as ``cells.py:FastSlow``: imported on request, recorded in the run, otherwise never imported."""

import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.core.errors import InputError
from seriatim.layers import REGISTRY, registry
from seriatim.layers.outside_code import import_references, register_reference

from ..conftest import small_config
from ..refusals import refused
from .test_register import CELL


@pytest.fixture(autouse=True)
def _registry_and_path_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    layers, modules = dict(REGISTRY), set(sys.modules)
    yield
    REGISTRY.clear()
    REGISTRY.update(layers)
    for name in set(sys.modules) - modules:
        if name.startswith("seriatim_code_"):
            del sys.modules[name]


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of cells in the current folder; whoever imports it leaves a mark."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cells.py"
    mark = f"import pathlib\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\n"
    others = "class NoCell: pass\nclass Narrow(Own):\n    def __init__(self, size): pass\n"
    path.write_text(mark + CELL.format(name="Own") + others)
    return path


@pytest.fixture
def run(cells: Path, texts, tmp_path: Path) -> Path:
    """The folder of a run of ``cells.py:Own``, in a process that does not know the cell any more."""
    config = small_config(texts, tmp_path / "run", model={"layer": "cells.py:Own"}, training={"steps": 2})
    seriatim.train(config)
    del REGISTRY["cells.py:Own"]
    for name in [name for name in sys.modules if name.startswith("seriatim_code_")]:
        del sys.modules[name]
    (tmp_path / "mark").unlink()
    return tmp_path / "run"


def test_a_run_records_the_file_the_class_and_the_digest(run: Path, cells: Path) -> None:
    (layer,) = json.loads((run / "code.json").read_text())["layers"]
    assert layer["name"] == "cells.py:Own"
    assert layer["path"] == str(cells)
    assert layer["class"] == "Own"
    assert layer["sha256"] == hashlib.sha256(cells.read_bytes()).hexdigest()
    assert not list(run.rglob("*.py"))


def test_a_run_imports_code_only_with_permission(run: Path, cells: Path, texts) -> None:
    for opens in (seriatim.load, seriatim.resume, lambda path: seriatim.inspect(path, "the cat")):
        with refused("forbidden", "run") as raised:
            opens(run)
        assert len(str(raised.value).splitlines()) == 1
    assert not (cells.parent / "mark").exists()
    loaded = seriatim.load(run, allow_code=True)
    assert (cells.parent / "mark").exists()
    assert loaded.evaluate(texts["test"])["tokens"] > 0


def test_changed_code_is_refused_with_both_digests(run: Path, cells: Path) -> None:
    before = hashlib.sha256(cells.read_bytes()).hexdigest()
    cells.write_text(cells.read_text() + "# changed\n")
    after = hashlib.sha256(cells.read_bytes()).hexdigest()
    for allow_code in (False, True):
        with pytest.raises(InputError, match=f"cells.py: changed since .*{before[:12]} then, {after[:12]} now"):
            seriatim.load(run, allow_code=allow_code)
    assert not (cells.parent / "mark").exists()
    with pytest.warns(UserWarning, match=f"{before[:12]} then, {after[:12]} now.*; the changed file is used"):
        assert seriatim.load(run, allow_code="changed").config.model.layer == "cells.py:Own"


def test_a_permission_that_is_no_permission_imports_nothing(run: Path, cells: Path) -> None:
    with refused("range", "allow_code"):
        seriatim.load(run, allow_code="no")
    assert not (cells.parent / "mark").exists()


def test_missing_code_is_named(run: Path, cells: Path) -> None:
    cells.unlink()
    for allow_code in (False, True, "changed"):
        with refused("missing", "cells.py"):
            seriatim.load(run, allow_code=allow_code)


@pytest.mark.parametrize("text", ["[]", "{", '{"format": "seriatim code 1", "layers": [{"name": 1}]}', "{}"])
def test_a_damaged_record_imports_nothing(run: Path, cells: Path, text: str) -> None:
    (run / "code.json").write_text(text)
    with refused("damaged", "code.json"):
        seriatim.load(run, allow_code=True)
    assert not (cells.parent / "mark").exists()


def test_a_run_without_a_record_imports_nothing(run: Path, cells: Path) -> None:
    (run / "code.json").unlink()
    with refused("missing", "code.json"):
        seriatim.load(run, allow_code=True)
    assert not (cells.parent / "mark").exists()


def test_a_training_goes_on_with_permission(run: Path, cells: Path) -> None:
    resumed = seriatim.resume(run, overrides={"training.steps": 3}, allow_code=True)
    assert resumed.summary["steps"] == 3
    cells.write_text(cells.read_text() + "# changed\n")
    del REGISTRY["cells.py:Own"]
    with pytest.warns(UserWarning, match="the changed file is used"):
        again = seriatim.resume(run, overrides={"training.steps": 4}, allow_code="changed")
    assert again.summary["steps"] == 4
    (layer,) = json.loads((run / "code.json").read_text())["layers"]
    assert layer["sha256"] == hashlib.sha256(cells.read_bytes()).hexdigest()


def test_a_file_that_is_edited_while_its_cell_trains_does_not_end_the_training(run: Path, cells: Path) -> None:
    loaded = seriatim.load(run, allow_code=True)
    cells.write_text(cells.read_text() + "# edited\n")
    assert seriatim.load(run).config == loaded.config


def test_one_name_for_other_code_is_refused(run: Path, cells: Path, tmp_path: Path) -> None:
    cells.write_text(cells.read_text() + "# another\n")
    import_references("cells.py:Own")
    with refused("mismatch", "run"):
        seriatim.load(run, allow_code=True)


def test_an_edited_file_is_imported_again(cells: Path) -> None:
    import_references("cells.py:Own")
    before = REGISTRY["cells.py:Own"]
    import_references("cells.py:Own")
    assert REGISTRY["cells.py:Own"] is before
    cells.write_text(cells.read_text().replace("scale=1.0", "factor=1.0").replace(" scale", " factor"))
    import_references("cells.py:Own")
    assert "factor" in seriatim.layers.options_of("cells.py:Own")


def test_a_class_registers_under_its_own_name_for_a_comparison(cells: Path, tmp_path: Path) -> None:
    assert register_reference("cells.py:Own") == "Own"
    assert register_reference("cells.py:Own") == "Own"
    (tmp_path / "others.py").write_text(CELL.format(name="Own"))
    assert register_reference("others.py:Own") == "others-Own"
    assert REGISTRY["Own"] is not REGISTRY["others-Own"]


@pytest.mark.parametrize(
    ("reference", "kind", "place", "value"),
    [
        ("none.py:Own", "missing", "none.py", ""),
        ("cells.py:On", "missing", "cells.py", "Own"),
        ("cells.py", "malformed", "layer 'cells.py'", ""),
        ("cells.py:NoCell", "contract", "cells.py:20", ""),
        ("cells.py:Narrow", "contract", "cells.py:22", ""),
        ("cells.py:", "malformed", "layer 'cells.py:'", ""),
        (":Own", "malformed", "layer ':Own'", ""),
        ("cells.py:1", "malformed", "layer 'cells.py:1'", ""),
        ("text.txt:Own", "missing", "text.txt", ""),
        ("no_such_module:Own", "missing", "", "no_such_module"),
        ("cells.more:Own", "missing", "", "cells.more"),
        ("syntax.py:Own", "contract", "syntax.py:2", ""),
        ("fails.py:Own", "contract", "fails.py:2", ""),
        ("exits.py:Own", "contract", "exits.py:1", ""),
        ("trains.py:Own", "contract", "trains.py", ""),
        (".:Own", "malformed", "", "."),
    ],
)
def test_bad_references_are_one_line(cells: Path, reference: str, kind: str, place: str, value: str) -> None:
    for name, text in {
        "text.txt": "",
        "syntax.py": "x = 1\ndef f(:\n",
        "fails.py": "x = 1\ny = x / 0\n",
        "exits.py": "raise SystemExit(3)\n",
        "trains.py": "import seriatim\nseriatim.train({})\n",
    }.items():
        (cells.parent / name).write_text(text)
    with refused(kind, place, value) as raised:
        import_references(reference)
    assert len(str(raised.value).splitlines()) == 1


def test_a_module_is_imported_from_the_current_folder(cells: Path, tmp_path: Path) -> None:
    (tmp_path / "package_of_a_user").mkdir()
    (tmp_path / "package_of_a_user" / "cells.py").write_text(CELL.format(name="Own"))
    import_references("package_of_a_user.cells:Own")
    assert seriatim.layer("package_of_a_user.cells:Own", 2, 3).output_size == 3


class _Installed:
    """An entry point of a package."""

    def __init__(self, name: str, loads: object) -> None:
        self.name, self.value, self.loads = name, f"package:{name}", loads

    def load(self) -> object:
        if isinstance(self.loads, Exception):
            raise self.loads
        return self.loads


@pytest.mark.exhaustive
def test_installed_packages_add_layers_and_a_broken_one_hurts_no_other(cells: Path, monkeypatch, capsys) -> None:
    from seriatim.cli.main import main
    from seriatim.layers.outside_code import import_reference

    points = [
        _Installed("their-cell", import_reference("cells.py:Own")),
        _Installed("broken", ImportError("no module named x")),
        _Installed("odd", dict),
    ]
    monkeypatch.setattr(registry, "entry_points_by_name", lambda: {point.name: point for point in points})
    assert {"their-cell", "broken", "odd"} <= set(seriatim.layers.names())
    assert "their-cell" not in REGISTRY
    assert seriatim.layer("their-cell", 2, 3).output_size == 3
    for name, message in (("broken", "cannot be imported"), ("odd", "neither a layer nor a cell")):
        with pytest.raises(InputError, match=message):
            seriatim.layer(name, 2, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert main(["layers", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"lstm", "their-cell"} <= names
    assert not {"broken", "odd"} & names
    assert sorted(str(warning.message).split(":")[0] for warning in caught) == ["layer 'broken'", "layer 'odd'"]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("return super().forward(inputs, state.add_(1))", r"Bad breaks law 6 .*changes its state in place"),
        ("return super().forward(inputs, state)[0]", r"Bad breaks the contract: forward returns a Tensor"),
        ("return super().forward(inputs - inputs.mean(0), state)", r"Bad breaks law 7 .* differ by up to \d"),
        ("return torch.cat([inputs] * 2, 1), state", r"Bad breaks the contract: inputs .* give outputs"),
        ("1 / 0", r"Bad breaks the contract: it raises ZeroDivisionError"),
    ],
)
def test_a_cell_that_breaks_the_contract_is_refused_before_training(
    cells: Path, texts, tmp_path: Path, step: str, message: str
) -> None:
    cells.write_text(
        CELL.format(name="Own") + f"class Bad(Own):\n    def forward(self, inputs, state):\n        {step}\n"
    )
    line = len(cells.read_text().splitlines()) - 1
    config = small_config(texts, tmp_path / "out", model={"layer": "cells.py:Bad"})
    with pytest.raises(InputError, match=rf"cells\.py:{line + (step == '1 / 0')}: {message}") as raised:
        seriatim.train(config)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=message):
        seriatim.compare({"data": {"train": texts["train"], "valid": texts["valid"]}}, layers=["cells.py:Bad"], steps=1)


def test_a_wrong_option_is_blamed_on_the_configuration(cells: Path, texts, tmp_path: Path) -> None:
    gain = "class Gain(Own):\n    def __init__(self, n, m, *, gain=1.0):\n        super().__init__(n, m)\n"
    cells.write_text(CELL.format(name="Own") + f"{gain}        gain * 2.5\n")
    model = {"layer": "cells.py:Gain", "options": {"gain": "abc"}}
    with refused("range", "model.options.gain"):
        seriatim.train(small_config(texts, tmp_path / "out", model=model))


def test_a_cell_that_cannot_be_built_is_refused_before_training(cells: Path, texts, tmp_path: Path) -> None:
    cells.write_text(CELL.format(name="Own").replace("super().__init__()", "1 / 0"))
    with refused("contract", "cells.py:7"):
        seriatim.train(small_config(texts, tmp_path / "out", model={"layer": "cells.py:Own"}))
