"""Measure the benefit of gates and attention: accuracy against distance on three memory tasks.

Claims: gates carry a symbol over 20 letters, and an Elman network does not; attention carries it over 100.

    python benchmarks/distance.py [--steps 1500]

In `builtin:copy`, `builtin:adding` and `builtin:agreement`, a label depends on something that is a number of words or
letters back. Each layer is trained and tested at one distance, with the same number of steps; there are no shorter
examples that would show it what to keep. The layers read in one direction, so that they must remember the information
to the end. The network answers alone, without dropout. Finished trainings are kept in a file, so that the script can be
interrupted.
"""

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any

import record

import seriatim

LAYERS = ("rnn", "lstm", "gru", "transformer", "mamba")
TASKS = {
    "copy": ("char", (5, 10, 20, 40, 100)),
    "adding": ("char", (4, 10, 20, 40, 100)),
    "agreement": ("word", (3, 10, 20, 40, 60)),
}
TITLES = {"copy": "copy (chance 0.1)", "adding": "adding (chance 0.1)", "agreement": "agreement (chance 0.5)"}
UNITS = {"char": "letters", "word": "words"}
READING = {
    "pooling": "final",
    "characters": "none",
    "character_size": 30,
    "word_features": [],
    "feature_size": 64,
    "filters": 50,
    "word_dropout": 0.0,
    "class_weights": "none",
    "label_smoothing": 0.0,
}
"""The options of the classifier: it reads no more of a token than its index."""


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
            "num_layers": 1,
            "dropout": 0.0,
            "bidirectional": False,
            "options": {**options, **READING},
        },
        "training": {
            **record.TRAINING,
            "metric": "accuracy",
            "steps": steps,
            "batch_size": 64,
            "learning_rate": 0.003,
            "warmup_steps": steps // 20,
        },
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
    parser.add_argument("--keep", type=Path, help="a file of finished trainings, with which the script goes on")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    settings: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        keep = arguments.keep or Path(temporary) / "kept.json"
        for task in arguments.task or TASKS:
            distances = TASKS[task][1]
            print(f"\n{task:14}" + "".join(f"{distance:>8}" for distance in distances), flush=True)
            for layer in arguments.layer or LAYERS:
                accuracy = []
                print(f"{layer:14}", end="", flush=True)
                for distance in distances:
                    stated = config(task, layer, distance, arguments.steps, Path(temporary) / "run")
                    key = f"{task} {layer} {distance}, {arguments.steps} steps"
                    one = record.remembered(keep, key, functools.partial(measure, stated, task, distance))
                    accuracy.append(one["accuracy"])
                    settings[f"{task} {layer}"] = one.pop("settings")
                    figures[f"{task} {layer} {distance}"] = one
                    print(f"{accuracy[-1]:8.3f}", end="", flush=True)
                print(flush=True)
                found.setdefault(task, {})[layer] = accuracy
    save(found, figures, settings)


def measure(stated: dict[str, Any], task: str, distance: int) -> dict[str, Any]:
    """Train one model, and return its accuracy on the test part with all settings."""
    run = seriatim.train(stated, overwrite=True)
    metrics = run.evaluate(f"builtin:{task}:test-{distance}")
    accuracy = {key: value for key, value in metrics.items() if key.startswith("accuracy")}
    return {**accuracy, "settings": record.settled(run, stated)}


def save(found: dict[str, dict[str, list[float]]], figures: dict[str, Any], settings: dict[str, Any]) -> None:
    tables = []
    for task, layers in found.items():
        title = f"`builtin:{task}`, {TITLES[task].partition('(')[2][:-1]}"
        rows = [[f"`{layer}`", *(f"{value:.3f}" for value in values)] for layer, values in layers.items()]
        tables.append([[title, *TASKS[task][1]], *rows])
    copied = {layer: dict(zip(TASKS["copy"][1], values, strict=True)) for layer, values in found["copy"].items()}
    gated = min(copied["lstm"][20], copied["gru"][20])
    claims = {
        "`lstm` and `gru` carry a symbol over 20 letters, `rnn` does not": gated > 0.9 > copied["rnn"][20],
        "attention carries it over 100": copied["transformer"][100] > 0.8,
    }
    record.save(
        "distance",
        claims=claims,
        settings=settings,
        figures=figures,
        tables=tables,
        notes="""
            Accuracies by distance. Each layer of width 64 is trained and tested at one distance, with 1,500 steps of
            64 rows; the network answers alone. The chance is that of guessing.
        """,
        draw=lambda file: plot(found, file),
    )


if __name__ == "__main__":
    main()
