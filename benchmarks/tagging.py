"""Measure the accuracy and speed of a tagger on a CoNLL file, trained from scratch.

    python benchmarks/tagging.py --train train.conllu --valid dev.conllu --test test.conllu --column upos
    python benchmarks/tagging.py --train train.conll --valid dev.conll --test test.conll --epochs 15 --rate 0.003

The model reads words (embedding 100, lower case) and their characters (convolution, 100 filters) with an LSTM of 256 in
each direction, dropout 0.5, batch 32, AdamW with a cosine schedule. The script prints the test figures with intervals,
beside the most frequent tag of each word, and the tokens per second of training and of predicting the test file.
"""

import argparse
import tempfile
from pathlib import Path

import machine

import seriatim
from seriatim.data.sources import find_sources

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("train", "valid", "test"):
        parser.add_argument(f"--{part}", required=True)
    parser.add_argument("--column")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    data = {"train": arguments.train, "valid": arguments.valid, "column": arguments.column}
    with tempfile.TemporaryDirectory() as temporary:
        run = seriatim.train(
            {
                "task": "tag",
                "data": data,
                "tokenizer": {"lowercase": True},
                "model": {
                    "layer": "lstm",
                    "embedding_size": 100,
                    "hidden_size": 256,
                    "dropout": 0.5,
                    "variational_dropout": True,
                    "options": {"filters": 100},
                },
                "training": {
                    "epochs": arguments.epochs,
                    "batch_size": arguments.batch,
                    "learning_rate": arguments.rate,
                    "seed": arguments.seed,
                },
                "out": str(Path(temporary) / "run"),
            }
        )
        found, summary = run.evaluate(arguments.test), run.summary
        for figure in run.task.evaluator.metrics:
            if figure.key in found:
                simplest = summary["baseline"].get(figure.key)
                beside = "" if simplest is None else f"; {summary['baseline']['name']}, held out: {simplest:.4f}"
                print(f"{figure.name:24}{figure.text(found):>8} ({figure.interval(found)}){beside}")
        work = f"{summary['parameters']:,} parameters, {summary['epochs']} epochs, {summary['seconds']:.0f} s in all"
        print(f"{work}; training {summary['tokens_per_second']:,.0f} tokens/s")
        sentences = list(run.task.reader.inputs(run.vocabulary, find_sources(arguments.test), None))
        tokens = sum(len(sentence.words) for sentence in sentences)
        rates = sorted(tokens / machine.seconds(lambda: list(run.predict(sentences))) for _ in range(ROUNDS))
        print(f"predicting {rates[ROUNDS // 2]:,.0f} tokens/s, from sentences in memory to their tags")


if __name__ == "__main__":
    main()
