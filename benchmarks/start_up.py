"""Measure how soon the command answers: its help, and `predict` of one line in a new process, with several runs.

Claims: `seriatim --help` in under 0.3 s; `seriatim predict` at most 0.6 s after what `import torch` takes, for each
kind of run.

    python benchmarks/start_up.py [--times 20] [RUN ...]

Without RUN, small runs of all tasks that predict are trained in a few steps, and the compiled code that they need is in
the cache, as it is after the first answer on a machine. The commands take turns.
"""

import argparse
import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import machine
import page_data
import record

import seriatim

HELP_SECONDS, PREDICT_SECONDS = 0.3, 0.6
RUNS = {
    "classify": ("bag", "gru", "transformer"),
    "tag": ("features", "lstm"),
    "seq2seq": ("lstm", "transformer"),
}
"""The layers of the runs that are trained, by task."""
EMPTY, HELP, TORCH = "python -c pass", "seriatim --help", "import torch"


def trained(folder: Path) -> dict[str, str]:
    """Train small runs, and return their folders by names."""
    found = {}
    data = page_data.made_up(folder / "data")
    for task, layers in RUNS.items():
        for layer in layers:
            out = str(folder / f"{task}-{layer}")
            training = {} if layer in ("bag", "features") else {"training": {**record.TRAINING, "steps": 5}}
            files = {"train": data[task].files["data"], "valid": data[task].files["valid"]}
            seriatim.train({"task": task, "data": files, "model": {"layer": layer}, **training, "out": out})
            found[f"{task} {layer}"] = out
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="trained runs that predict")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    beside = Path(sys.executable).with_name("seriatim")
    command = str(beside) if beside.exists() else shutil.which("seriatim")
    with tempfile.TemporaryDirectory() as folder:
        runs = {Path(run).name: run for run in arguments.runs} or trained(Path(folder))
        commands = {EMPTY: [sys.executable, "-c", "pass"], HELP: [command, "--help"]}
        commands[TORCH] = [sys.executable, "-c", TORCH]
        commands |= {name: [command, "predict", run] for name, run in runs.items()}
        calls: dict[str, Callable[[], object]] = {
            name: functools.partial(answer, words) for name, words in commands.items()
        }
        for call in calls.values():
            call()  # what is compiled once is in the cache
        found = machine.times_in_turn(calls, arguments.times)
    more = {name: [a - b for a, b in zip(found[name], found[TORCH], strict=True)] for name in runs}
    worst = max(more, key=lambda name: median(more[name]))
    claims = [
        record.Claim(
            text=f"`predict` of a line in a new process, {PREDICT_SECONDS} s beside PyTorch (the slowest: {worst})",
            reached=median(more[worst]) <= PREDICT_SECONDS,
            peer="import torch",
            ours=f"{median(found[worst]):.2f} s",
            theirs=f"{median(found[TORCH]):.2f} s",
            limit=f"{median(found[TORCH]) + PREDICT_SECONDS:.2f} s",
        ),
        record.Claim(
            text=f"`seriatim --help` in under {HELP_SECONDS} s",
            reached=median(found[HELP]) < HELP_SECONDS,
            peer="an empty program of Python",
            ours=f"{median(found[HELP]):.3f} s",
            theirs=f"{median(found[EMPTY]):.3f} s",
            limit=f"{HELP_SECONDS} s",
        ),
    ]
    rows = [["command", "s", "s beside import torch"]]
    for name, taken in found.items():
        rows.append([name, f"{median(taken):.2f}", f"{median(more[name]):.2f}" if name in more else ""])
    record.save(
        "start_up",
        claims=claims,
        settings={"times": arguments.times, "runs": list(runs)},
        figures={"seconds": found, "beside import torch": more},
        tables=[rows],
        notes="Whole processes, one after another in turn, medians; the files are in the page cache. The runs are "
        "small and were trained in a few steps.",
    )


def answer(command: list[str]) -> None:
    """Run a command that reads one line."""
    subprocess.run(command, check=True, input=b"How far is the moon ?\n", stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
