"""Compare training with and without returning freed memory to the system at every step.

Claim: keeping freed memory is faster and needs little more memory.

    python benchmarks/freed_memory.py

The script runs short trainings on the documentation that ships with Python, each in its own process, with both settings
in turn. It prints medians of tokens per second and the largest resident memory.
"""

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from unittest import mock

import machine

import seriatim

JOBS = {
    "lstm, 2 × 512": ({"layer": "lstm", "hidden_size": 512, "num_layers": 2}, 100),
    "transformer, 2 × 256": ({"layer": "transformer", "num_layers": 2}, 40),
}


def train(name: str, *, kept: bool) -> dict[str, float]:
    """Run one training in this process."""
    model, steps = JOBS[name]
    data = {"train": "builtin:python-docs:train", "unit": "stream"}
    leave = (
        contextlib.nullcontext()
        if kept
        else mock.patch("seriatim.runs.train.freed_memory_kept", contextlib.nullcontext)
    )
    with tempfile.TemporaryDirectory() as folder, leave:
        config = {"data": data, "model": model, "training": {"steps": steps}, "out": f"{folder}/run"}
        run = seriatim.train(config)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rate": run.summary["tokens_per_second"], "peak": peak}


def apart(name: str, *, kept: bool) -> dict[str, float]:
    """Run `train` in a fresh process."""
    command = [sys.executable, __file__, "--one", name, *["--kept"] * kept]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(train(arguments.one, kept=arguments.kept)))
        return
    print(machine.describe())
    print(f"{'':24} {'returned':>10} {'kept':>10} {'ratio':>7} {'MB':>7} {'MB':>7}")
    for name in JOBS:
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(arguments.repeats):
            for kept in found:
                found[kept].append(apart(name, kept=kept))
        rates = {kept: statistics.median(each["rate"] for each in runs) for kept, runs in found.items()}
        peaks = {kept: statistics.median(each["peak"] for each in runs) for kept, runs in found.items()}
        print(
            f"{name:24} {rates[False]:10,.0f} {rates[True]:10,.0f} {rates[True] / rates[False]:7.2f} "
            f"{peaks[False]:7.0f} {peaks[True]:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
