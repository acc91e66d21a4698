"""From finished rows to `results.json`: means over seeds, and who differs from the best by more than chance."""

import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..evaluation.intervals import Metrics
from ..layers import find as find_layer
from ..storage.weights import load_tensors
from ..tasks import counting, find
from ..tasks.counting import LAYER as COUNTED
from ..training.environment import environment
from ..version import __version__
from .metric import choose_metric, difference, more_is_better
from .plan import FORMAT, Plan
from .row_names import bare, parts, width_of

COSTS = (
    "state_bytes",
    "state_at_length",
    "step_milliseconds",
    "milliseconds_per_token",
    "reading_milliseconds",
    "distance",
    "samples",
)
FIRST = (
    *("hidden_size", "embedding_size", "num_layers", "bidirectional", "options", "parameters", "learning_rate"),
    *("precision", "curve", "held_out", "ngrams", *COSTS),
)
"""What the first run of a layer says for all of its runs."""
Rows = Mapping[tuple[str, int], Mapping[str, Any]]
"""Rows by layer and seed."""


def assemble(
    folder: Path,
    plan: Plan,
    *,
    rows: Rows,
    failures: Sequence[Mapping[str, Any]],
    tried: Mapping[str, list[Metrics]],
    described: str,
    seconds: float,
) -> dict[str, Any]:
    """What `results.json` holds.

    Args:
        folder: of the comparison.
        plan: what was compared.
        rows: that are finished.
        failures: the trainings that failed: ``layer``, ``seed`` and ``reason`` of each.
        tried: the learning rates that were tried for each layer, and what came of them.
        described: how much data there was to learn from.
        seconds: that the comparison took so far.
    """
    task = find(plan.config(plan.layers[0], plan.seeds[0]))
    metric = choose_metric(task, plan.metric)
    there = {key for row in rows.values() for key in row["metrics"]} or {figure.key for figure in task.figures}
    figures = sorted(task.figures, key=lambda figure: figure.key != metric.key)
    failed = {failure["layer"]: str(failure["reason"]) for failure in failures}
    found = [
        _layer(folder, plan, layer, rows=rows, failed=failed.get(layer), tried=tried.get(layer, []))
        for layer in plan.layers
    ]
    _differences(folder, plan, found)
    one: Mapping[str, Any] = next(iter(rows.values()), {})
    return {
        "format": FORMAT,
        "task": plan.base.task,
        "data": {
            "train": plan.base.data.train,
            "valid": task.validation_spec(),
            "measured_on": plan.measured_in_words(),
            "described": {"train": described, "measured": one.get("described", "")},
        },
        "tokenizer": {"kind": task.config.tokenizer.kind, "vocabulary_size": one.get("vocabulary_size")},
        "budget": plan.budget.given(),
        "parameters": plan.parameters,
        "tune": plan.tune,
        "seeds": plan.seeds,
        "metric": {
            "key": metric.key,
            "name": metric.name,
            "digits": metric.digits,
            "more_is_better": more_is_better(metric.key),
        },
        "figures": [
            {"key": figure.key, "name": figure.name, "digits": figure.digits, "headline": figure.headline}
            for figure in figures
            if figure.key in there
        ],
        "command": plan.command,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": seconds,
        "machine": machine(),
        "versions": {"seriatim": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "failures": [{key: failure[key] for key in ("layer", "seed", "reason")} for failure in failures],
        "rows": found,
    }


def machine() -> dict[str, Any]:
    """What it was measured on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here = environment(device)
    return {
        "processor": here["processor"],
        "device": here["device"],
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _layer(
    folder: Path, plan: Plan, layer: str, *, rows: Rows, failed: str | None, tried: list[Metrics]
) -> dict[str, Any]:
    """The row of one layer."""
    mine = [rows[layer, seed] for seed in plan.seeds if (layer, seed) in rows]
    words = {"layer": layer, "architecture": bare(layer), "width": width_of(layer), "counted": layer == COUNTED}
    words |= in_words(layer)
    if not mine:
        return {**words, "failed": failed or "not trained yet"}
    first = mine[0]
    keys = [key for key, value in first["metrics"].items() if isinstance(value, int | float)]
    values = {key: [row["metrics"][key] for row in mine if row["metrics"].get(key) is not None] for key in keys}
    memory = [row["memory_bytes"] for row in mine if row["memory_bytes"] is not None]
    return {
        **words,
        **{name: first.get(name) for name in FIRST},
        "tried": tried,
        "metrics": {key: float(np.mean(found)) for key, found in values.items()},
        "spread": {key: [min(found), max(found)] for key, found in values.items()},
        "runs": [_run(folder, row) for row in mine],
        "tokens_per_second": float(np.mean([row["tokens_per_second"] for row in mine])),
        "memory_bytes": max(memory, default=None),
        "note": next((row["note"] for row in mine if row["note"]), failed),
        "difference": None,
        "failed": None,
    }


def in_words(layer: str) -> dict[str, Any]:
    """What a layer keeps of the past, whether it trains in parallel, and its paper; of a mixed stack for each part."""
    if layer == COUNTED:
        return {name: counting.describe()[name] for name in ("keeps", "parallel", "paper")}
    found = [find_layer(part) for part in dict.fromkeys(parts(layer))]
    return {
        "keeps": "; ".join(dict.fromkeys(one.keeps for one in found)),
        "parallel": all(one.parallel for one in found),
        "paper": "; ".join(dict.fromkeys(one.paper for one in found)),
    }


def _run(folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    path = f"runs/{row['layer']}-{row['seed']}"
    names = ("seed", "metrics", "steps", "tokens", "training_seconds", "tokens_per_second")
    again = [
        "seriatim",
        "train",
        "--config",
        str(folder / path / "config.yaml"),
        "--out",
        f"{folder}-again/{Path(path).name}",
    ]
    return {"path": path, **{name: row[name] for name in names}, "command": shlex.join(again)}


def _differences(folder: Path, plan: Plan, found: Sequence[dict[str, Any]]) -> None:
    """Pairs every row with the best one; statistics of several seeds are added, item by item."""
    done = [row for row in found if row["failed"] is None and row["metrics"].get(plan.metric) is not None]
    if not done:
        return
    sign = -1 if more_is_better(plan.metric) else 1
    best = min(done, key=lambda row: sign * row["metrics"][plan.metric])
    of_best = _statistics(folder, best)
    for row in done:
        if row is not best and len(row["runs"]) == len(best["runs"]):
            apart = difference(_statistics(folder, row), of_best, plan.metric)
            row["difference"] = apart and {"to": best["layer"], **apart}


def _statistics(folder: Path, row: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Of every item, summed over the seeds."""
    total: dict[str, np.ndarray] = {}
    for run in row["runs"]:
        kept = load_tensors(folder / "rows" / f"{row['layer']}-{run['seed']}.safetensors")
        for name, values in kept.items():
            total[name] = total[name] + values.numpy() if name in total else values.numpy()
    return total


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
