"""Measure what taggers and classifiers gain from pretraining on raw text with the plain commands.

    python benchmarks/pretraining.py --data FOLDER [--only ud-hu-szeged,sst2] [--seeds 3] [--labelled N] [--text FILE]

For each seed the script trains a masked language model on the texts of the training part, without labels, and of
``--text``, if it is given; then the task with and without ``--init`` from it, on all labelled examples or the first N
of them. Characters and features of words are read
in both cases. It prints the accuracy on the test part of each run, and the mean difference with its standard error.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from defaults import CORPORA, Corpus
from machine import describe

import seriatim
from seriatim.config import resolve
from seriatim.tasks import new_task

NAMES = ("ud-hu-szeged", "sst2")


def train(task: str, data: Path, out: Path, seed: int, *options: str) -> float:
    """Train a run with a plain command and return its seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "seriatim", "train", task, "--data", str(data), "--out", str(out)]
    subprocess.run([*command, "--seed", str(seed), "--quiet", *options], check=True)
    return time.perf_counter() - began


def write_text(corpus: Corpus, base: Path, more: Path | None, file: Path) -> None:
    """Write the texts of the training part, without labels, one per line, and after them another text."""
    task = new_task(resolve({"task": corpus.task, "data": {"train": str(base / corpus.train)}}))
    lines = [text for text, _ in task.reader.labelled_items(str(base / corpus.train), "train")]
    others = [] if more is None else more.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([*lines, *others]) + "\n", encoding="utf-8")


def write_first(data: Path, count: int, file: Path) -> None:
    """Write the first sentences of a file in columns, or the first rows of a table, and its header."""
    text = data.read_text(encoding="utf-8")
    if data.suffix == ".tsv":
        file.write_text("\n".join(text.splitlines()[: count + 1]) + "\n", encoding="utf-8")
    else:
        file.write_text("\n\n".join(text.strip().split("\n\n")[:count]) + "\n\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NAMES), help="names of corpora of defaults.py, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labelled", type=int, help="how many labelled examples are used; all by default")
    parser.add_argument("--text", type=Path, help="more text of the same language, one sentence per line")
    arguments = parser.parse_args()
    print(describe(), flush=True)
    for name in arguments.only.split(","):
        corpus, rows = CORPORA[name], []
        assert corpus.valid is not None
        for seed in range(1, arguments.seeds + 1):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                write_text(corpus, arguments.data, arguments.text, folder / "text.txt")
                data, valid = arguments.data / corpus.train, ("--valid", str(arguments.data / corpus.valid))
                if arguments.labelled is not None:
                    few = folder / f"few{data.suffix}"
                    write_first(data, arguments.labelled, few)
                    data = few
                line = ("--data.unit", "line", "--kind", "word", "--tie_weights", "true")
                seconds = {
                    "plain": train(corpus.task, data, folder / "plain", seed, *valid),
                    "pretraining": train("mlm", folder / "text.txt", folder / "mlm", seed, *line),
                }
                init = ("--init", str(folder / "mlm"))
                seconds["with"] = train(corpus.task, data, folder / "with", seed, *valid, *init)
                test = arguments.data / corpus.test
                row = {key: seriatim.load(folder / key).evaluate(test)["accuracy"] for key in ("plain", "with")}
            rows.append(row)
            print(json.dumps({"corpus": name, "seed": seed, **row, "seconds": seconds}), flush=True)
        gains = [row["with"] - row["plain"] for row in rows]
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        means = {key: statistics.fmean(row[key] for row in rows) for key in ("plain", "with")}
        print(f"{name}: {means['plain']:.4f} without, {means['with']:.4f} with pretraining,", end=" ")
        print(f"gain {statistics.fmean(gains):+.4f} ± {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
