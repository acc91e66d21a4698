"""Compiles generated text with the machine's C++ compiler, and stores the result in the cache folder.

The compiler is ``$CXX``, or else the first of ``c++``, ``g++`` and ``clang++``; an empty ``CXX=`` turns compilation
off. The key is a hash of the text, the compiler, its options and the processor.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np

from ...storage.disk_cache import cached, named_folder

HEADERS = sorted(Path(__file__).parent.glob("*.h"))
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
CHOICES = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ())
"""Options that some compilers do not support: the first choice that works is used."""


class UncompiledWarning(UserWarning):
    """Nothing is compiled: cells run as plain loops, and steps and other layers with PyTorch's kernels."""


class _FailedError(Exception):
    """The compiler failed."""


_failed: set[str] = set()  # names of programs that could not be compiled and are not tried again in this process
_unloadable: set[Path | None] = set()  # folders of caches whose programs the system does not load


TYPES = {"p": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int, "d": ctypes.c_double}


@functools.cache
def typed_library(text: str, **signatures: str) -> ctypes.CDLL | None:
    """Return the `library` of a text with the types of its functions, or None if it cannot be compiled.

    A signature has a letter of `TYPES` for each argument, and, after a colon, one for the result, if there is one.
    """
    functions = library(text)
    for name, signature in signatures.items() if functions is not None else ():
        arguments, _, result = signature.partition(":")
        function = getattr(functions, name)
        function.argtypes, function.restype = [TYPES[letter] for letter in arguments], TYPES.get(result)
    return functions


def address(values: np.ndarray) -> int:
    """Return where the values of an array begin, which must be stored one after another."""
    assert values.flags.c_contiguous
    return int(values.__array_interface__["data"][0])


def library(text: str) -> ctypes.CDLL | None:
    """Return the functions of a generated text, or None if they cannot be compiled; warn once per process."""
    command = compiler()
    if command is None:
        variable = os.environ.get("CXX")
        problem = (
            "no C++ compiler is found" if variable is None else f"CXX={variable!r} is not a command that can be run"
        )
        _warn(f"{problem}; install one (such as g++), or set CXX to its path")
        return None

    # what failed once in this process would fail again, and a compiler takes seconds to do so
    name, cache = f"unrolled-{_fingerprint(text, command)}", named_folder()
    if name in _failed or cache in _unloadable:
        return None
    reason: object = ""
    try:
        for _ in range(2):  # a program that cannot be opened is damaged, and is compiled again
            folder = cached(name, lambda folder: _compile(text, command, folder))
            try:
                return ctypes.CDLL(str(folder / "program.so"))
            except OSError as error:
                reason = error
                shutil.rmtree(folder, ignore_errors=True)
        _unloadable.add(cache)
        _warn(f"{reason}; set SERIATIM_CACHE to a folder from which programs may be loaded (not mounted with noexec)")
    except _FailedError as error:
        _failed.add(name)
        _warn(str(error))
    return None


def compiler() -> tuple[str, ...] | None:
    """Return the command that compiles C++, or None."""
    variable = os.environ.get("CXX")
    if variable is not None:
        try:
            words = tuple(shlex.split(variable))
        except ValueError:  # an unclosed quotation mark
            return None
        return words if words and shutil.which(words[0]) else None
    return next(((path,) for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def _compile(text: str, command: tuple[str, ...], folder: Path) -> None:
    """Compile a program into a folder; raise _FailedError if no choice of options works, or the text is rejected."""
    source, trial = folder / "program.cpp", folder / "trial.cpp"
    source.write_text(text, encoding="utf-8")
    trial.write_text("int nothing;\n", encoding="utf-8")
    for header in HEADERS:
        shutil.copy(header, folder / header.name)
    reasons = []
    for choice in CHOICES:
        reason = _call([*command, *OPTIONS, *choice], source)
        if reason is None:
            return
        reasons.append(reason)
        if _call([*command, *OPTIONS, *choice], trial) is None:
            break  # the options work; fewer of them would hide the error and give a slow program
    raise _FailedError(f"{command[0]} fails: {reasons[0]}")


def _call(command: list[str], source: Path) -> str | None:
    """Compile one file, and return the first line of the compiler's output that names an error if it fails."""
    command = [*command, "-o", str(source.with_suffix(".so")), str(source)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode == 0:
        return None
    lines = result.stdout.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[0])


def _fingerprint(text: str, command: tuple[str, ...]) -> str:
    status = os.stat(shutil.which(command[0]) or "")
    version = status.st_size, status.st_mtime_ns  # which change when the compiler is replaced
    header = "".join(path.read_text(encoding="utf-8") for path in HEADERS)
    inputs = (text, header, command, version, OPTIONS, CHOICES, _processor())
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:24]


@functools.cache
def _processor() -> str:
    """Return the features of the processor that a compiled program may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"models run uncompiled, which is slower, also with rounded weights: {reason}", UncompiledWarning, stacklevel=2
    )
