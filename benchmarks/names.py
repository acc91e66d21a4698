"""Train a character model of first names: validation loss of three recurrent layers of the same width.

Claim: an Elman network of at most 24,028 parameters reaches 2.066 nats per character (with the end symbol) or less
after 10 epochs with Adam 1e-3 and batches of 16. LSTM and GRU of the same width reach less.

    python benchmarks/names.py --names names.txt

The split is the published one: random.seed(123), shuffle, 80 % / 10 % / 10 %.
"""

import argparse
import random
import tempfile
from pathlib import Path

import machine

import seriatim

TARGET, MOST_PARAMETERS = 2.066, 24_028


def split(names: Path, folder: Path) -> dict[str, str]:
    """Write the three parts and return their paths."""
    lines = [line for line in names.read_text(encoding="utf-8").split("\n") if line]
    random.seed(123)
    random.shuffle(lines)
    first, second = int(0.8 * len(lines)), int(0.9 * len(lines))
    parts = {"train": lines[:first], "valid": lines[first:second], "test": lines[second:]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
    return {name: str(folder / f"{name}.txt") for name in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", required=True, type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory() as folder:
        parts = split(arguments.names, Path(folder))
        found = {}
        for layer in ("rnn", "lstm", "gru"):
            run = seriatim.train(
                {
                    "data": {"train": parts["train"], "valid": parts["valid"], "unit": "line"},
                    "model": {"layer": layer, "embedding_size": 96, "hidden_size": 96},
                    "training": {
                        "epochs": arguments.epochs,
                        "batch_size": 16,
                        "optimizer": "adam",
                        "learning_rate": 1e-3,
                        "schedule": "cosine",
                    },
                    "out": f"{folder}/{layer}",
                }
            )
            valid, test = run.summary["valid"], run.evaluate(parts["test"])
            found[layer] = valid["loss"]
            print(
                f"{layer:5} {run.summary['parameters']:7,} parameters   valid {valid['loss']:.4f} "
                f"({valid['loss_low']:.3f} to {valid['loss_high']:.3f})   test {test['loss']:.4f}   "
                f"{run.summary['seconds']:.0f} s   {run.summary['tokens_per_second']:,.0f} tokens/s",
                flush=True,
            )
            if layer == "rnn":
                assert run.summary["parameters"] <= MOST_PARAMETERS
    print(f"rnn {found['rnn'] / TARGET:.4f} of the published {TARGET}")


if __name__ == "__main__":
    main()
