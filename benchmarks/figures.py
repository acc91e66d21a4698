"""Measure again what the records hold, and say what moved.

    python benchmarks/figures.py [--data FOLDER] [NAMES]
    python benchmarks/figures.py [--data FOLDER] NAME --keep FILE

The commands are those of `runs.py`, one after another; without NAMES, all that take less than 30 minutes. Each writes
its record. Options that are not known here are passed to the script. A figure has moved if its new range does not
overlap the old one; the figures of another machine move, of course. Last, RESULTS.md and the figures in README.md and
docs/ are written from the records.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import record
from runs import RUNS

LIMIT = 30
"""Minutes from which on a command must be named."""


def measure(name: str, data: Path | None, more: Sequence[str] = ()) -> Iterator[str]:
    """Run the command of a record with ``more`` options, and yield what is to be said of it, a line each."""
    before = known(name)
    command = RUNS[name].command.split()
    if data is None and "DATA" in RUNS[name].command:
        yield f"{name}: left out; name the folder of corpora with --data"
        return
    command = [word.replace("DATA", str(data)) for word in command]
    absent = [word for word in command if data is not None and str(data) in word and not Path(word).exists()]
    if absent:
        yield f"{name}: left out; {absent[0]} is missing"
        return
    script, path = Path(__file__).parent / command[0], record.FOLDER / f"{name}.json"
    stood = path.stat().st_mtime_ns if path.exists() else None
    done = subprocess.run(
        [sys.executable, script, *command[1:], *more],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "SERIATIM_RECORD": name},
    )
    is_written = path.exists() and path.stat().st_mtime_ns != stood
    if done.returncode and not is_written:  # a script that has found a fault writes its record, too
        yield f"{name}: failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        return
    after = known(name)
    if after is None:
        yield f"{name}: has written no record, or a damaged one"
    elif not is_written:
        yield f"{name}: has written no new record; the old one is kept"
    else:
        yield from (f"{name}: {line}" for line in moved(before, after))


def known(name: str) -> record.Record | None:
    """Return a record; None if it is missing or damaged, because it is then measured for the first time."""
    try:
        return record.read(name)
    except record.RecordError:
        return None


def moved(before: record.Record | None, after: record.Record) -> Iterator[str]:
    """Yield a line for each figure that moved beyond its range, and for each that came or went."""
    old = {} if before is None else before.figures
    if before is not None and before.machine.name != after.machine.name:
        yield f"measured on {after.machine.name}, before on {before.machine.name}"
    for key, figure in after.figures.items():
        if key not in old:
            yield f"{key} is new: {figure}"
        elif old[key].has_moved(figure):
            yield f"{key} moved from {old[key]} to {figure}"
    yield from (f"{key} is gone" for key in old if key not in after.figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--data", type=Path, help="the folder of corpora")
    given, more = parser.parse_known_args()
    if more and len(given.names) != 1:
        parser.error(f"{' '.join(more)}: name the one record whose script gets this")
    if unknown := set(given.names) - RUNS.keys():
        parser.error(f"no record is called {', '.join(sorted(unknown))}; the names are {', '.join(RUNS)}")
    said = []
    for name in given.names or [name for name, run in RUNS.items() if run.minutes < LIMIT]:
        print(f"== {name}, about {RUNS[name].minutes:g} minutes", flush=True)
        said += measure(name, given.data, more)
    unmeasured = [line for line in said if line.partition(": ")[2].startswith(("left out", "failed", "has written"))]
    moved_now = [line for line in said if line not in unmeasured]
    print("\n== moved", *(moved_now or ["nothing that was measured"]), sep="\n")
    if unmeasured:  # before the pages, which a damaged record stops
        print("\n== not measured", *unmeasured, sep="\n", file=sys.stderr)
    record.main()
    sys.exit(1 if unmeasured else 0)


if __name__ == "__main__":
    main()
