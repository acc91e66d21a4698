"""A compiler that optimises little, and parses the headers of the system once: a third of the time for each program.

The everyday tests compile with it, but for those of `compiled_for_use`; the exhaustive tests compile as for users.
"""

import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from seriatim.compiler.cpp import toolchain as compiler

FOR_USE = compiler.OPTIONS


def quickly() -> Iterator[None]:
    """A fixture for files in which it matters what is compiled, and not how fast it runs."""
    yield from optimised("-O0")


def optimised(level: str) -> Iterator[None]:
    """A fixture that compiles with an option such as ``-O1``."""
    options = [level if option.startswith("-O") else option for option in FOR_USE]
    yield from _with_options((*options, "-include", str(parsed_headers(level, *options))))


def compiled_for_use() -> Iterator[None]:
    """A fixture for files that test what depends on the optimisation, such as the bits of numbers."""
    yield from _with_options(FOR_USE)


def _with_options(options: tuple[str, ...]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "OPTIONS", options)
        compiler.typed_library.cache_clear()
        yield
    compiler.typed_library.cache_clear()


@functools.cache
def parsed_headers(level: str, *options: str) -> Path:
    """The headers of the system that every program includes: g++ parses them once, which is half of its time."""
    path = Path(f"{os.environ['TESTED_HEADERS']}{level}.h")
    with FileLock(f"{path}.lock"):
        if not path.exists():
            text = Path(compiler.__file__).with_name("kernel.h").read_text(encoding="utf-8")
            path.write_text("".join(f"{line}\n" for line in text.split("#ifdef")[0].splitlines() if line[:1] == "#"))
            command = [
                *(compiler.compiler() or ["false"]),
                *options,
                *compiler.CHOICES[0],
                "-x",
                "c++-header",
                str(path),
            ]
            subprocess.run(command, check=False, capture_output=True)  # without the result, the text is included
    return path
