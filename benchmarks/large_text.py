"""Make large texts on the spot from the built-in documentation, for the benchmarks of large corpora."""

import random
from pathlib import Path

from seriatim.data.sources import find_sources
from seriatim.data.text import read_lines

NAMES = 1_000_000
"""The number of different names that are put into the lines, of which low numbers are common."""


def make_text(path: Path, size: int, *, seed: int = 1) -> Path:
    """Write a text of ``size`` bytes: the lines of the documentation in ever new orders, every tenth with a name."""
    draw = random.Random(seed)
    lines = [line for line in read_lines(find_sources("builtin:python-docs")) if line.strip()]
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            draw.shuffle(lines)
            named = (f"{line} name{int(NAMES ** draw.random())}" if draw.random() < 0.1 else line for line in lines)
            text = "\n".join(named)[: size - written]
            written += len(text.encode()) + 1
            file.write(text + "\n")
    return path
