"""Labelled texts: accuracy of several layers with intervals, beside the commonest label.

    python benchmarks/classification.py --train train.tsv --test test.tsv [--valid dev.tsv] [--label coarse]

Each layer with the same settings: words in lower case, embedding 300, hidden 256 (128 a direction for what runs in
both), dropout 0.5, mean pooling, word dropout 0.3, AdamW 0.001, batch 32. Without `--valid` a tenth of the training
texts is held out to choose the epoch. Prints accuracy and macro F1 on the test texts, parameters and seconds.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

import seriatim

LAYERS = ("lstm", "gru", "rnn", "convolution", "transformer")


def held_out(train: Path, folder: Path) -> tuple[Path, Path]:
    """A tenth of the rows, drawn with seed 1, as a file of its own."""
    head, *rows = train.read_text(encoding="utf-8").splitlines()
    random.Random(1).shuffle(rows)
    cut = len(rows) // 10
    paths = folder / "train.tsv", folder / "valid.tsv"
    for path, part in zip(paths, (rows[cut:], rows[:cut]), strict=True):
        path.write_text("\n".join([head, *part]) + "\n", encoding="utf-8")
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--label", default="label")
    parser.add_argument("--layer", choices=LAYERS, action="append")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{'':14}{'accuracy':>10}{'95 % interval':>20}{'macro F1':>10}{'parameters':>12}{'seconds':>9}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train, valid = (arguments.train, arguments.valid) if arguments.valid else held_out(arguments.train, folder)
        for layer in arguments.layer or LAYERS:
            started = time.perf_counter()
            run = seriatim.train(
                {
                    "task": "classify",
                    "data": {"train": str(train), "valid": str(valid), "label": arguments.label},
                    "tokenizer": {"lowercase": True},
                    "model": {
                        "layer": layer,
                        "embedding_size": 300,
                        "hidden_size": 256 if layer == "transformer" else 128,
                        "dropout": 0.5,
                        "options": {"pooling": "mean"},
                    },
                    "training": {
                        "epochs": arguments.epochs,
                        "learning_rate": arguments.rate,
                        "batch_size": 32,
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
        print(f"{'commonest':14}{run.summary['baseline']['accuracy']:10.4f} (held out)")


if __name__ == "__main__":
    main()
