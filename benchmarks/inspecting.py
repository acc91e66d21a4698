"""Show that inspection costs no speed when it is not used: the same work before and after an inspection.

    python benchmarks/inspecting.py [--layer lstm] [--rounds 9]

A small model of each layer reads 64 sequences of 128 tokens with gradients, and generates 200 tokens one by one. Both
are timed on a run that was never inspected and on one that was, in turn, with medians of several rounds. The script
prints the ratio of the inspected run's time to the other's for each layer, and the largest ratio last. Two identical
runs differ by the noise of the machine.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import seriatim

LAYERS = ("rnn", "lstm", "gru", "lstm-peephole", "convolution", "mamba", "transformer")
TEXT = "Return the number of items in the container, or raise an error if there is none."


def train(layer: str, out: Path) -> Any:
    return seriatim.train(
        {
            "data": {"train": "builtin:python-docs"},
            "model": {"layer": layer, "embedding_size": 128, "hidden_size": 256},
            "training": {"steps": 5, "precision": "float32"},
            "out": str(out),
        }
    )


def read(run: Any) -> None:
    tokens = torch.arange(64 * 128).view(64, 128) % run.tokenizer.vocabulary_size
    loss, _ = run.model.loss(tokens, tokens)
    loss.backward()
    run.model.zero_grad()


def write(run: Any) -> None:
    list(run.generate(TEXT, max_tokens=200, seed=1))


def seconds(work: Callable[[Any], None], run: Any) -> float:
    started = time.perf_counter()
    work(run)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=seriatim.layers.names(), action="append")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    largest = 0.0
    for layer in arguments.layer or LAYERS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            plain, inspected = train(layer, path), seriatim.load(path)
            seriatim.inspect(inspected, TEXT, out=Path(folder) / "page.html")
            ratios = []
            for work in (read, write):
                for run in (plain, inspected):
                    work(run)
                times = [(seconds(work, inspected), seconds(work, plain)) for _ in range(arguments.rounds)]
                ratios.append(median(one for one, _ in times) / median(other for _, other in times))
        largest = max(largest, *ratios)
        print(f"{layer:15} reading with gradients {ratios[0]:.3f}  writing {ratios[1]:.3f}", flush=True)
    print(f"largest ratio: {largest:.3f}")


if __name__ == "__main__":
    main()
