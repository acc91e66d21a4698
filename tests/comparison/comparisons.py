"""Results of a comparison as they might be, for tests of what is made of them."""

import math
from pathlib import Path
from typing import Any

SMALL = {
    "model": {"embedding_size": 8, "hidden_size": 12},
    "training": {"batch_size": 4, "sequence_length": 16, "baseline": "none"},
}
LINES = {
    "classify": "label\ttext\n" + "yes\tthis is good\nno\tthat is bad\n" * 6,
    "seq2seq": "ab\tba\ncd e\te dc\nabc\tcba\n" * 4,
    "tag": "the DET\ncat NOUN\nsees VERB\n\na DET\ndog NOUN\n\n" * 4,
}
LAYERS = {
    "prior": ("nothing", True),
    "ngram": ("counts of the last words", True),
    "window": ("the last inputs of its context", True),
    "rnn": ("one vector", False),
    "lstm": ("two vectors: hidden and cell", False),
    "gru": ("one vector", False),
    "convolution": ("the last inputs, as many as its filters cover", True),
    "transformer": ("keys and values of all inputs, or of a window", True),
    "mamba": ("one small matrix, and the last inputs of a short convolution", True),
}


def small(texts: dict[str, str], out: Path | str, **data: str) -> dict[str, Any]:
    """The configuration of a quick comparison."""
    return {**SMALL, "data": {"train": texts["train"], "valid": texts["valid"], **data}, "out": str(out)}


def made_up(layers: tuple[str, ...] = tuple(LAYERS), *, seeds: int = 1, tune: bool = False) -> dict[str, Any]:
    """Results with everything in them: language models by their perplexity."""
    rows = [made_up_row(i, layer, seeds=seeds, tune=tune) for i, layer in enumerate(layers)]
    best = min(rows, key=lambda row: row["metrics"]["perplexity"])
    for row in rows:
        by = row["metrics"]["perplexity"] - best["metrics"]["perplexity"]
        if row is not best:
            row["difference"] = {
                "to": best["layer"],
                "difference": by,
                "low": by - 0.4,
                "high": by + 0.3,
                "p_value": 0.01,
            }
    for rank, row in enumerate(sorted(rows, key=lambda row: row["metrics"]["perplexity"]), 1):
        row["rank"] = rank
    return {
        "format": "seriatim comparison 1",
        "task": "lm",
        "continues_text": True,
        "data": {
            "train": "builtin:python-docs",
            "valid": None,
            "measured_on": "builtin:python-docs, part test",
            "described": {"train": "1,800,000 tokens (300,000 words)", "measured": "100,000 tokens (17,000 words)"},
        },
        "simplest": {"name": "a unigram", "perplexity": 20.0},
        "tokenizer": {"kind": "char", "vocabulary_size": 120},
        "budget": {"minutes": 2.0},
        "parameters": 1_000_000,
        "tune": 3 if tune else None,
        "seeds": list(range(1, seeds + 1)),
        "metric": {"key": "perplexity", "name": "perplexity per token", "digits": 2, "more_is_better": False},
        "figures": [
            {"key": "perplexity", "name": "perplexity per token", "digits": 2},
            {"key": "loss", "name": "loss (nats per token)", "digits": 4},
            {"key": "bits_per_byte", "name": "bits per byte", "digits": 4},
        ],
        "command": f"seriatim compare lm --data builtin:python-docs --layers {','.join(layers)} --minutes 2",
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 1234.5,
        "machine": {"processor": "a processor", "cores": 2, "threads": 2, "memory_bytes": 8e9, "system": "Linux"},
        "versions": {"seriatim": "0.1.0", "torch": "2.13.0", "python": "3.11"},
        "rows": rows,
    }


