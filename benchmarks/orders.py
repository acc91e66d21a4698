"""Measure the benefit of longer n-grams, and of mixing them with an LSTM.

    python benchmarks/orders.py --train train.txt --valid valid.txt --test test.txt [--epochs 6]

The vocabulary holds the words that occur at least twice. The models are n-grams of orders 1, 2, 3 and 5 (interpolated
Kneser-Ney), the LSTM of `words.py` (2 × 200, tied), and mixtures whose weights are fitted on the held-out text by
expectation maximization: LSTM and 5-gram, and both with a unigram model of the last 200 tokens. The script prints the
perplexity of each on the test text with its 95 % interval, and the difference of its loss to that of another model, by
paired bootstrap.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import machine
import words

import seriatim
from seriatim.runs.ensembles import compare, interpolate

ORDERS = (1, 2, 3, 5)


def train(arguments: argparse.Namespace, out: Path, **sections: Any) -> seriatim.Run:
    data = {"train": arguments.train, "valid": arguments.valid}
    return seriatim.train({"data": data, "tokenizer": words.TOKENIZER, "out": str(out), **sections})


def show(name: str, run: seriatim.Run, test: str, other: tuple[str, seriatim.Run] | None = None) -> None:
    found = run.evaluate(test)
    figures = f"{found['perplexity']:8.2f} ({found['perplexity_low']:.2f} to {found['perplexity_high']:.2f})"
    if other is not None:
        loss = compare(run, other[1], test)["loss"]
        figures += f"   loss {loss.difference:+.4f} ({loss.low:+.4f} to {loss.high:+.4f}) of {other[0]}"
    print(f"{name:24} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--train", "--valid", "--test"):
        parser.add_argument(name, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    test = arguments.test
    with tempfile.TemporaryDirectory() as folder:
        counted: dict[int, seriatim.Run] = {}
        for order in ORDERS:
            model = {"layer": "ngram", "options": {"order": order}}
            counted[order] = train(arguments, Path(folder) / str(order), model=model)
        five = counted[5]
        for order in ORDERS[:-1]:
            show(f"{order}-gram", counted[order], test, ("the 5-gram", five))
        show("5-gram", five, test)
        training = {**words.TRAINING, "epochs": arguments.epochs, "precision": "float32", "seed": 1}
        lstm = train(arguments, Path(folder) / "lstm", model=words.MODEL, training=training)
        show("LSTM", lstm, test, ("the 5-gram", five))
        model = {"layer": "ngram", "options": {"order": 5, "cache": 0.1}}
        cached = train(arguments, Path(folder) / "cached", model=model)
        show("5-gram, a tenth cache", cached, test, ("the 5-gram", five))
        for name, runs in {"LSTM and 5-gram": [lstm, five], "LSTM, 5-gram, cache": [lstm, cached]}.items():
            mixed, weights = interpolate(runs)
            show(name, mixed, test, ("the LSTM", lstm))
            print(f"  weights {', '.join(f'{weight:.3f}' for weight in weights)}")


if __name__ == "__main__":
    main()
