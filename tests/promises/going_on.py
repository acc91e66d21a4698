"""Streams that go on from saved states: in the process that reads a list of them from standard input, or in a test."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import seriatim
from seriatim.recurrence import uncompiled
from seriatim.runs.stream import Stream


def go_on(stream: Stream, rest: str, end: Path) -> list[Any]:
    """How likely the rest of the text is, and what is written after it; where it leads is saved as ``end``."""
    score = stream.feed(rest)
    written = "".join(stream.generate(max_tokens=9, seed=5))
    stream.save(end)
    return [*score, written]


def compiling(wanted: bool) -> Any:
    """Whether recurrences run in compiled code, which takes seconds to compile."""
    return nullcontext() if wanted else uncompiled()


def main() -> None:
    torch.set_num_threads(1)
    found = []
    for job in json.load(sys.stdin):
        with compiling(job["compiled"]):
            run = seriatim.load(job["run"])
            for state, rest, end in job["moments"]:
                found.append(go_on(run.stream().load(state), rest, Path(end)))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
