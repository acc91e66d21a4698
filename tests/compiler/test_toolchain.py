"""The compiler is called once a program, and not at all where there is none; C++ functions are torch's to rounding."""

import ctypes
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from seriatim.compiler.cpp import toolchain as compiler
from seriatim.compiler.cpp.toolchain import library
from seriatim.recurrence import UncompiledWarning, explain

from ..exhaustive import parameters
from ..quick_compiler import quickly
from ..recurrence.own_cells import agree, elman

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)

NAMES = ("sigmoid", "tanh", "exp", "expm1", "log", "log1p", "sqrt", "abs", "erf", "sin", "cos", "sign")
FUNCTIONS = {
    **{name: getattr(torch, name) for name in NAMES},
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),  # torch's own gives up at 20
}
PAIRS = {"maximum": torch.maximum, "minimum": torch.minimum, "power": torch.pow}
TYPES = {torch.float64: ("double", 1e-14), torch.float32: ("float", 4e-7)}


@pytest.fixture(scope="module", params=TYPES, ids=str)
def functions(request: pytest.FixtureRequest):
    """All functions of the kernel for one type, as functions of arrays."""
    one = "for (long i = 0; i < n; ++i) z[i] = f_{0}(x[i]);"
    two = "for (long i = 0; i < n; ++i) z[i] = f_{0}(x[i], y[i]);"
    head = 'extern "C" void a_{0}(const real* x, const real* y, real* z, long n) {{ '
    bodies = [(head + one + " }}").format(name) for name in FUNCTIONS]
    bodies += [(head + two + " }}").format(name) for name in PAIRS]
    found = library("\n".join([f"typedef {TYPES[request.param][0]} real;", '#include "kernel.h"', *bodies]))

    def call(name: str, x: Tensor, y: Tensor | None = None) -> Tensor:
        x, z = x.contiguous(), torch.empty_like(x)
        y = x if y is None else y.contiguous()
        pointers = [ctypes.c_void_p(value.data_ptr()) for value in (x, y, z)]
        getattr(found, f"a_{name}")(*pointers, ctypes.c_long(len(x)))
        return z

    return request.param, call


