"""Measure the accuracy of several classifiers with intervals, beside the most frequent label.

    python benchmarks/classification.py --train train.tsv --test test.tsv [--valid dev.tsv] [--label coarse]

All layers have the same settings: words in lower case, embedding 300, hidden 256 in each direction, dropout 0.5, mean
pooling by default, word dropout 0.3, AdamW 0.002 with a cosine schedule, weight decay 0.1, batch 32. With `--valid`,
the validation data chooses the epoch. Without it, the model is trained on all training texts, and the last weights are
used. The script prints accuracy and macro F1 on the test texts, parameters and seconds.
"""

import argparse
import tempfile
import time
from pathlib import Path

import seriatim

LAYERS = ("lstm", "gru", "rnn", "convolution", "transformer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--label", default="label")
    parser.add_argument("--layer", choices=LAYERS, action="append")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pooling", default="mean", help="mean, max, final or attention")
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{'':14}{'accuracy':>10}{'95 % interval':>20}{'macro F1':>10}{'parameters':>12}{'seconds':>9}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        valid = None if arguments.valid is None else str(arguments.valid)
        for layer in arguments.layer or LAYERS:
            started = time.perf_counter()
            run = seriatim.train(
                {
                    "task": "classify",
                    "data": {"train": str(arguments.train), "valid": valid, "label": arguments.label},
                    "tokenizer": {"lowercase": True},
                    "model": {
                        "layer": layer,
                        "embedding_size": 300,
                        "hidden_size": 256,
                        "dropout": 0.5,
                        "options": {"pooling": arguments.pooling},
                    },
                    "training": {
                        "epochs": arguments.epochs,
                        "learning_rate": arguments.rate,
                        "batch_size": 32,
                        "weight_decay": 0.1,
                        "seed": arguments.seed,
                    },
                    "out": str(folder / layer),
                }
            )
            seconds = time.perf_counter() - started
            found = run.evaluate(str(arguments.test))
            span = f"{found['accuracy_low']:.4f} to {found['accuracy_high']:.4f}"
            sizes = f"{run.summary['parameters']:12,}{seconds:9.0f}"
            print(f"{layer:14}{found['accuracy']:10.4f}{span:>20}{found['macro_f1']:10.4f}{sizes}", flush=True)
        print(f"{'commonest':14}{found['majority']:10.4f}")


if __name__ == "__main__":
    main()
