"""Counting n-grams: seconds, memory, and lookups a second.

    python benchmarks/ngrams.py --text train.txt [--tokens 17750000] [--order 5]

The text is repeated, and of every copy 30 % of the words are given a number from 0 to 19 as a suffix, with seed 1,
until there are so many tokens. Prints what `seriatim train lm --layer ngram` takes of it in a process of its own, text
reading and writing of the run included, with an empty cache: seconds, peak memory, n-grams; then how long opening the
run takes, and how many tokens a second are scored.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

import seriatim

SHARE, SUFFIXES = 0.3, 20
ROUNDS = 5


def enlarge(text: Path, out: Path, tokens: int) -> int:
    """Writes the text again and again; returns how many words there are, line ends included."""
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


def train(text: Path, run: Path, order: int, cache: Path) -> tuple[float, float]:
    """Seconds, and peak memory in GB."""
    command = ["-m", "seriatim", "train", "lm", "--data", str(text), "--layer", "ngram", "--tokenizer.kind", "word"]
    more = ["--data.unit", "line", "--model.options.order", str(order), "--out", str(run), "--quiet"]
    started = time.perf_counter()
    subprocess.run([sys.executable, *command, *more], check=True, env={**os.environ, "SERIATIM_CACHE": str(cache)})
    return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=17_750_000)
    parser.add_argument("--order", type=int, default=5)
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text, path = folder / "text.txt", folder / "run"
        tokens = enlarge(arguments.text, text, arguments.tokens)
        seconds, memory = train(text, path, arguments.order, folder / "cache")
        summary = json.loads((path / "summary.json").read_text())
        counted = summary["tokens"] / summary["tokens_per_second"]
        size = (path / "model.safetensors").stat().st_size / 1e9
        print(f"{tokens:,} tokens, {summary['vocabulary_size']:,} in the vocabulary, order {arguments.order}")
        print(f"{seconds:.1f} s in all, {counted:.1f} s of it counting and smoothing; peak {memory:.2f} GB")
        opened = machine.seconds(lambda: seriatim.load(path))
        run = seriatim.load(path)
        grams = ", ".join(f"{len(order.probability):,}" for order in run.model.table.orders)
        print(f"n-grams: {grams}; {size:.2f} GB, opened in {opened * 1e3:.0f} ms")
        held_out = run.task.read(str(arguments.text), "test", run.vocabulary)
        rates = sorted(
            len(held_out.ids) / machine.seconds(lambda: run.model.text_losses(held_out.ids)) for _ in range(ROUNDS)
        )
        print(f"{rates[ROUNDS // 2]:,.0f} tokens scored a second")


if __name__ == "__main__":
    main()