def same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """To rounding; numbers that only fit without their full precision may be zero."""
    tiny = 4 * torch.finfo(found.dtype).tiny
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=tolerance, atol=tiny, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_value(functions, name: str) -> None:
    dtype, call = functions
    decades = torch.logspace(-300, 300, 20001) if dtype == torch.float64 else torch.logspace(-37, 38, 20001)
    x = torch.cat([torch.linspace(-k, k, 20001, dtype=torch.float64) for k in (1, 20, 750)] + [decades, -decades])
    x = x.to(dtype)
    same(call(name, x), FUNCTIONS[name](x.double()), TYPES[dtype][1])


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "sign"])
def test_values_that_are_no_numbers(functions, name: str) -> None:
    dtype, call = functions
    largest = torch.finfo(dtype).max
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, largest, -largest, 1.0, -1.0], dtype=dtype)
    same(call(name, x), FUNCTIONS[name](x), TYPES[dtype][1])


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_values(functions, name: str) -> None:
    dtype, call = functions
    values = torch.tensor([0.0, 1.0, -1.0, 2.5, -3.0, 0.3, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    x, y = torch.cartesian_prod(values, values).unbind(1)
    same(call(name, x, y), PAIRS[name](x, y), TYPES[dtype][1])


# ---- the compiler


def log_compiler(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Use a compiler that writes down its calls, and a cache of its own."""
    script, calls = folder / "cxx", folder / "calls"
    real = compiler.compiler()
    assert real is not None
    calls.touch()
    script.write_text(f'#!/bin/sh\necho call >> {calls}\nexec {" ".join(real)} "$@"\n')
    script.chmod(0o755)
    patch.setenv("CXX", str(script))
    patch.setenv("SERIATIM_CACHE", str(folder / "cache"))
    return script


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return log_compiler(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def logged_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, after the first program was compiled."""
    with pytest.MonkeyPatch.context() as patch:
        script = log_compiler(tmp_path_factory.mktemp("compiled"), patch)
        agree(elman(4))
    return script


@pytest.fixture
def compiled(logged_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The compiler, and the only folder of a cache, which may be damaged."""
    shutil.copytree(logged_once.parent / "cache", tmp_path / "cache")
    (logged_once.parent / "calls").write_text("call\n")
    monkeypatch.setenv("CXX", str(logged_once))
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    (folder,) = tmp_path.joinpath("cache").iterdir()
    return logged_once, folder


def calls(script: Path) -> int:
    return len((script.parent / "calls").read_text().splitlines())


@pytest.mark.exhaustive
def test_one_program_serves_every_size_and_every_process(logged: Path) -> None:
    agree(elman(4))
    assert calls(logged) == 1
    agree(elman(19))
    assert calls(logged) == 1
    imports = "from tests.quick_compiler import quickly; from tests.recurrence.own_cells import agree, elman"
    code = f"{imports}; f = quickly(); next(f); agree(elman(7))"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env={**os.environ, "PYTHONPATH": path})
    assert calls(logged) == 1
    logged.write_text(logged.read_text() + "# another version\n")
    agree(elman(4))
    assert calls(logged) == 2


def test_a_compiling_that_was_cut_off_is_done_again(compiled: tuple[Path, Path]) -> None:
    script, folder = compiled
    half = folder.rename(f"{folder}.half") / "program.so"
    half.unlink()
    half.write_bytes(b"half")
    agree(elman(5))
    assert calls(script) == 2


def test_a_program_that_is_gone_is_compiled_again(compiled: tuple[Path, Path]) -> None:
    script, folder = compiled
    (folder / "program.so").unlink()
    with pytest.warns(UserWarning, match=r"program\.so: damaged; this entry of the cache is built again"):
        agree(elman(5))
    assert calls(script) == 2


@pytest.mark.parametrize(
    "kind", parameters(("truncated", "without its functions", "changed"), everyday=("without its functions",))
)
def test_a_damaged_program_is_compiled_again_before_it_is_loaded(compiled: tuple[Path, Path], kind: str) -> None:
    """Loading half of a program, or one without its functions, would kill the process."""
    script, folder = compiled
    program = folder / "program.so"
    content = program.read_bytes()
    if kind == "truncated":
        program.write_bytes(content[: len(content) // 2])
    elif kind == "changed":
        program.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    else:
        (folder / "trial.cpp").write_text("int nothing;\n")
        subprocess.run([script, "-shared", "-fPIC", "-o", program, folder / "trial.cpp"], check=True)
        script.parent.joinpath("calls").write_text("call\n")
    with pytest.warns(UserWarning, match=r"program\.so: damaged"):
        agree(elman(5))
    assert calls(script) == 2


@pytest.mark.parametrize("command", ["", "false", "no-such-compiler", f"{sys.executable} -c 1/0"])
def test_without_a_compiler_cells_run_as_loops_and_one_warning_says_so(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if command == "false" and not shutil.which("false"):
        pytest.skip("no such command")
    monkeypatch.setenv("CXX", command)
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path))
    compiler._warn.cache_clear()
    with pytest.warns(UncompiledWarning, match="models run uncompiled") as said:
        agree(elman(), fast=False)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(elman(), fast=False)
    assert "there is no working C++ compiler" in explain(elman())
    compiler._warn.cache_clear()


def test_a_program_is_never_built_with_lesser_options_to_hide_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path))
    compiler._warn.cache_clear()
    with pytest.warns(UncompiledWarning, match="fails"):
        assert library("#ifdef _OPENMP\n#error a fault\n#endif\n") is None
    compiler._warn.cache_clear()


def test_a_processor_with_other_vector_units_gets_its_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    command = compiler.compiler()
    if command is None:
        pytest.skip("no C++ compiler")
    names = {compiler._fingerprint("int nothing;", command)}
    monkeypatch.setattr(compiler, "_processor", lambda: "flags : another processor")
    names.add(compiler._fingerprint("int nothing;", command))
    assert len(names) == 2


def test_a_cache_from_which_nothing_can_be_loaded_is_given_up(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose temporary folder is mounted with noexec."""

    def refuse(path: str) -> None:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(compiler, "ctypes", SimpleNamespace(CDLL=refuse))
    monkeypatch.setattr(compiler, "_unloadable", set())
    compiler._warn.cache_clear()
    with pytest.warns(compiler.UncompiledWarning, match="failed to map segment.*noexec"):
        assert compiler.library("int one;") is None
    assert calls(logged) == 2
    assert compiler.library("int one;") is None
    assert compiler.library("int two;") is None
    assert calls(logged) == 2
