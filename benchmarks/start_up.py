"""Measure how soon the command answers: its help, and `predict` of one line with each of some runs.

Claims: `seriatim --help` in under 0.3 s; `seriatim predict` at most 0.6 s after what `import torch` takes.

    python benchmarks/start_up.py [RUN ...]
"""

import argparse
import functools
import shutil
import subprocess
import sys
from pathlib import Path

import machine
import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="trained runs that predict; without them only the help is measured")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    beside = Path(sys.executable).with_name("seriatim")
    command = str(beside) if beside.exists() else shutil.which("seriatim")
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "seriatim --help": [command, "--help"]}
    if arguments.runs:
        commands["import torch"] = [sys.executable, "-c", "import torch"]
    commands |= {run: [command, "predict", run] for run in arguments.runs}
    calls = {name: functools.partial(answer, words) for name, words in commands.items()}
    found = machine.in_turn(calls, arguments.times)
    for name, taken in found.items():
        print(f"{name:16} {taken:.3f} s")
    claims = {"seriatim --help in under 0.3 s": found["seriatim --help"] < 0.3}
    for run in arguments.runs:
        beside_torch = found[run] - found["import torch"]
        claims[f"predict with {Path(run).name} in 0.6 s beside import torch"] = beside_torch <= 0.6
        print(f"{run}: {beside_torch:.2f} s beside import torch; the claim is 0.6 s")
    if arguments.runs:
        rows = [["command", "s"], *([Path(name).name, f"{taken:.2f}"] for name, taken in found.items())]
        settings = {"times": arguments.times, "runs": [Path(run).name for run in arguments.runs]}
        record.save("start-up", claims=claims, settings=settings, figures=found, tables=[rows])
    print(f"ratio {found['seriatim --help'] / found['python -c pass']:.1f}; the claim is 0.3 s")


def answer(command: list[str]) -> None:
    """Run a command that reads one line."""
    subprocess.run(command, check=True, input=b"How far is the moon ?\n", stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
