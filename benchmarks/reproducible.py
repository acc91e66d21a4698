"""Show that two comparisons with one seed give the same figures, to the last bit, and what a busy machine changes.

    python benchmarks/reproducible.py lm --data text.txt --valid rest.txt --layers lstm,transformer --minutes 0.5

The arguments are those of `seriatim compare`, which is run twice into different folders. A third comparison begins with
an empty cache, so that it measures the speed of the machine again, while other processes keep all processors busy. The
script prints the table of the first run and its verdict, the verdict of the third one and what it says of the machine,
and last the number of metrics of the second one that differ from the first.
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

from seriatim.comparison.findings import headline, warnings_of
from seriatim.comparison.results import Results

SERIATIM = (sys.executable, "-m", "seriatim")


def compare(arguments: list[str], out: Path, *, show: bool = False, cache: Path | None = None) -> Results:
    """Run a comparison and return its results; the script ends if a layer failed."""
    command = [*SERIATIM, "compare", *arguments, "--out", str(out), "--no-report"]
    environment = os.environ if cache is None else {**os.environ, "SERIATIM_CACHE": str(cache)}
    done = subprocess.run(command, stdout=None if show else subprocess.DEVNULL, env=environment, check=False)
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
        folder = Path(name)
        first = compare(sys.argv[1:], folder / "first", show=True)
        second = compare(sys.argv[1:], folder / "second")
        with busy_machine():
            third = compare(sys.argv[1:], folder / "third", cache=folder / "cache")
    print(f"verdict: {headline(first)}")
    print(f"verdict on a busy machine: {headline(third)}")
    print(f"said of the busy machine: {' '.join(warnings_of(third)) or 'nothing'}")
    same = [row.layer for row in first.ranked] == [row.layer for row in third.ranked]
    print(f"order of the layers on the busy machine: {'the same' if same else 'another'}")
    before, after = metrics(first), metrics(second)
    print(f"largest difference: {max(abs(value - after[name]) for name, value in before.items()):g}")
    print(f"metrics that differ: {sum(value != after[name] for name, value in before.items())} of {len(before)}")


if __name__ == "__main__":
    main()
