"""Measure the memory of one stream of a million characters.

Claim: after the first thousand characters, the process grows by less than 5 MB.

    python benchmarks/long_generation.py [--characters 1000000] [--layer lstm]
"""

import argparse
import gc
import tempfile
import time
from pathlib import Path

import machine

import seriatim

STATUS = Path("/proc/self/status")


def resident_megabytes() -> float:
    gc.collect()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--characters", type=int, default=1_000_000)
    parser.add_argument("--layer", default="lstm")
    arguments = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory() as folder:
        run = seriatim.train(
            {
                "data": {"train": "builtin:python-docs"},
                "model": {"layer": arguments.layer, "embedding_size": 64, "hidden_size": 128},
                "training": {"steps": 100},
                "out": f"{folder}/run",
            }
        )
        count, early, most, start = 0, 0.0, 0.0, time.perf_counter()
        for piece in run.generate(max_tokens=2**62, seed=1):
            count += len(piece)
            if count == 1000:
                early = resident_megabytes()
            if count % 50_000 == 0:
                most = max(most, resident_megabytes())
            if count >= arguments.characters:
                break
        taken = time.perf_counter() - start
    print(f"{count:,} characters, {count / taken:,.0f} a second")
    print(f"after 1,000: {early:.1f} MB; at most {most:.1f} MB later; grown by {most - early:.2f} MB (claim: below 5)")


if __name__ == "__main__":
    main()
