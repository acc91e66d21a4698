"""Measure what it saves to train two rows of a comparison at the same time, with one thread each.

Claim: on two cores, `seriatim compare --workers 2` takes at most 0.6 of the time of one worker with one thread.

    python benchmarks/spread_comparison.py

Four layers read the same number of tokens of the documentation that ships with Python. Both comparisons are run in
turn, after one of each that compiles the layers. The script checks that the metrics are the same, bit for bit, and
prints the ratio last.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import machine
import torch

import seriatim

LAYERS = ("lstm", "gru", "transformer", "mamba")


def compare(folder: Path, workers: int, tokens: int) -> seriatim.Comparison:
    """Compare with one thread for each worker."""
    torch.set_num_threads(workers)
    config = {
        "task": "lm",
        "data": {"train": "builtin:python-docs"},
        "tokenizer": {"kind": "char"},
        "training": {"baseline": "none", "evaluate_every": 50},
        "out": str(folder),
    }
    return seriatim.compare(config, layers=LAYERS, tokens=tokens, parameters="200k", workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100_000)
    arguments = parser.parse_args()
    print(machine.describe())
    seconds: dict[int, list[float]] = {1: [], 2: []}
    metrics: set[str] = set()
    for turn in range(arguments.repeats + 1):
        for workers in seconds:
            with tempfile.TemporaryDirectory() as folder:
                found: list[seriatim.Comparison] = []

                def run(folder: str = folder, workers: int = workers, found: list = found) -> None:
                    found.append(compare(Path(folder) / "out", workers, arguments.tokens))

                spent = machine.seconds(run)
            rows = {row["layer"]: row["metrics"] for row in found[0].results["rows"]}
            metrics.add(repr(rows))
            speeds = ", ".join(f"{row['layer']} {row['tokens_per_second']:,.0f}" for row in found[0].results["rows"])
            load = os.getloadavg()[0]
            print(f"turn {turn}, {workers} workers: {spent:.1f} s; tokens/s: {speeds}; load {load:.1f}", flush=True)
            if turn:
                seconds[workers].append(spent)
            else:
                print(found[0].results["conditions"] or "one row after another, on a quiet machine")
    assert len(metrics) == 1, "the metrics differ"
    one, two = (statistics.median(each) for each in seconds.values())
    print(f"medians: 1 worker {one:.1f} s, 2 workers {two:.1f} s; metrics are equal; ratio {two / one:.2f}")


if __name__ == "__main__":
    main()
