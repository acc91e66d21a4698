"""Show that two comparisons with one seed give the same figures, to the last bit.

    python benchmarks/reproducible.py lm --data text.txt --valid rest.txt --layers lstm,transformer --minutes 0.5

The arguments are those of `seriatim compare`, which is run twice into different folders. The script prints the table of
the first run, the largest difference of any metric of any row, and last the number of metrics that differ.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SERIATIM = (sys.executable, "-m", "seriatim")


def metrics(arguments: list[str], out: Path, *, show: bool) -> dict[tuple[str, str], float]:
    """Return the metrics of every row as in `results.json`."""
    command = [*SERIATIM, "compare", *arguments, "--out", str(out), "--no-report"]
    if code := subprocess.run(command, stdout=None if show else subprocess.DEVNULL).returncode:
        sys.exit(code)  # it has said why
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    if failed := [row["layer"] for row in results["rows"] if row["failed"]]:
        sys.exit(f"failed: {', '.join(failed)}")
    return {
        (row["layer"], name): value
        for row in results["rows"]
        for name, value in row["metrics"].items()
        if isinstance(value, int | float)
    }


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    with tempfile.TemporaryDirectory() as folder:
        first = metrics(sys.argv[1:], Path(folder) / "first", show=True)
        second = metrics(sys.argv[1:], Path(folder) / "second", show=False)
    apart = {name: abs(value - second[name]) for name, value in first.items()}
    print(f"largest difference: {max(apart.values()):g}")
    print(f"metrics that differ: {sum(value != second[name] for name, value in first.items())} of {len(first)}")


if __name__ == "__main__":
    main()
