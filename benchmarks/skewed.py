"""Compare the plain classifier with the bag of n-grams on skewed labels, in accuracy and in macro F1.

Claim: on four sets in which one label has 71 to 90 % of the texts, the plain command is behind `bag` in neither metric,
in the mean over the sets.

    python benchmarks/skewed.py --data FOLDER [--keep FOLDER]

The sets are drawn from trec6, mr, sst2 and clinc150 of FOLDER; 70 % of each are for training. Trainings take one
process and one thread.
"""

import argparse
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import record
import torch

import seriatim

METRICS = ("accuracy", "macro_f1")
TRAINED = 0.7  # fraction of a set


def read(path: Path, label: str = "label") -> list[tuple[str, str]]:
    """Return the labels and texts of a file of tab-separated columns with a header."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    names = head.split("\t")
    rows = [line.split("\t") for line in lines]
    return [(row[names.index(label)], row[names.index("text")]) for row in rows]


def drawn(rows: list[tuple[str, str]], fractions: Mapping[str, float], total: int) -> list[tuple[str, str]]:
    """Draw so many rows, of which each label has its fraction."""
    by_label = defaultdict(list)
    for row in rows:
        by_label[row[0]].append(row)
    sizes = {label: round(fraction * total) for label, fraction in fractions.items()}
    return [row for label, size in sizes.items() for row in random.Random(2).sample(by_label[label], size)]


def grouped(rows: list[tuple[str, str]], total: int) -> list[tuple[str, str]]:
    """Draw so many rows, whose 150 labels are three groups of 115, 25 and 10."""
    labels = sorted({label for label, _ in rows})
    group = {label: "abc"[(i >= 115) + (i >= 140)] for i, label in enumerate(labels)}
    return [(group[label], text) for label, text in random.Random(3).sample(rows, total)]


def sets(data: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the skewed sets by name."""
    return {
        "trec6": drawn(read(data / "trec6/train.tsv", "coarse"), {"ENTY": 0.77, "HUM": 0.17, "NUM": 0.06}, 1600),
        "mr": drawn(read(data / "mr/mr.tsv"), {"neg": 0.9, "pos": 0.1}, 5900),
        "sst2": drawn(read(data / "sst2/train.tsv"), {"1": 0.8, "0": 0.2}, 4000),
        "clinc150": grouped(read(data / "clinc150/train.tsv"), 6000),
    }


def measure(
    name: str, rows: list[tuple[str, str]], layer: str | None, keep: Path
) -> tuple[seriatim.Run, dict[str, Any]]:
    """Train on a part of a set, unless the run is there, and evaluate on the rest."""
    random.Random(1).shuffle(rows := list(rows))
    size, paths = round(TRAINED * len(rows)), [keep / f"{name}-{part}.tsv" for part in ("train", "test")]
    for path, part in zip(paths, (rows[:size], rows[size:]), strict=True):
        path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in part), encoding="utf-8")
    out = keep / f"{name}-{layer or 'plain'}"
    config: dict[str, Any] = {"task": "classify", "data": {"train": str(paths[0])}, "out": str(out)}
    trained = (out / "summary.json").exists()
    run = seriatim.load(out) if trained else seriatim.train(config | ({"model": {"layer": layer}} if layer else {}))
    return run, {metric: run.evaluate(str(paths[1]))[metric] for metric in METRICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="a folder for finished trainings, so that they are not repeated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    table = [["set", "plain: accuracy", "macro F1", "`bag`: accuracy", "macro F1"]]
    with tempfile.TemporaryDirectory() as folder:
        keep = arguments.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        try:
            found = sets(arguments.data)
        except OSError as error:
            parser.error(f"--data: {error.filename}: {error.strerror}; give the folder that has the corpora")
        for name, rows in found.items():
            plain, ours = measure(name, rows, None, keep)
            _, theirs = measure(name, rows, "bag", keep)
            figures[name], settings[name] = {"plain": ours, "bag": theirs}, record.plain(plain)
            table.append([name, *(f"{100 * value:.1f}" for value in (*ours.values(), *theirs.values()))])
            print(" | ".join(table[-1]), flush=True)
    claims = []
    for metric in METRICS:
        ours, theirs = (statistics.fmean(one[who][metric] for one in figures.values()) for who in ("plain", "bag"))
        claims.append(
            record.Claim(
                text=f"skewed labels: plain is not behind `bag` in {metric}, mean of four sets",
                reached=ours >= theirs,
                peer="`bag`",
                ours=f"{100 * ours:.1f} %",
                theirs=f"{100 * theirs:.1f} %",
                ratio=ours / theirs,
            )
        )
    notes = "One seed. The plain command answers together with a bag of n-grams, its simple baseline."
    record.save("skewed", claims=claims, settings=settings, figures=figures, tables=[table], notes=notes)


if __name__ == "__main__":
    main()
