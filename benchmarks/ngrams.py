"""Measure the counting of n-grams: seconds, memory and lookups per second, beside an estimator in C++.

    python benchmarks/ngrams.py --text train.txt [--tokens 5000000] [--order 5] [--rounds 3] [--lmplz PATH]

The text is repeated until it has the given number of tokens. In each copy, 30 % of the words get a number from 0 to 19
as a suffix, with seed 1. The script prints the seconds, the peak memory and the number of n-grams of `seriatim train lm
--layer ngram` in a process of its own, with an empty cache; this includes reading the text and writing the run. In turn
with it, it measures the same for `lmplz` (of kenlm, built from its source), which writes an ARPA file. Last, it
measures how long it takes to open the run, and how many tokens are scored per second.

Claim: counting takes at most as long as `lmplz`, which is searched on the PATH if no option names it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import machine
import record

import seriatim

SHARE, SUFFIXES = 0.3, 20
ROUNDS = 5


def enlarge(text: Path, out: Path, tokens: int) -> int:
    """Write the text repeatedly and return the number of words, with line ends."""
    lines = [line.split() for line in text.read_text(encoding="utf-8").splitlines()]
    generator, written = random.Random(1), 0
    with out.open("w", encoding="utf-8") as file:
        while written < tokens:
            for words in lines:
                changed = [
                    f"{word}{generator.randrange(SUFFIXES)}" if generator.random() < SHARE else word for word in words
                ]
                file.write(" ".join(changed) + "\n")
                written += len(words) + 1
                if written >= tokens:
                    break
    return written


def timed(command: list[str], **environment: str) -> tuple[float, float]:
    """Return the seconds that a command takes, and its peak memory in GB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed")
    return time.perf_counter() - started, usage.ru_maxrss / 1e6


def train(text: Path, run: Path, order: int) -> tuple[float, float]:
    """Return the seconds and GB of a training with an empty cache."""
    command = [sys.executable, "-m", "seriatim", "train", "lm", "--data", str(text), "--layer", "ngram"]
    more = ["--tokenizer.kind", "word", "--data.unit", "line", "--model.options.order", str(order), "--quiet"]
    with tempfile.TemporaryDirectory() as cache:
        return timed([*command, *more, "--overwrite", "--out", str(run)], SERIATIM_CACHE=cache)


def lmplz(program: str, text: Path, arpa: Path, order: int) -> tuple[float, float]:
    """Return the seconds and GB of the estimator in C++."""
    folder = str(arpa.parent)
    files = ["--text", str(text), "--arpa", str(arpa), "-T", folder]
    return timed([program, "-o", str(order), "-S", "2G", "--discount_fallback", *files])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lmplz", default=shutil.which("lmplz"), help="path of lmplz, which is measured in turn")
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text, path = folder / "text.txt", folder / "run"
        tokens = enlarge(arguments.text, text, arguments.tokens)
        ours, theirs, counted = [], [], []
        for _ in range(arguments.rounds):
            ours.append(train(text, path, arguments.order))
            summary = json.loads((path / "summary.json").read_text())
            counted.append(summary["tokens"] / summary["tokens_per_second"])
            if arguments.lmplz:
                theirs.append(lmplz(arguments.lmplz, text, folder / "peer.arpa", arguments.order))
            print(f"seconds and GB, ours: {ours[-1]}, lmplz: {theirs[-1:]}", flush=True)
        opened = [machine.seconds(lambda: seriatim.load(path)) for _ in range(ROUNDS)]
        run = seriatim.load(path)
        grams = [len(order.probability) for order in run.model.table.orders]
        size = (path / "model.safetensors").stat().st_size / 1e9
        held_out = run.task.reader.read(str(arguments.text), "test", run.vocabulary)
        rates = [
            len(held_out.ids) / machine.seconds(lambda: run.model.text_losses(held_out.ids)) for _ in range(ROUNDS)
        ]
    (seconds, memory), (peer, held) = (list(zip(*rounds, strict=True)) or [(), ()] for rounds in (ours, theirs))
    claims = [
        record.compared(text, mine, other, peer="lmplz", unit=unit)
        for text, mine, other, unit in (
            (f"counts {tokens / 1e6:.3g} million tokens in at most the time of lmplz", seconds, peer, "s"),
            ("with at most its memory", memory, held, "GB"),
        )
    ]
    table = [["", "seconds in all", "peak, GB"]]
    table.append(["seriatim train lm --layer ngram", f"{median(seconds):.1f}", f"{median(memory):.2f}"])
    if peer:
        table.append(["lmplz, an ARPA file written", f"{median(peer):.1f}", f"{median(held):.2f}"])
    record.save(
        "ngrams",
        claims=claims,
        settings={**vars(arguments), "text": arguments.text.name, "lmplz": bool(arguments.lmplz)},
        figures={
            "ours": {"seconds": seconds, "GB": memory},
            "lmplz": {"seconds": peer, "GB": held},
            "counting and smoothing": counted,
            "opened": opened,
            "tokens scored a second": rates,
            "n-grams": sum(grams),
            "file, GB": size,
        },
        tables=[table],
        notes=f"{tokens:,} tokens, {summary['vocabulary_size']:,} in the vocabulary, order {arguments.order}; "
        f"{sum(grams):,} n-grams in {size:.2f} GB, opened in {median(opened) * 1e3:.0f} ms; "
        f"{median(rates):,.0f} tokens are scored a second. Ours reads the text and writes the run.",
    )


if __name__ == "__main__":
    main()
