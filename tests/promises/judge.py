"""Runs commands on hostile files in a process of its own, whose memory is capped.

Run as a program it takes a file with a JSON object: names to command lines, the first of which must succeed: what that
takes is the baseline. It prints the same names with what came of them.
"""

import contextlib
import io
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MEGABYTE = 1 << 20
MEMORY = 200
"""Megabytes that a command may take beyond those of the first."""
SECONDS = 60
"""After which a command hangs."""


class Outcome(NamedTuple):
    """The exit code, what was said, and by how many megabytes the process had grown at its largest."""

    code: int
    said: str
    grown: float


def judge(folder: Path, good: list[str], cases: dict[str, list[str]]) -> dict[str, Outcome]:
    """What comes of each command."""
    given = folder / "cases.json"
    given.write_text(json.dumps({"": good, **cases}), encoding="utf-8")
    done = subprocess.run([sys.executable, __file__, str(given)], capture_output=True, text=True, check=False)
    found = {name: Outcome(*rest) for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, f"{list(found)[-1:]} is the last before the end: {done.stderr[-2000:]}"
    assert found[""].code == 0, found[""]
    return {name: found[name] for name in cases}


def refused(outcome: Outcome, words: str = "") -> bool:
    """Whether it is bad input, said in one line, and within the memory there is."""
    one_line = outcome.said.startswith("seriatim: error: ") and outcome.said.count("\n") == 1
    return outcome.code == 2 and one_line and outcome.grown < MEMORY and words in outcome.said


def refuse(names: dict[str, tuple[str, Callable[[Path], object]]], run: Path, tmp_path: Path) -> None:
    """Puts something in place of a file of a run, each in a copy of its own; none may be opened.

    Args:
        names: of a case, to the file and to what writes something else there.
        run: a good one.
        tmp_path: for the copies.
    """
    cases = {}
    for i, (name, (inside, place)) in enumerate(names.items()):
        folder = tmp_path / str(i)
        shutil.copytree(run, folder)
        (folder / inside).unlink(missing_ok=True)
        place(folder / inside)
        cases[name] = ["generate", str(folder), "--max-tokens", "3"]
    found = judge(tmp_path, ["generate", str(run), "--max-tokens", "3"], cases)
    wrong = {name: found[name] for name in cases if not refused(found[name], names[name][0])}
    assert not wrong


def _run(arguments: list[str]) -> tuple[int, str]:
    from seriatim.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        signal.alarm(SECONDS)  # whose default is to end the process
        code = main(arguments)
        signal.alarm(0)
    return code, said.getvalue()


def _memory() -> int:
    """Bytes of addresses in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _judge_all(cases: dict[str, list[str]]) -> None:
    largest = 0
    for name, arguments in cases.items():
        code, said = _run(arguments)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if not name:
            largest = now
            resource.setrlimit(resource.RLIMIT_AS, (_memory() + 2 * MEMORY * MEGABYTE, resource.RLIM_INFINITY))
        print(json.dumps([name, code, said, now - largest]), flush=True)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    _judge_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
