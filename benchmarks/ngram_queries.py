"""Measure how fast n-gram models score lines, beside KenLM: from Python and from the command line.

    python benchmarks/ngram_queries.py [--lines 100000] [--rounds 3] [--query PATH]

The script draws lines of 20 words as `large_bag.py` does, trains a model of order 5 on them, exports it as ARPA, and
opens this file with the module `kenlm`, whose model is then that of KenLM's probing hash tables. Held-out lines are
scored by both in turn: all lines in one call (`run.score`; a loop over `kenlm.Model.score`), one line a call, and by a
process of its own: `seriatim evaluate`, beside KenLM's program `query` with ``-v summary`` if ``--query`` gives its
path, else beside Python with a loop over `kenlm.Model.score`. That process reads a binary file of KenLM, made before,
if its program `build_binary` stands beside `query`, else the ARPA file.

Rates are words a second, with line ends, by the clock and by the processor. The ratios are ours over KenLM's.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import kenlm
import large_bag
import machine
import record

import seriatim
from seriatim.interchange.formats import export_run

SINGLE = 2000
"""Lines that are scored one a call."""
SCRIPT = (
    "import kenlm, sys; m = kenlm.Model(sys.argv[1]); print(sum(m.score(line.rstrip()) for line in open(sys.argv[2])))"
)


def write_lines(path: Path, lines: int, seed: int) -> None:
    words, _ = large_bag.draw(lines, seed)
    path.write_text("".join(" ".join(row) + "\n" for row in large_bag.spellings()[words].tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--query", type=Path, help="path of KenLM's program query")
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_lines(folder / "train.txt", arguments.lines, 2)
        write_lines(folder / "test.txt", arguments.lines, 3)
        run = seriatim.train(
            {
                "data": {"train": str(folder / "train.txt"), "valid": "none", "unit": "line"},
                "tokenizer": {"kind": "word"},
                "model": {"layer": "ngram", "options": {"order": 5}},
                "out": str(folder / "run"),
            }
        )
        arpa = folder / "model.arpa"
        export_run(run, "arpa", str(arpa))
        binary = arpa
        if arguments.query and (build := arguments.query.with_name("build_binary")).exists():
            binary = folder / "model.binary"
            subprocess.run([build, "probing", arpa, binary], check=True, capture_output=True)
        theirs = kenlm.Model(str(arpa))
        lines = (folder / "test.txt").read_text().splitlines()
        some, words = lines[:SINGLE], sum(len(line.split()) + 1 for line in lines)
        ours_in = [
            sys.executable,
            "-m",
            "seriatim",
            "evaluate",
            str(folder / "run"),
            "--data",
            str(folder / "test.txt"),
            "--json",
        ]
        theirs_in = [sys.executable, "-c", SCRIPT, str(arpa), str(folder / "test.txt")]
        if arguments.query:
            theirs_in = ["sh", "-c", f"{arguments.query} -v summary {binary} < {folder / 'test.txt'}"]
        ways: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
            "all lines": (lambda: run.score(lines), lambda: [theirs.score(line) for line in lines], words),
            "one line a call": (
                lambda: [run.score([line]) for line in some],
                lambda: [theirs.score(line) for line in some],
                words * SINGLE // len(lines),
            ),
            "command line": (lambda: called(ours_in), lambda: called(theirs_in), words),
        }
        agreement = max(
            abs(score.log_probability / 2.302585093 - theirs.score(line))
            for line, score in zip(some, run.score(some), strict=True)
        )
        print(f"log10 of a line differs by {agreement:.1e} at most")
        rates: dict[str, list[list[tuple[float, float]]]] = {}
        for name, (mine, other, count) in ways.items():
            rates[name] = [[], []]
            for _ in range(arguments.rounds):
                for found, work in zip(rates[name], (mine, other), strict=True):
                    wall, processor = measured(work)
                    found.append((count / wall, count / processor))
    report(rates, arguments, agreement)


def called(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a function takes, by the clock and by the processor."""
    wall, before = time.perf_counter(), large_bag.spent(0.0)[1]
    work()
    return time.perf_counter() - wall, large_bag.spent(0.0)[1] - before


def report(rates: dict[str, list[list[tuple[float, float]]]], arguments: argparse.Namespace, agreement: float) -> None:
    table: list[list[object]] = [["", "words/s", "KenLM", "ratio", "ratio by the processor"]]
    claims = {}
    for name, (mine, other) in rates.items():
        (wall, processor), (their_wall, their_processor) = (
            tuple(median(column) for column in zip(*rows, strict=True)) for rows in (mine, other)
        )
        ratios = wall / their_wall, processor / their_processor
        table.append([name, f"{wall:,.0f}", f"{their_wall:,.0f}", f"{ratios[0]:.2f}", f"{ratios[1]:.2f}"])
        claims[f"{name}: at least as fast as KenLM"] = ratios[0] >= 1
        print(f"{name:18}{wall:14,.0f}{their_wall:14,.0f} words/s, ratio {ratios[0]:.2f} ({ratios[1]:.2f})", flush=True)
    settings = {"lines": arguments.lines, "rounds": arguments.rounds, "query": bool(arguments.query), "order": 5}
    record.save(
        "ngram_queries",
        claims=claims,
        settings=settings,
        figures={"rates": rates, "agreement": agreement},
        tables=[table],
    )


if __name__ == "__main__":
    main()
