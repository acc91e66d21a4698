"""From generated text to functions: one call of the machine's C++ compiler, kept on disk.

The compiler is ``$CXX``, else the first of ``c++``, ``g++`` and ``clang++`` on the path; ``CXX=`` (empty) turns
compiling off. What is compiled is kept in the cache folder under a name made of the text, the compiler, its options and
the processor, and is found there by every later process.
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

from ...storage.disk_cache import cached

HEADER = Path(__file__).with_name("kernel.h")
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-w", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
CHOICES = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ())
"""Options that not every compiler takes: the first choice that works is used."""


class UncompiledWarning(UserWarning):
    """Recurrent layers run uncompiled: cells as plain loops, others by kernels of torch."""


class _FailedError(Exception):
    """The compiler does not do what it is asked to."""


_failed: set[str] = set()
"""What could not be compiled, so that it is not tried again in this process."""


def library(text: str) -> ctypes.CDLL | None:
    """The functions of a generated text, or None (said once a process) where they cannot be compiled."""
    found = compiler()
    if found is None:
        named = os.environ.get("CXX")
        found_none = "no C++ compiler is found" if named is None else f"CXX={named!r} is not a command that can be run"
        _say(f"{found_none}; install one (such as g++), or set CXX to its path")
        return None
    name = f"unrolled-{_fingerprint(text, found)}"
    if name in _failed:
        return None
    try:
        folder = cached(name, lambda aside: _compile(text, found, aside))
        return _open(folder) or _open(cached(name, lambda aside: _compile(text, found, aside)))
    except _FailedError as error:
        _failed.add(name)
        _say(str(error))
        return None


def _open(folder: Path) -> ctypes.CDLL | None:
    """The program of a folder; without one, or with half of one, the folder is removed."""
    try:
        return ctypes.CDLL(str(folder / "program.so"))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return None


def compiler() -> tuple[str, ...] | None:
    """The command that compiles C++, or None."""
    named = os.environ.get("CXX")
    if named is not None:
        try:
            words = tuple(shlex.split(named))
        except ValueError:  # a quotation that is not closed
            return None
        return words if words and shutil.which(words[0]) else None
    return next(((path,) for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def _compile(text: str, command: tuple[str, ...], folder: Path) -> None:
    """Fills a folder with the compiled program.

    Raises:
        _FailedError: the compiler takes none of the choices of options, or takes one and refuses the program.
    """
    source, trial = folder / "program.cpp", folder / "trial.cpp"
    source.write_text(text, encoding="utf-8")
    trial.write_text("int nothing;\n", encoding="utf-8")
    shutil.copy(HEADER, folder / HEADER.name)
    first = ""
    for choice in CHOICES:
        reason = _call([*command, *OPTIONS, *choice], source, folder / "program.so")
        if reason is None:
            return
        first = first or f"{command[0]} fails: {reason}"
        if _call([*command, *OPTIONS, *choice], trial, folder / "trial.so") is None:
            break  # the options are not to blame: lesser ones would hide a fault and make it slow
    raise _FailedError(first)


def _call(command: list[str], source: Path, program: Path) -> str | None:
    """Compiles one file; the first line of what the compiler says where it fails."""
    whole = [*command, "-o", str(program), str(source)]
    done = subprocess.run(whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return None if done.returncode == 0 else (done.stdout.strip().splitlines() or ["it says nothing"])[0]


def _fingerprint(text: str, command: tuple[str, ...]) -> str:
    parts = (text, _header(), command, _age(shutil.which(command[0])), OPTIONS, CHOICES, _processor())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@functools.cache
def _header() -> str:
    return HEADER.read_text(encoding="utf-8")


def _age(path: str | None) -> tuple[int, int]:
    """A compiler that has been replaced is another one."""
    status = os.stat(path or "")
    return status.st_size, status.st_mtime_ns


@functools.cache
def _processor() -> str:
    """What the compiled program may use of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


@functools.cache
def _say(reason: str) -> None:
    warnings.warn(f"recurrent layers run uncompiled, which is slower: {reason}", UncompiledWarning, stacklevel=2)
