"""Measure what rounded weights cost in perplexity and bits per byte, and gain in speed: bfloat16, int8 and int4.

    python benchmarks/weights.py [--data builtin:python-docs] [--steps 600] [RUN ...]

For each run of a language model the script prints the perplexity and bits per byte with the weights as they are and
rounded, the difference in bits with its 95 % interval (paired bootstrap), and the tokens per second of decoding one
text, measured in turn. Without RUN, an LSTM, a Transformer and Mamba are trained for it. These runs fit into the
processor's cache; `decoding.py --only formats` measures a large model.

Claims: int8 costs less than 0.001 bits per byte, and int4 less than 0.01, on each run.
"""

import argparse
import math
import tempfile
from typing import Any

import record
from machine import describe

import seriatim
from seriatim.runs.ensembles import cost_of_rounding

FORMATS = ("bfloat16", "int8", "int4")
LIMITS = {"int8": 0.001, "int4": 0.01}
"""Bits per byte that a format may cost."""
HEADINGS = ("run", "weights", "perplexity", "bits per byte", "difference, 95 % interval", "tokens/s", "float32 in turn")
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"num_layers": 2, "hidden_size": 512},
    "transformer": {"num_layers": 4, "hidden_size": 256, "options": {"window": 512}},
    "mamba": {"num_layers": 4, "hidden_size": 256},
}
"""What is trained without RUN, with BPE of 4,000 tokens."""


def trained(data: str, steps: int, folder: str) -> tuple[list[str], dict[str, Any]]:
    """Train the models, and return their folders and their settings."""
    paths, settings = [], {}
    for layer, sizes in MODELS.items():
        stated = {
            "task": "lm",
            "data": {"train": data, "unit": "stream"},
            "tokenizer": {"kind": "bpe", "vocabulary_size": 4000},
            "model": {
                "options": {},
                **sizes,
                "layer": layer,
                "bidirectional": False,
                "dropout": 0.1,
                "embedding_size": sizes["hidden_size"],
                "tie_weights": True,
            },
            "training": {
                **record.TRAINING,
                "steps": steps,
                "batch_size": 16,
                "sequence_length": 64,
                "learning_rate": 0.002,
                "warmup_steps": 50,
                "evaluate_every": steps,
            },
            "out": f"{folder}/{layer}",
        }
        settings[layer] = record.settled(seriatim.train(stated), stated)
        paths.append(f"{folder}/{layer}")
        print(f"{layer}: trained", flush=True)
    return paths, settings


def measure(path: str, data: str) -> dict[str, dict[str, Any]]:
    """Return the figures of each format of a run, and of the weights as they are."""
    figures = {}
    for weights in FORMATS:
        run = seriatim.load(path, weights=weights)
        cost = cost_of_rounding(run, run.evaluate(data), data)
        bits, loss = cost.metrics["bits_per_byte"], cost.metrics["loss"]
        if weights == FORMATS[0]:
            figures["float32"] = {"perplexity": math.exp(loss), "bits_per_byte": bits}
        more = cost.differences["bits_per_byte"]
        figures[weights] = {
            "perplexity": math.exp(loss * (1 + more.difference / bits)),
            "bits_per_byte": bits + more.difference,
            "difference": record.Figure(more.difference, more.low, more.high),
            "speed": cost.speeds.first,
            "speed of float32": cost.speeds.second,
            "ratio": record.Figure(cost.speeds.ratio, cost.speeds.ratio_low, cost.speeds.ratio_high),
        }
        figures[weights]["perplexity lost"] = figures[weights]["perplexity"] - math.exp(loss)
    return figures


def row_of(layer: str, weights: str, one: dict[str, Any]) -> tuple[str, ...]:
    more, interval = one.get("difference"), ""
    if more is not None:
        interval = f"{more.value:+.5f} ({more.low:+.5f} to {more.high:+.5f})"
    shown = (f"{one['perplexity']:.3f}", f"{one['bits_per_byte']:.4f}", interval)
    speeds = ("", "")
    if "ratio" in one:
        ratio = one["ratio"]
        beside = f"{one['speed of float32']:,.0f} ({ratio.value:.2f} times; {ratio.low:.2f} to {ratio.high:.2f})"
        speeds = (f"{one['speed']:,.0f}", beside)
    return layer, weights, *shown, *speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--data", default="builtin:python-docs")
    parser.add_argument("--steps", type=int, default=600, help="of the trainings without RUN")
    args = parser.parse_args()
    print(describe(), flush=True)
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths, settings = (args.runs, {}) if args.runs else trained(args.data, args.steps, folder)
        for path in paths:
            layer = seriatim.load(path).config.model.layer
            figures[layer] = measure(path, args.data)
            rows += [row_of(layer, weights, one) for weights, one in figures[layer].items()]
            print("\n".join(" | ".join(row) for row in rows[-4:]), flush=True)
    claims = []
    for weights, limit in LIMITS.items():
        worst = max(figures, key=lambda layer: figures[layer][weights]["difference"].value)
        cost, lost = (figures[worst][weights][key] for key in ("difference", "perplexity lost"))
        claims.append(
            record.Claim(
                text=f"{weights} costs under {limit} bits per byte on each of {len(figures)} models (most: {worst})",
                reached=cost.value < limit,
                peer="float32",
                ours=f"{cost.value:+.5f} bits per byte, {lost:+.3f} perplexity",
                theirs="0",
            )
        )
    record.save(
        "weights",
        claims=claims,
        settings={**settings, "arguments": {"data": args.data, "layers": list(figures)}},
        figures=figures,
        tables=[[HEADINGS, *rows]],
        notes="Language models of tokens on held-out text, each compared with its own weights in float32. "
        "Speeds are those of one text, in turn with float32; the models are small enough for the processor's cache.",
    )


if __name__ == "__main__":
    main()
