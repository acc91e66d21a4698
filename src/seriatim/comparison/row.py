"""A row of a comparison: everything that is measured of one trained run."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from torch import nn

from ..core.allocator import freed_memory_kept
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from ..version import __version__
from .cost import costs
from .distance import distances
from .metric import statistics_of
from .plan import Plan, is_counted
from .samples import samples

POINTS = 200
"""Points of a learning curve, at most."""


def measure(run: Run, plan: Plan, *, full: bool) -> tuple[Metrics, dict[str, np.ndarray]]:
    """Measure a run.

    Args:
        run: a run that was trained to its end.
        plan: of the comparison.
        full: whether to measure costs, samples and distances, for which one run of a layer is enough.

    Returns:
        The row as `rows/LAYER-SEED.json` holds it, and the statistics of every item for paired tests.
    """
    measured = plan.measured()
    data = run.task.read(*measured, run.vocabulary)
    with freed_memory_kept():
        metrics, measures = run.task.examine(run.model, data)
    statistics = statistics_of(measures)
    summary, model = run.summary, run.config.model
    counted = is_counted(model.layer)
    records = list(_records(run))
    multiplied = multiplied_parameters(run.model)
    row = {
        "parameters": summary["parameters"],
        "hidden_size": None if counted else model.hidden_size,
        "embedding_size": None if counted else model.embedding_size,
        "num_layers": None if counted else model.num_layers,
        "bidirectional": bool(model.bidirectional),
        "options": model.options,
        "learning_rate": None if counted else run.config.training.learning_rate,
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float | None)},
        "ngrams": metrics.get("ngrams"),
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "training_seconds": summary["tokens"] / summary["tokens_per_second"],
        "tokens_per_second": summary["tokens_per_second"],
        "curve": _curve(records, multiplied),
        "held_out": _held_out(records, multiplied, (plan.metric, run.task.selection_metric(run.vocabulary))),
        "tokenizer": run.vocabulary.fingerprint(),
        "vocabulary_size": summary["vocabulary_size"],
        "described": run.task.describe(data),
        "data": data.key,
        "trained_on": run.task.read(run.task.training_spec(), "train", run.vocabulary).key,
        "precision": summary["precision"],
        "version": __version__,
    }
    if full:
        row |= costs(run, measured)
        row["distance"] = distances(run, data, measured, plan.metric, statistics)
        row["samples"] = samples(run, data, measured)
    return row, statistics


def multiplied_parameters(model: nn.Module) -> int:
    """Return the number of parameters that multiply an input: matrices, but not embeddings that are only looked up."""
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    looked_up -= {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    matrices = (weight for weight in model.parameters() if weight.dim() > 1 and id(weight) not in looked_up)
    return sum(weight.numel() for weight in matrices)


def _records(run: Run) -> Iterator[Metrics]:
    """Yield the records of `metrics.jsonl` about training steps and validations."""
    path = run.path / "metrics.jsonl"
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from (record for record in map(json.loads, file) if record.get("kind") in ("train", "valid"))


def _curve(records: Sequence[Metrics], multiplied: int) -> list[Metrics]:
    """Return training losses; where there are more than `POINTS`, neighbours are averaged."""
    steps = [record for record in records if record["kind"] == "train" and record["loss"] is not None]
    size = -(-len(steps) // POINTS) or 1
    curve = []
    for start in range(0, len(steps), size):
        group = steps[start : start + size]
        loss = sum(record["loss"] for record in group) / len(group)
        curve.append({**_place(group[-1]["step"], group[-1]["tokens"], _seconds(group[-1]), multiplied), "loss": loss})
    return curve


def _held_out(records: Sequence[Metrics], multiplied: int, keys: Sequence[str]) -> list[Metrics]:
    """Return the first available figure of each validation, with interpolated tokens and seconds of training."""
    trained = [record for record in records if record["kind"] == "train"]
    steps = [0, *(record["step"] for record in trained)]
    tokens = [0, *(record["tokens"] for record in trained)]
    seconds = [0.0, *map(_seconds, trained)]
    points = []
    for record in records:
        key = next((key for key in keys if record.get(key) is not None), None)
        if record["kind"] == "valid" and key is not None:
            step = record["step"]
            read, spent = round(np.interp(step, steps, tokens)), float(np.interp(step, steps, seconds))
            points.append({**_place(step, read, spent, multiplied), "value": record[key], "key": key})
    return points


def _seconds(record: Metrics) -> float:
    """Return the seconds of training without validations."""
    return float(record["tokens"] / record["tokens_per_second"])


def _place(step: int, tokens: int, seconds: float, multiplied: int) -> Metrics:
    """Return the coordinates of a point; ``compute`` counts two operations a product, forward and twice backward."""
    return {"step": step, "tokens": tokens, "seconds": seconds, "compute": 6 * multiplied * tokens}
