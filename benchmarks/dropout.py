"""Measure which dropout a language model needs, by the number of its parameters for each token of its training text.

Claim: the default dropout costs at most 0.02 nats per token beside the best rate that was measured, on every text.

    python benchmarks/dropout.py --data FOLDER [--only wolof,names] [--keep FILE]

Each text is learned by LSTMs of several widths with several rates of dropout, as the plain command does it without a
budget: AdamW at a constant rate, an average of the weights, until the held-out loss stops improving. The figure is the
lowest held-out loss in nats per token. Finished trainings are kept in FILE, so that the script can be interrupted.

The tables have the losses of the rates, the default rate, and what it costs beside the best one measured; and the
constants of the rule, fitted on all texts but one, with what they cost on that one.

The texts are folders of FOLDER: names-first (the split of names.py), the Wolof treebank (its sentences), 2,000 English
lines of multi30k-en-de, tinyshakespeare, masc-lm, and war-and-peace.
"""

import argparse
import functools
import itertools
import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import names
import record

import seriatim
from seriatim.tasks import defaults as task_defaults

COST = 0.02
"""Nats per token that the default may cost; two trainings with other seeds differ by up to 0.01."""


def sentences(file: Path) -> str:
    """Return the sentences of a treebank, one on each line."""
    return "\n".join(re.findall(r"^# text = (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)) + "\n"


def wolof(data: Path) -> tuple[str, str]:
    folder = data / "ud-wo-wtb"
    return sentences(folder / "wo_wtb-ud-train.conllu"), sentences(folder / "wo_wtb-ud-dev.conllu")


def captions(data: Path) -> tuple[str, str]:
    first, second = (data / f"multi30k-en-de/raw/{part}.en" for part in ("train", "val"))
    return "".join(first.read_text(encoding="utf-8").splitlines(True)[:2000]), second.read_text(encoding="utf-8")


def first_names(data: Path) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        parts = names.split(data / "names-first/names.txt", Path(folder))
        train, valid = (Path(parts[part]).read_text(encoding="utf-8") for part in ("train", "valid"))
    return train, valid


def cut(file: str, *ends: float) -> Callable[[Path], tuple[str, str]]:
    """Return a function that reads a text and divides it at these fractions of its characters."""

    def read(data: Path) -> tuple[str, str]:
        text = (data / file).read_text(encoding="utf-8")
        first, second = (int(end * len(text)) for end in ends)
        return text[:first], text[first:second]

    return read


def masc(data: Path) -> tuple[str, str]:
    train, valid = ((data / f"masc-lm/{part}.txt").read_text(encoding="utf-8") for part in ("train", "valid"))
    return train, valid


class Corpus(NamedTuple):
    """A text, how it is read, and the rates of dropout with which models of several sizes learn it."""

    read: Callable[[Path], tuple[str, str]]  # from the folder of all data to the training and the held-out text
    rates: dict[str, tuple[float, ...]]
    kind: str = "char"
    min_count: int = 1
    unit: str = "stream"


RATES = (0.0, 0.1, 0.2, 0.3, 0.5)
CORPORA = {
    "wolof": Corpus(wolof, {"48": RATES, "152": RATES, "256": RATES[:4]}),
    "captions": Corpus(captions, {"48": (0.0, 0.1), "256": (0.0, 0.3)}),
    "names": Corpus(first_names, {"48": RATES[:4], "152": RATES[:4], "256": (0.0, 0.2)}, unit="line"),
    "tinyshakespeare": Corpus(cut("tinyshakespeare/input.txt", 0.9, 0.95), {"256": (0.0, 0.1)}),
    "war-and-peace": Corpus(cut("war-and-peace/warandpeace.txt", 0.95, 0.975), {"256": (0.0, 0.1)}),
    "masc-words": Corpus(masc, {"256": (0.0, 0.3)}, "word", 5),
}
SIZES = {"48": (48, 48), "152": (152, 152), "256": (128, 256)}
"""The widths of embedding and layer; the third is the default."""


class Key(NamedTuple):
    """What is trained on a text."""

    corpus: str
    size: str
    dropout: float

    def __str__(self) -> str:
        return f"{self.corpus} {self.size}, dropout {self.dropout:g}"


def config(corpus: Corpus, folder: Path, key: Key, *, evaluate_every: int) -> dict[str, Any]:
    """Return the whole configuration of a training."""
    embedding, hidden = SIZES[key.size]
    return {
        "task": "lm",
        "data": {"train": str(folder / "train.txt"), "valid": str(folder / "valid.txt"), "unit": corpus.unit},
        "tokenizer": {"kind": corpus.kind, "min_count": corpus.min_count},
        "model": {
            "layer": "lstm",
            "embedding_size": embedding,
            "hidden_size": hidden,
            "num_layers": 1,
            "dropout": key.dropout,
            "bidirectional": False,
            "options": {"word_dropout": 0.8},
        },
        "training": {
            **record.TRAINING,
            "schedule": "constant",
            "average": 0.998,
            "warmup_steps": 100,
            "patience": 5,
            "minutes": 600.0,
            "batch_size": 32,
            "sequence_length": 64,
            "learning_rate": 0.01,
            "evaluate_every": evaluate_every,
        },
        "out": str(folder / "run"),
    }


def measure(stated: dict[str, Any], train: str) -> dict[str, Any]:
    """Train one model, and return its lowest held-out loss with the sizes of the model and of its text."""
    run = seriatim.train(stated, overwrite=True)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "valid"}
    best = min(losses, key=lambda step: losses[step])
    tokens = len(run.task.reader.read(train, "train", run.vocabulary).ids)
    return {
        "loss": losses[best],
        "tokens": tokens,
        "parameters": run.summary["parameters"],
        "passes": best * run.summary["tokens"] / run.summary["steps"] / tokens,
        "settings": record.settled(run, stated),
    }


def train_all(data: Path, corpora: Iterable[str], keep: Path) -> dict[Key, dict[str, Any]]:
    """Train all models that are not kept, and return what was measured of each."""
    found = {}
    for name in corpora:
        corpus = CORPORA[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            texts = dict(zip(("train", "valid"), corpus.read(data), strict=True))
            for part, text in texts.items():
                (folder / f"{part}.txt").write_text(text, encoding="utf-8")
            tokens = len(texts["train"] if corpus.kind == "char" else texts["train"].split())
            steps = tokens // (32 * 64) if corpus.unit == "stream" else texts["train"].count("\n") // 32
            for key in (Key(name, size, rate) for size, rates in corpus.rates.items() for rate in rates):
                stated = config(corpus, folder, key, evaluate_every=min(500, max(100, steps)))
                job = functools.partial(measure, stated, str(folder / "train.txt"))
                found[key] = record.remembered(keep, str(key), job)
                print(f"{key}: loss {found[key]['loss']:.4f}", flush=True)
    return found


class Row(NamedTuple):
    """The trainings of one model on one text, which differ in their dropout."""

    corpus: str
    size: str
    parameters: int
    tokens: int
    losses: dict[float, float]

    @property
    def ratio(self) -> float:
        return self.parameters / self.tokens

    @property
    def best(self) -> float:
        return min(self.losses, key=lambda rate: self.losses[rate])

    def cost(self, rate: float) -> float:
        """Return by how much the loss at a rate is above the best one; between two measured rates it is linear."""
        known = sorted(self.losses)
        above = next((one for one in known if one >= rate), known[-1])
        below = next((one for one in reversed(known) if one <= rate), known[0])
        share = 0.0 if above == below else (rate - below) / (above - below)
        return (1 - share) * self.losses[below] + share * self.losses[above] - self.losses[self.best]


def rows_of(found: dict[Key, dict[str, Any]]) -> list[Row]:
    """Return the trainings by text and model."""
    groups: dict[tuple[str, str], dict[float, dict[str, Any]]] = defaultdict(dict)
    for key, one in found.items():
        groups[key.corpus, key.size][key.dropout] = one
    rows = []
    for group, rates in groups.items():
        one = next(iter(rates.values()))
        losses = {rate: each["loss"] for rate, each in sorted(rates.items())}
        rows.append(Row(*group, one["parameters"], one["tokens"], losses))
    return sorted(rows, key=lambda row: row.ratio)


def total_cost(rows: Iterable[Row], start: float, growth: float) -> float:
    """Return the mean cost of a rule on some rows."""
    costs = [row.cost(min(max(growth * math.log10(row.ratio / start), 0.0), 0.5)) for row in rows]
    return sum(costs) / len(costs)


def leave_one_out(rows: list[Row]) -> list[list[object]]:
    """Fit the two constants of the rule on all texts but one, and return what they cost on that one."""
    starts, growths = [0.05 * 1.25**i for i in range(20)], [0.1 + 0.025 * i for i in range(20)]
    table: list[list[object]] = [["text left out", "no dropout up to", "growth", "cost there", "cost of the default"]]
    for corpus in dict.fromkeys(row.corpus for row in rows):
        others = [row for row in rows if row.corpus != corpus]
        own = [row for row in rows if row.corpus == corpus]
        start, growth = min(itertools.product(starts, growths), key=lambda pair: total_cost(others, *pair))
        default = total_cost(own, task_defaults.NO_DROPOUT, task_defaults.DROPOUT_GROWTH)
        table.append(
            [corpus, f"{start:.2f}", f"{growth:.2f}", f"{total_cost(own, start, growth):.4f}", f"{default:.4f}"]
        )
    return table


def save(found: dict[Key, dict[str, Any]]) -> None:
    """Print the tables and write the record."""
    rows, measured, costs = rows_of(found), [], []
    for row in rows:
        default = task_defaults.text_dropout(row.parameters, row.tokens, None)
        losses = {rate: f"{loss:.3f}" for rate, loss in row.losses.items()} | {
            row.best: f"**{row.losses[row.best]:.3f}**"
        }
        sizes = [row.corpus, f"{row.tokens:,}", f"{row.parameters:,}", f"{row.ratio:.2f}"]
        costs.append(row.cost(default))
        measured.append([*sizes, *(losses.get(rate, "") for rate in RATES), f"{default:g}", f"{costs[-1]:.3f}"])
    heads = [*(f"dropout {rate:g}" for rate in RATES), "default", "its cost"]
    record.save(
        "dropout",
        claims={f"the default costs at most {COST} nats per token beside the best measured rate": max(costs) <= COST},
        settings={str(key): one.pop("settings") for key, one in found.items()},
        figures={str(key): one for key, one in found.items()} | {"largest cost": max(costs)},
        tables=[[["text", "tokens", "parameters", "parameters a token", *heads], *measured], leave_one_out(rows)],
        notes="Losses are nats per token. The second table has the constants of the rule, fitted on all other texts.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default=",".join(CORPORA))
    parser.add_argument("--keep", type=Path, help="a file of finished trainings, with which the script goes on")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save(train_all(given.data, given.only.split(","), given.keep or Path(folder) / "kept.json"))


if __name__ == "__main__":
    main()
