"""Measure the benefit of longer n-grams, and of mixing them with an LSTM.

Claim: a mixture of an LSTM and a 5-gram model is better than either.

    python benchmarks/orders.py --train train.txt --valid valid.txt --test test.txt [--epochs 6]

The vocabulary holds the words that occur at least twice. The models are n-grams of orders 1, 2, 3 and 5 (interpolated
Kneser-Ney), the LSTM of `words.py` (2 × 200, tied), and mixtures whose weights are fitted on the held-out text by
expectation maximization: LSTM and 5-gram, and both with a unigram model of the last 200 tokens. The figures are the
perplexity of each on the test text with its 95 % interval, and the difference of its loss to that of another model, by
paired bootstrap.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import record
import words

import seriatim
from seriatim.runs.ensembles import compare, interpolate

ORDERS = (1, 2, 3, 5)


def train(arguments: argparse.Namespace, out: Path, **sections: Any) -> seriatim.Run:
    data = {"train": arguments.train, "valid": arguments.valid}
    return seriatim.train({"data": data, "tokenizer": words.TOKENIZER, "out": str(out), **sections})


class Rows:
    """What was measured of each model."""

    def __init__(self, test: str) -> None:
        self.test, self.figures = test, {}
        self.shown = [["", "perplexity (95 %)", "loss less that of", "", "weights"]]

    def add(self, name: str, run: Any, other: tuple[str, seriatim.Run] | None = None, weights: str = "") -> None:
        """Measure a model, and the difference of its loss to that of another."""
        found = self.figures[name] = dict(run.evaluate(self.test))
        interval = f"{found['perplexity']:.2f} ({found['perplexity_low']:.2f} to {found['perplexity_high']:.2f})"
        row = [name, interval, "", "", weights]
        if other is not None:
            loss = compare(run, other[1], self.test)["loss"]
            found["difference"] = record.Figure(loss.difference, loss.low, loss.high)
            row[2:4] = [other[0], f"{loss.difference:+.4f} ({loss.low:+.4f} to {loss.high:+.4f})"]
        self.shown.append(row)
        print(*row, sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--train", "--valid", "--test"):
        parser.add_argument(name, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    rows = Rows(arguments.test)
    with tempfile.TemporaryDirectory() as folder:
        counted: dict[int, seriatim.Run] = {}
        for order in ORDERS:
            model = {"layer": "ngram", "options": {"order": order}}
            counted[order] = train(arguments, Path(folder) / str(order), model=model)
        five = counted[5]
        for order in ORDERS[:-1]:
            rows.add(f"{order}-gram", counted[order], ("the 5-gram", five))
        rows.add("5-gram", five)
        training = {**words.TRAINING, "epochs": arguments.epochs, "precision": "float32", "seed": 1}
        lstm = train(arguments, Path(folder) / "lstm", model=words.MODEL, training=training)
        rows.add("LSTM", lstm, ("the 5-gram", five))
        model = {"layer": "ngram", "options": {"order": 5, "cache": 0.1}}
        cached = train(arguments, Path(folder) / "cached", model=model)
        rows.add("5-gram with cache", cached, ("the 5-gram", five))
        for name, runs in {"LSTM and 5-gram": [lstm, five], "LSTM and 5-gram with cache": [lstm, cached]}.items():
            mixed, weights = interpolate(runs)
            rows.add(name, mixed, ("the LSTM", lstm), ", ".join(f"{weight:.2f}" for weight in weights))
        settings = {"lstm": record.plain(lstm), "5-gram": record.plain(five)}
    mixed, lstm_alone = (rows.figures[name] for name in ("LSTM and 5-gram", "LSTM"))
    claim = record.Claim(
        text="a mixture of an LSTM and a 5-gram model is better than the LSTM alone, by more than its interval",
        reached=mixed["difference"].high < 0,
        peer="the LSTM alone",
        ours=f"perplexity {mixed['perplexity']:.1f}",
        theirs=f"{lstm_alone['perplexity']:.1f}",
        ratio=lstm_alone["perplexity"] / mixed["perplexity"],
    )
    record.save(
        "orders",
        claims=[claim],
        settings=settings,
        figures=rows.figures,
        tables=[rows.shown],
        notes="""
            Words of masc-lm that occur at least twice; interpolated Kneser-Ney; the LSTM of words.py; weights of
            mixtures are fitted on the held-out text. Differences are nats per token, by paired bootstrap over blocks.
        """,
    )


if __name__ == "__main__":
    main()
