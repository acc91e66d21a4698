"""Measure the benefit of gates and attention: accuracy against distance on three memory tasks.

    python benchmarks/distance.py [--steps 1500] [--plot distance.png]

In `builtin:copy`, `builtin:adding` and `builtin:agreement`, a label depends on something that is a number of words or
letters back. Each layer is trained and tested at one distance, with the same number of steps; there are no shorter
examples that would show it what to keep. The layers read in one direction, so that they must remember the information
to the end.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import seriatim

LAYERS = ("rnn", "lstm", "gru", "transformer", "mamba")
TASKS = {
    "copy": ("char", (5, 10, 20, 40, 100)),
    "adding": ("char", (4, 10, 20, 40, 100)),
    "agreement": ("word", (3, 10, 20, 40, 60)),
}
TITLES = {"copy": "copy (chance 0.1)", "adding": "adding (chance 0.1)", "agreement": "agreement (chance 0.5)"}
UNITS = {"char": "letters", "word": "words"}


def config(task: str, layer: str, distance: int, steps: int, out: Path) -> dict[str, Any]:
    options = {"causal": True, "position": "rotary"} if layer == "transformer" else {}
    return {
        "task": "classify",
        "data": {"train": f"builtin:{task}:train-{distance}", "valid": f"builtin:{task}:valid-{distance}"},
        "tokenizer": {"kind": TASKS[task][0]},
        "model": {
            "layer": layer,
            "embedding_size": 64,
            "hidden_size": 64,
            "bidirectional": False,
            "options": {**options, "pooling": "final"},
        },
        "training": {"steps": steps, "batch_size": 64, "learning_rate": 0.003},
        "out": str(out),
    }


def plot(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(1 + 3.5 * len(found), 3.8), layout="constrained")
    axes = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for place, (task, layers) in zip(axes, found.items(), strict=True):
        kind, distances = TASKS[task]
        for (layer, accuracy), style in zip(layers.items(), ("o-", "s--", "^-.", "v:", "d-"), strict=False):
            place.plot(distances, accuracy, style, label=layer)
        place.set(xscale="log", title=TITLES[task], xlabel=f"distance ({UNITS[kind]})", ylim=(-0.02, 1.02))
        place.set_xticks(distances, [str(distance) for distance in distances])
        place.minorticks_off()
        place.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy")
    axes[-1].legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--layer", choices=LAYERS, action="append")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for task in arguments.task or TASKS:
            distances = TASKS[task][1]
            print(f"\n{task:14}" + "".join(f"{distance:>8}" for distance in distances), flush=True)
            for layer in arguments.layer or LAYERS:
                accuracy = []
                print(f"{layer:14}", end="", flush=True)
                for distance in distances:
                    out = Path(temporary) / f"{task}-{layer}-{distance}"
                    run = seriatim.train(config(task, layer, distance, arguments.steps, out))
                    accuracy.append(run.evaluate(f"builtin:{task}:test-{distance}")["accuracy"])
                    print(f"{accuracy[-1]:8.3f}", end="", flush=True)
                print(flush=True)
                found.setdefault(task, {})[layer] = accuracy
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
