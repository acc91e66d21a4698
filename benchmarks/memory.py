"""Measure the resident memory of a training whose batches have many shapes.

Claim: it stays flat, because the kernels that are compiled for the shapes of bfloat16 products are cached up to a bound
(`seriatim.training.hardware.KERNELS`).

    python benchmarks/memory.py [--minutes 2] [--precision bfloat16] [--layer convolution]

A classifier learns texts of 1 to 60 words, so that hardly any two batches have the same shape. The script prints the
resident memory over time, and its slope over the second half in MB per minute. The same training then runs with the
bounds of PyTorch and oneDNN (1,024 kernels). Both run in processes of their own. The growth of both is printed last.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np

import seriatim
from seriatim.training.hardware import KERNEL_CACHES

LINES = 12
"""Printed of a training."""
TEXTS, LONGEST, WORDS = 4_000, 60, 500


def resident() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Watch(seriatim.Reporter):
    """A reporter that records seconds and resident memory after every step."""

    def __init__(self) -> None:
        self.began, self.seen = time.monotonic(), list[tuple[float, float]]()

    def step(self, record: dict[str, Any]) -> None:
        """Record the seconds since the start and the MB."""
        self.seen.append((time.monotonic() - self.began, resident()))


def watch(layer: str, precision: str, minutes: float) -> list[tuple[float, float]]:
    """Run one training in this process."""
    draw, watching = random.Random(0), Watch()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "texts.tsv"
        texts = (" ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(1, LONGEST))) for _ in range(TEXTS))
        data.write_text("label\ttext\n" + "".join(f"{draw.choice('ab')}\t{text}\n" for text in texts))
        config = {
            "task": "classify",
            "data": {"train": str(data)},
            "model": {"layer": layer, "embedding_size": 64, "hidden_size": 64},
            "training": {"minutes": minutes, "batch_size": 16, "precision": precision},
            "out": f"{folder}/run",
        }
        seriatim.train(config, reporter=watching)
    return watching.seen


def apart(arguments: argparse.Namespace, **variables: str) -> np.ndarray:
    """Run `watch` in a fresh process and return seconds and MB ``(steps, 2)``."""
    command = [sys.executable, __file__, "--one", *("--layer", arguments.layer, "--precision", arguments.precision)]
    command += ["--minutes", str(arguments.minutes)]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True)
    return np.array(json.loads(done.stdout))


def growth(seen: np.ndarray) -> float:
    """Return the MB per minute over the second half, by least squares."""
    seconds, sizes = seen[len(seen) // 2 :].T
    return float(np.polyfit(seconds / 60, sizes, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2, help="minutes of each of the two trainings")
    parser.add_argument("--layer", default="convolution")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(watch(arguments.layer, arguments.precision, arguments.minutes)))
        return
    print(machine.describe())
    slopes = []
    for name, variables in (("bounded", {}), ("1,024 kernels", dict.fromkeys(KERNEL_CACHES, "1024"))):
        seen = apart(arguments, **variables)
        print(f"{name}: {len(seen):,} steps")
        for seconds, size in seen[np.linspace(0, len(seen) - 1, LINES).astype(int)]:
            print(f"  {seconds:6.0f} s  {size:7.0f} MB")
        slopes.append(growth(seen))
        print(f"  {slopes[-1]:+.1f} MB a minute over the second half", flush=True)
    print(f"growth: {slopes[0]:+.1f} MB a minute bounded, {slopes[1]:+.1f} with 1,024 kernels")


if __name__ == "__main__":
    main()