def made_up_row(i: int, layer: str, *, seeds: int = 1, tune: bool = False) -> dict[str, Any]:
    """One layer: of the ``i``-th everything is a little different."""
    keeps, parallel = LAYERS[layer]
    counted, loss = layer == "ngram", 2.5 - 0.15 * i + (0.2 if i == 3 else 0)
    speed = (90_000 if parallel else 30_000) - 3_000 * i
    grows = layer == "transformer"
    sizes = {
        str(10**k): 0 if layer == "prior" else 2048 * min(10**k, 512) if grows else 1024 * (i + 1) for k in range(5)
    }
    steps = [max(1, round(10 ** (k / 20))) for k in range(20, 66)]
    at = [{"step": s, "tokens": s * 2048, "seconds": s * 2048 / speed} for s in steps]
    metrics = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
    metrics |= {
        f"{key}_{end}": value * by for key, value in metrics.items() for end, by in (("low", 0.98), ("high", 1.02))
    }
    command = f"seriatim train --config a/runs/{layer}-1/config.yaml --out a-again/{layer}-1"
    runs = [
        {
            "seed": seed,
            "path": f"runs/{layer}-{seed}",
            "metrics": {key: value * (1 + 0.01 * (seed - 1)) for key, value in metrics.items()},
            "steps": None if counted else 1900,
            "epochs": None if counted else 0.5 + i,
            "planned_seconds": None if counted else 120.0,
            "load": {"seconds": 130.0, "cpu_seconds": 250.0, "other_cpu_seconds": 1.0},
            "tokens": 1900 * 2048,
            "training_seconds": 120.0,
            "tokens_per_second": speed,
            "command": command,
        }
        for seed in range(1, seeds + 1)
    ]
    needed = {str(4**k): metrics["perplexity"] * (1.5 - 0.1 * k) for k in range(4)}
    return {
        "layer": layer,
        "keeps": keeps,
        "parallel": parallel,
        "paper": "Somebody 1999",
        "counted": counted,
        "hidden_size": None if counted else 256 + i,
        "embedding_size": 64,
        "num_layers": 1,
        "bidirectional": False,
        "options": {"order": 5} if counted else {},
        "epochs": None if counted else 0.5 + i,
        "disk_bytes": 4_000_000,
        "rank": i + 1,
        "parameters": 3_456_789 if counted else 1_000_000 + 1_000 * i,
        "learning_rate": None if counted else 0.003,
        "tried": [{"learning_rate": 10.0**-k, "value": 5.0 + k} for k in (2, 3, 4)] if tune and not counted else [],
        "metrics": metrics,
        "spread": {},
        "runs": runs,
        "tokens_per_second": speed,
        "memory_bytes": 5e8 + 3e7 * i,
        "state_bytes": sizes,
        "step_milliseconds": {str(10**k): 0.3 + 0.02 * i + (0.002 * 10**k if grows else 0) for k in range(4)},
        "milliseconds_per_token": 0.3 + 0.05 * i,
        "step_spread": {str(10**k): [0.28 + 0.02 * i, 0.5 + 0.02 * i] for k in range(4)},
        "milliseconds_spread": [0.29 + 0.05 * i, 0.31 + 0.05 * i],
        "reading_milliseconds": {str(4**k): 0.2 + 4**k * (0.01 if parallel else 0.05) for k in range(2, 6)},
        "distance": {
            "kind": "context",
            "of": "perplexity",
            "name": "perplexity when only the last k tokens are seen",
            "unit": "tokens",
            "values": needed,
            "count": 4000,
            "items": "tokens",
            "measured": "4,000 tokens in 40 stretches spread over the text",
            "whole": metrics["perplexity"],
            "bounds": {far: [value * 0.9, value * 1.1] for far, value in needed.items()},
            "gains": [
                {"beyond": 4**k, "bits": 0.3 - 0.1 * k, "low": 0.28 - 0.1 * k, "high": 0.32 - 0.1 * k} for k in range(4)
            ],
        },
        "held_out": []
        if counted
        else [each | {"key": "perplexity", "value": math.exp(loss + 3 / each["step"] ** 0.5)} for each in at[20::12]],
        "samples": [{"prompt": "The file ", "text": f"is opened by {layer}.\nIt is read"}],
        "difference": None,
        "failed": None,
    }


def failed_row(layer: str = "mamba", reason: str = "it does not fit") -> dict[str, Any]:
    """A layer of which nothing is known but why."""
    return {"layer": layer, "keeps": "one small matrix", "parallel": True, "paper": "Somebody 1999", "failed": reason}
