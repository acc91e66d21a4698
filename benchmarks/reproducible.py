"""Show that two comparisons with one seed give the same figures, to the last bit, also on a busy machine.

Claim: no metric differs.

    python benchmarks/reproducible.py lm --data text.txt --valid rest.txt --layers lstm,transformer --steps 100

The arguments are those of `seriatim compare`, which is run twice into different folders, the second time while other
processes keep all processors busy. With a budget in minutes, the second one takes other numbers of steps, unless it
finds the measured speed in the cache.
"""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import record

from seriatim.comparison.results import Results

SERIATIM = (sys.executable, "-m", "seriatim")


def compare(arguments: list[str], out: Path) -> Results:
    """Run a comparison and return its results; the script ends if a layer failed."""
    command = [*SERIATIM, "compare", *arguments, "--out", str(out), "--no-report"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    results = Results(json.loads((out / "results.json").read_text(encoding="utf-8")))
    if failed := [row.layer for row in results.rows if row.failed]:
        sys.exit(f"failed: {', '.join(failed)}")
    return results


def metrics(results: Results) -> dict[tuple[str, str], float]:
    """Return the metrics of every row."""
    return {
        (row.layer, name): value
        for row in results.rows
        for name, value in row.metrics.items()
        if isinstance(value, int | float)
    }


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Keep every processor busy."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    with tempfile.TemporaryDirectory() as name:
        before = metrics(compare(sys.argv[1:], Path(name) / "first"))
        with busy_machine():
            after = metrics(compare(sys.argv[1:], Path(name) / "second"))
    different = sum(value != after[name] for name, value in before.items())
    layers = sorted({layer for layer, _ in before})
    record.save(
        "reproducible",
        claims={
            "two comparisons with one seed have equal metrics to the last bit, also on a busy machine": not different
        },
        settings={"arguments": sys.argv[1:]},
        figures={"different": different, "metrics": len(before)},
        tables=[[["layers", "metrics", "that differ"], [", ".join(layers), len(before), different]]],
        notes="`seriatim compare` with these arguments, twice.",
    )


if __name__ == "__main__":
    main()
