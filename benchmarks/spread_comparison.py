"""Measure what it saves to train two rows of a comparison at the same time, with one thread each.

Claim: on two cores, `seriatim compare --workers 2` takes at most 0.6 of the time of one worker with one thread.

    python benchmarks/spread_comparison.py

Four layers read the same number of tokens of the documentation that ships with Python. Both comparisons are run in
turn, after one of each that compiles the layers. The metrics must be the same, bit for bit.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import machine
import record
import torch

import seriatim

LAYERS = ("lstm", "gru", "transformer", "mamba")
MOST = 0.6
"""Of the time of one worker."""


def compare(folder: Path, workers: int, tokens: int, layers: list[str]) -> seriatim.Comparison:
    """Compare with one thread for each worker."""
    torch.set_num_threads(workers)
    config = {
        "task": "lm",
        "data": {"train": "builtin:python-docs"},
        "tokenizer": {"kind": "char"},
        "training": {"baseline": "none", "evaluate_every": 50},
        "out": str(folder),
    }
    return seriatim.compare(config, layers=layers, tokens=tokens, parameters="200k", workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--layers", default=",".join(LAYERS), help="separated by commas")
    arguments = parser.parse_args()
    layers = arguments.layers.split(",")
    print(machine.describe(), flush=True)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    speeds: dict[int, dict[str, list[float]]] = {workers: {layer: [] for layer in layers} for workers in seconds}
    metrics: set[str] = set()
    for turn in range(arguments.repeats + 1):
        for workers in seconds:
            spent, found = compared(workers, arguments.tokens, layers)
            metrics.add(repr({row["layer"]: row["metrics"] for row in found["rows"]}))
            print(f"turn {turn}, {workers} workers: {spent:.1f} s; load {os.getloadavg()[0]:.1f}", flush=True)
            if turn:  # the first one compiles the layers
                seconds[workers].append(spent)
                for row in found["rows"]:
                    speeds[workers][row["layer"]].append(row["tokens_per_second"])
    claim = record.compared(
        f"two workers take at most {MOST} of the time of one",
        seconds[2],
        seconds[1],
        peer="one worker with one thread",
        unit="s",
        least=1 / MOST,
        limit=f"{statistics.median(seconds[1]) / min(2, os.cpu_count() or 1):.3g} s",
    )
    table: list[list[object]] = [["workers", "seconds (median)", "all turns", *(f"{one}, tokens/s" for one in layers)]]
    for workers, taken in seconds.items():
        rates = (f"{statistics.median(speeds[workers][layer]):,.0f}" for layer in layers)
        turns = ", ".join(f"{one:.1f}" for one in taken)
        table.append([workers, f"{statistics.median(taken):.1f}", turns, *rates])
    record.save(
        "spread_comparison",
        claims=[claim, record.Claim(text="the metrics of both are equal, bit for bit", reached=len(metrics) == 1)],
        settings={**vars(arguments), "parameters": "200k", "tokenizer": "char"},
        figures={
            "seconds": {str(workers): taken for workers, taken in seconds.items()},
            "ratio": record.ratios(seconds[2], seconds[1]),
            "tokens a second": {str(workers): one for workers, one in speeds.items()},
        },
        tables=[table],
        notes="The same comparison on the documentation that ships with Python, in turn.",
    )


def compared(workers: int, tokens: int, layers: list[str]) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a comparison, and its results."""
    found: list[seriatim.Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        spent = machine.seconds(lambda: found.append(compare(Path(folder) / "out", workers, tokens, layers)))
    return spent, found[0].results


if __name__ == "__main__":
    main()
