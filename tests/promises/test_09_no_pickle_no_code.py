"""No file of a run is unpickled or executed: nothing in the program could, and nothing happens when one is opened."""

import ast
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import seriatim
from seriatim.core.errors import InputError

from ..conftest import small_config
from ..refusals import refused
from .code_runners import found_in

SOURCE = Path(seriatim.__file__).parent
LOADS_CODE = {
    "compiler/cpp/toolchain.py": {"ctypes.CDLL", "subprocess.run"},
    "recurrence/triton_runner.py": {"importlib.util.module_from_spec"},
    "training/hardware.py": {"ctypes.CDLL"},
    "processes/child.py": {"subprocess.Popen"},
    "processes/executors.py": {"pickle"},  # pipes to processes of its own, never a file
    "layers/outside_code.py": {"importlib.import_module", "importlib.util.module_from_spec"},
}
"""Where programs come from: text generated from a cell's equations, of a class in Python and of sizes that are numbers,
compiled into the user's cache; the C library of the process; this package itself, in another process; and the file of a
layer that the user names, has registered in the parent process, or allows a run to import."""
CAUGHT = (
    *("import pickle", "import pickle as p", "from pickle import loads", "import dill", "import joblib, os"),
    *(
        "from marshal import load as x",
        "import shelve",
        "import cPickle",
        "import cloudpickle",
        "from torch import load",
    ),
    *("from torch import load as x", "import torch\ntorch.load(p)", "import torch as t\nt.load(p)", "torch.save(x, p)"),
    *("torch.jit.load(p)", "from torch.jit import load as x", "getattr(torch, 'load')(p)", "torch.hub.load(p)"),
    *("import numpy as np\nnp.load(p)", "np.load(p, allow_pickle=True)", "numpy.load(p, allow_pickle=x)"),
    *("from numpy import load", "np.save(p, x)", "np.savez(p, x)", "eval(x)", "exec(x)", "compile(x, 'f', 'exec')"),
    *("import builtins\nbuiltins.eval(x)", "from builtins import exec as x", "f = eval", "__builtins__['eval'](x)"),
    *("__import__(x)", "importlib.import_module(x)", "import yaml\nyaml.load(x)", "yaml.unsafe_load(x)"),
    *("yaml.full_load(x)", "from yaml import unsafe_load", "yaml.load(x, Loader=yaml.UnsafeLoader)"),
    *("yaml.Loader(x)", "subprocess.run(x, shell=True)", "subprocess.Popen(x, shell=y)", "os.system(x)"),
    *("from os import system", "os.popen(x)", "ctypes.CDLL(x)", "import ctypes as c\nc.cdll.LoadLibrary(x)"),
    *("subprocess.run([x])", "from runpy import run_path", "import code"),
)
PASSED = (
    *("re.compile(x)", "torch.compile(x)", "model.eval()", "json.load(x)", "import torch\ntorch.zeros(3)"),
    *("np.load(p, allow_pickle=False)", "yaml.safe_dump(x)", "self.compile(x)", "def load(x): ...\nload(p)"),
    *("from .weights import load", "getattr(torch, 'float32')", "stream.load(p)", "from .run import load as open_run"),
    *("importlib.import_module(f'.{_HOMES[name]}', __name__)", "import importlib.util\nimportlib.util.find_spec('x')"),
)


@pytest.mark.parametrize("text", CAUGHT)
def test_the_scan_sees(text: str) -> None:
    assert found_in(ast.parse(text))


@pytest.mark.parametrize("text", PASSED)
def test_the_scan_lets_pass(text: str) -> None:
    assert not found_in(ast.parse(text))


@pytest.mark.exhaustive
def test_nothing_in_the_program_unpickles_or_executes() -> None:
    files = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    assert len(files) > 150
    found = {name: found_in(ast.parse(path.read_text(encoding="utf-8"))) for name, path in files.items()}
    assert {name: what for name, what in found.items() if what} == LOADS_CODE


@pytest.fixture
def unpickling_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise AssertionError("something is unpickled")

    for owner, name in ((pickle, "Unpickler"), (pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(owner, name, refuse)
    return


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    tokenizer = {"kind": "bpe", "vocabulary_size": 280}
    folder = tmp_path_factory.mktemp("run") / "run"
    return seriatim.train(small_config(texts, folder, tokenizer=tokenizer, training={"steps": 2}))


def test_runs_open_go_on_and_stream_without_unpickling(run, texts, tmp_path: Path, unpickling_fails) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    opened = seriatim.load(folder)
    assert opened.evaluate(texts["test"])["loss"] == run.evaluate(texts["test"])["loss"]
    stream = opened.stream()
    stream.feed("the cat")
    stream.save(tmp_path / "state.safetensors")
    opened.stream().load(tmp_path / "state.safetensors").feed(" likes")
    seriatim.resume(folder, overrides={"training.steps": 3})
    given = {"model": {"layer": "ngram", "options": {"order": 2, "smoothing": "witten-bell"}}, "training": {}}
    config = small_config(texts, tmp_path / "counted")
    counted = seriatim.train({**config, **given})
    from seriatim.interchange.formats import export_run, import_run

    export_run(counted, "arpa", str(tmp_path / "model.arpa"))
    assert import_run(str(tmp_path / "model.arpa"), str(tmp_path / "imported")).score(["t h e"])


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.filterwarnings("ignore:.*lines with it")
@pytest.mark.parametrize("form", ["pickle", "torch", "old torch"])
def test_a_pickle_in_place_of_any_file_is_refused(run, tmp_path: Path, form: str) -> None:
    mark, trap = tmp_path / "mark", tmp_path / "trap"
    if form == "pickle":
        trap.write_bytes(pickle.dumps(Trap(mark)))
    else:
        torch.save({"x": Trap(mark)}, trap, _use_new_zipfile_serialization=form == "torch")
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    state = tmp_path / "state.safetensors"
    shutil.copy(trap, state)
    with refused("damaged", "state.safetensors"):
        run.stream().load(state)
    names = ("model.safetensors", "tokenizer.json", "config.yaml", "labels.json", "summary.json", "metrics.jsonl")
    last = sorted((folder / "checkpoints").iterdir())[-1]
    kept = [path.relative_to(folder) for path in last.iterdir()]
    for name in (*map(Path, names), *kept):
        copied = tmp_path / "copied"
        shutil.copytree(folder, copied)
        shutil.copy(trap, copied / name)
        if str(name) == "metrics.jsonl":  # written anew
            seriatim.resume(copied, overrides={"training.steps": 3})
        elif len(name.parts) == 1:
            with pytest.raises(InputError, match=str(name)):
                seriatim.load(copied)
        else:
            with pytest.warns(UserWarning, match=f"{name}: (missing or )?damaged"):
                seriatim.resume(copied, overrides={"training.steps": 3})
        shutil.rmtree(copied)
    assert not mark.exists()
