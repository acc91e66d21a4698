"""What is measured of one trained layer: its row."""

import json
from collections.abc import Iterator

import numpy as np
from torch import nn

from ..core.allocator import freed_memory_kept
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from ..tasks.counting import LAYER as COUNTED
from ..version import __version__
from .cost import costs
from .distance import distances
from .metric import statistics_of
from .plan import Plan
from .samples import samples

POINTS = 200
"""Of a learning curve, at most."""
SIZES = ("hidden_size", "embedding_size", "num_layers")
"""Fields of the configuration that mean nothing where a model is counted."""


def measure(run: Run, plan: Plan, *, seed: int, full: bool) -> tuple[Metrics, dict[str, np.ndarray]]:
    """A row of a comparison.

    Args:
        run: trained to its end.
        plan: of the comparison.
        seed: of the run.
        full: whether to measure what one run of a layer is enough for: costs, samples, distances.

    Returns:
        The row as `rows/LAYER-SEED.json` has it, and the statistics of every item for the paired bootstrap.
    """
    spec, part = plan.measured()
    data = run.task.read(spec, part, run.vocabulary)
    with freed_memory_kept():
        metrics, measures = run.task.examine(run.model, data)
    statistics = statistics_of(measures)
    summary, config = run.summary, run.config
    counted = config.model.layer == COUNTED
    points = list(_points(run))
    row = {
        "parameters": summary["parameters"],
        **{name: None if counted else getattr(config.model, name) for name in SIZES},
        "bidirectional": bool(config.model.bidirectional),
        "options": config.model.options,
        "learning_rate": None if counted else config.training.learning_rate,
        "metrics": _plain(metrics),
        "ngrams": metrics.get("ngrams"),
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "training_seconds": summary["tokens"] / summary["tokens_per_second"],
        "tokens_per_second": summary["tokens_per_second"],
        "curve": _curve(points, products(run.model)),
        "held_out": _held_out(points, products(run.model), (plan.metric, run.task.selection_metric(run.vocabulary))),
        "tokenizer": run.vocabulary.fingerprint(),
        "vocabulary_size": summary["vocabulary_size"],
        "described": run.task.describe(data),
        "data": data.key,
        "trained_on": run.task.read(run.task.training_spec(), "train", run.vocabulary).key,
        "precision": summary["precision"],
        "version": __version__,
    }
    if full:
        row |= costs(run, (spec, part))
        row["distance"] = distances(run, data, (spec, part), plan.metric, statistics)
        row["samples"] = samples(run, data, (spec, part))
    return row, statistics


def products(model: nn.Module) -> int:
    """Parameters that multiply an input: matrices, without embeddings, of which a row is looked up."""
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    multiplied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    return sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.dim() > 1 and (id(parameter) not in looked_up or id(parameter) in multiplied)
    )


def _plain(metrics: Metrics) -> Metrics:
    """Numbers, without tables."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) or value is None}


def _points(run: Run) -> Iterator[Metrics]:
    """The records of `metrics.jsonl`."""
    path = run.path / "metrics.jsonl"
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if record.get("kind") in ("train", "valid"):
                    yield record


def _curve(points: list[Metrics], multiplied: int) -> list[Metrics]:
    """Losses of training, neighbours joined where there are very many."""
    records = [record for record in points if record["kind"] == "train" and record["loss"] is not None]
    together = -(-len(records) // POINTS) or 1
    found = []
    for start in range(0, len(records), together):
        group = records[start : start + together]
        found.append(
            {
                **_place(group[-1]["step"], group[-1]["tokens"], _seconds(group[-1]), multiplied),
                "loss": sum(record["loss"] for record in group) / len(group),
            }
        )
    return found


def _held_out(points: list[Metrics], multiplied: int, keys: tuple[str, ...]) -> list[Metrics]:
    """The first of the figures that validations have, with tokens and seconds as they were at its step."""
    trained = [record for record in points if record["kind"] == "train"]
    steps = [0, *(record["step"] for record in trained)]
    tokens = [0, *(record["tokens"] for record in trained)]
    seconds = [0.0, *(_seconds(record) for record in trained)]
    found = []
    for record in (record for record in points if record["kind"] == "valid"):
        key = next((key for key in keys if record.get(key) is not None), None)
        if key is not None:
            step = record["step"]
            place = _place(
                step, round(np.interp(step, steps, tokens)), float(np.interp(step, steps, seconds)), multiplied
            )
            found.append({**place, "value": record[key], "key": key})
    return found


def _seconds(record: Metrics) -> float:
    """Of training alone, validations left out."""
    return float(record["tokens"] / record["tokens_per_second"])


def _place(step: int, tokens: int, seconds: float, multiplied: int) -> Metrics:
    """Where on a curve a point lies; ``compute`` in operations: two for each product, forwards, and twice backwards."""
    return {"step": step, "tokens": tokens, "seconds": seconds, "compute": 6 * multiplied * tokens}
