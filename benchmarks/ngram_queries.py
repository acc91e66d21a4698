"""Measure how fast n-gram models score lines, beside KenLM: from Python and from the command line.

    python benchmarks/ngram_queries.py [--lines 100000] [--rounds 3] [--query PATH]

The script draws lines of 20 words as `large_bag.py` does, trains a model of order 5 on them, exports it as ARPA, and
opens this file with the module `kenlm`, whose model is then that of KenLM's probing hash tables. Held-out lines are
scored by both in turn: all lines in one call (`run.score`; a loop over `kenlm.Model.score`), one line a call, and by a
process of its own: `seriatim evaluate`, beside KenLM's program `query` with ``-v summary`` if ``--query`` gives its
path, else beside Python with a loop over `kenlm.Model.score`. That process reads a binary file of KenLM, made before,
if its program `build_binary` stands beside `query`, else the ARPA file. Without the module, only ours is measured.

Rates are words a second, with line ends, by the clock and by the processor. The ratios are ours over KenLM's.

Claims: at least as fast as KenLM with all lines, with one line a call, and from the command line.
"""

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import large_bag
import machine
import record

import seriatim
from seriatim.interchange.formats import export_run

BY = ", by the processor"
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
    there = shutil.which("query") if shutil.which("lmplz") else None  # others have programs of this name
    parser.add_argument("--query", type=Path, default=there, help="path of KenLM's program query")
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
        theirs = None
        if record.is_installed("kenlm"):
            import kenlm

            theirs = kenlm.Model(str(arpa))
        lines = (folder / "test.txt").read_text().splitlines()
        some = lines[:SINGLE]
        words = sum(len(line.split()) + 1 for line in lines)
        ours_in = [sys.executable, "-m", "seriatim", "evaluate", run.path, "--data", folder / "test.txt", "--json"]
        theirs_in = [sys.executable, "-c", SCRIPT, str(arpa), str(folder / "test.txt")]
        if arguments.query:
            theirs_in = ["sh", "-c", f"{arguments.query} -v summary {binary} < {folder / 'test.txt'}"]

        # Ours and KenLM's way of each job, and how many words it scores.
        ways: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
            "all lines": (lambda: run.score(lines), lambda: [theirs.score(line) for line in lines], words),
            "one line a call": (
                lambda: [run.score([line]) for line in some],
                lambda: [theirs.score(line) for line in some],
                sum(len(line.split()) + 1 for line in some),
            ),
            "command line": (lambda: called(ours_in), lambda: called(theirs_in), words),
        }
        agreement = None
        if theirs is not None:
            pairs = zip(some, run.score(some), strict=True)
            agreement = max(abs(score.log_probability / math.log(10) - theirs.score(line)) for line, score in pairs)
            print(f"log10 of a line differs by {agreement:.1e} at most", flush=True)
        rates: dict[str, dict[str, list[float]]] = {}
        for name, (mine, other, count) in ways.items():
            has_peer = theirs is not None or (arguments.query and name == "command line")
            rates[name] = measured({"ours": mine, **({"KenLM": other} if has_peer else {})}, count, arguments.rounds)
    report(rates, arguments, agreement)


def called(command: list[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def measured(works: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, list[float]]:
    """Return the words a second of each side, by the clock and by the processor, in turn."""
    rates: dict[str, list[float]] = {name + by: [] for name in works for by in ("", BY)}
    for work in works.values():
        work()  # opens files and fills caches
    for _ in range(rounds):
        for name, work in works.items():
            wall, processor = time.perf_counter(), large_bag.spent(0.0)[1]
            work()
            rates[name].append(count / (time.perf_counter() - wall))
            rates[name + BY].append(count / (large_bag.spent(0.0)[1] - processor))
    return rates


def report(rates: dict[str, dict[str, list[float]]], arguments: argparse.Namespace, agreement: float | None) -> None:
    table: list[list[object]] = [["", "words/s", "KenLM", "ratio", "ratio by the processor"]]
    claims, figures = [], {}
    peers = dict.fromkeys(rates, "kenlm.Model.score")
    peers["command line"] = "KenLM's query" if arguments.query else "Python with kenlm"
    for name, found in rates.items():
        peer = found.get("KenLM")
        ratios = [
            record.ratios(found["ours" + by], found["KenLM" + by], are_rates=True) if peer else [] for by in ("", BY)
        ]
        figures[name] = {**found, "ratio": ratios[0], "ratio by the processor": ratios[1]}
        shown = [f"{median(found['ours']):,.0f}", f"{median(peer):,.0f}" if peer else "not installed"]
        table.append([name, *shown, *(f"{median(ratio):.2f}" if ratio else "" for ratio in ratios)])
        claims.append(
            record.compared(
                f"n-grams, {name}: at least as fast",
                found["ours"],
                peer,
                peer=peers[name] + " (probing)",
                unit="words/s",
                are_rates=True,
            )
        )
    record.save(
        "ngram_queries",
        claims=claims,
        settings={"lines": arguments.lines, "rounds": arguments.rounds, "query": bool(arguments.query), "order": 5},
        figures={**figures, **({} if agreement is None else {"agreement": agreement})},
        tables=[table],
        peers=["kenlm"],
        notes="A model of order 5 of drawn lines of 20 words; the same model is an ARPA file in KenLM, with probing "
        "hash tables. Words a second with the ends of lines, medians in turn. The command line opens the model, too.",
    )


if __name__ == "__main__":
    main()
