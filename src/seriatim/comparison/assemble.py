"""From finished rows to `results.json`: means over seeds, and differences from the best row."""

import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from ..core.errors import MissingError
from ..core.json_object import JsonObject
from ..evaluation.intervals import Metric, is_significant
from ..layers import find as find_layer
from ..layers.outside_code import CODE
from ..processes.executors import machine_memory
from ..storage.weights import load_tensors
from ..tasks import FITTED
from ..tasks.data_files import fraction_of
from ..training.hardware import environment
from ..version import __version__
from .differences import differences
from .findings import conditions
from .item_answers import PREFIX
from .plan import FORMAT, Plan, architecture, choose_metric, difference, is_non_neural, layers_of, read_trials, width_of
from .results import ResultRow, Results, Row, Spent, TrainingRow, spent

SHORT = 0.01
"""Fraction of a training up to which another one that runs at the same time does not count."""
MACHINE = ("processor", "device", "threads", "processors")
"""Fields of a machine that the results record; its name is recorded only if there are several machines."""
OF_EVERY_RUN = (
    *("seed", "metrics", "steps", "epochs", "tokens", "training_seconds", "planned_seconds", "tokens_per_second"),
    *("load", "machine", "ended_early"),
)
"""Fields of a training that the row of its layer lists for every run."""
Rows = Mapping[tuple[str, int], TrainingRow]  # what was measured, by layer and seed
Failures = Mapping[tuple[str, int], Exception]  # the errors of trainings that failed, by layer and seed


def assemble(folder: Path, plan: Plan, finished: Rows, failures: Failures, seconds: float) -> JsonObject:
    """Return what `results.json` holds of the comparison in a folder, which took some seconds so far."""
    task = plan.task()
    metric, measured_on = choose_metric(task, plan.metric), plan.measured()
    measured = {key for row in finished.values() for key in row.metrics}
    figures = sorted(task.evaluator.metrics, key=lambda figure: figure.key != metric.key)
    failed = {layer: str(error) for (layer, _), error in failures.items()}

    rows = [_layer(folder, plan, layer, finished, failed.get(layer)) for layer in plan.layers]
    ranked, budget = _ranked(rows, metric), plan.budget.amount()
    equal = spent(budget, ranked)
    _add_differences(folder, metric, ranked, plan.baseline, equal)
    add_conditions([run for row in rows for run in row.runs], [trial for row in rows for trial in row.tried])

    # What all rows share is taken from any of them, because a first layer may have failed.
    any_row = next(iter(finished.values()), None)
    simplest = (row.simplest for row in finished.values() if row.simplest)  # of a first seed, if it succeeded
    first_runs = [finished[row.layer, row.runs[0]["seed"]] for row in ranked]
    values = {
        "format": FORMAT,
        "task": plan.base.task,
        "timed_work": task.kind.timed_work,
        "tags_words": task.reader.tags_words,
        "continues_text": task.kind.generates_text,
        "data": {
            "train": plan.base.data.train,
            "valid": None if task.files.validation_source() is None else task.files.validation_name(),
            "measured_on": task.files.name_of(measured_on.source)
            if fraction_of(measured_on.source)
            else str(measured_on),
            "described": {"train": plan.described, "measured": any_row.described if any_row else ""},
        },
        "simplest": next(simplest, None),
        "tokenizer": {
            "kind": (any_row and any_row.tokenizer_kind) or task.config.tokenizer.kind,
            "vocabulary_size": any_row and any_row.vocabulary_size,
        },
        "budget": budget,
        "equal": equal and {**equal._asdict(), "is_equal": equal.is_equal},
        "parameters": plan.parameters,
        "tune": plan.tune,
        "seeds": plan.seeds,
        "metric": metric._asdict(),
        "interval": any_row and any_row.interval,
        "validated_on": {"tokens": any_row.validated_tokens} if any_row and any_row.validated_tokens else None,
        "figures": [figure._asdict() for figure in figures if figure.key in measured or not measured],
        "command": plan.command,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": seconds,
        "machine": _machine(rows),
        "versions": {"seriatim": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "failures": [{"layer": layer, "seed": seed, "reason": str(error)} for (layer, seed), error in failures.items()],
        "differ": differences(folder, first_runs, figures, tags=task.reader.tags_words),
        "rows": [row.to_json() for row in rows],
    }
    return {**values, "conditions": conditions(Results(values))}


def _machine(rows: Sequence[ResultRow]) -> JsonObject:
    """Return what this machine is, with the number of threads of the trainings if it was the same for all."""
    threads = {run["machine"]["threads"] for row in rows for run in row.runs if run["machine"]}
    described = environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "processor": described["processor"],
        "device": described["device"],
        "processors": os.cpu_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads.pop() if len(threads) == 1 else None,
        "memory_bytes": machine_memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _layer(folder: Path, plan: Plan, layer: str, finished: Rows, failed: str | None) -> ResultRow:
    """Return the row of one layer: means over its runs, and the costs of its first run."""
    described = _describe(layer)
    runs = [finished[layer, seed] for seed in plan.seeds if (layer, seed) in finished]
    if not runs:
        return ResultRow(**described, failed=failed or "not trained yet")
    first = runs[0]
    keys = [key for key, value in first.metrics.items() if isinstance(value, int | float)]
    values = {key: [run.metrics.get(key) for run in runs] for key in keys}
    # A figure that is null in one run is infinite there, and has no mean.
    known = {key: [value for value in each if value is not None] for key, each in values.items() if None not in each}
    changed: JsonObject = {
        "baseline": layer == plan.baseline,
        "tried": read_trials(folder, layer),
        "metrics": {key: float(np.mean(each)) for key, each in known.items()},
        "spread": {key: [min(each), max(each)] for key, each in known.items()},
        "runs": [_run(folder, run) for run in runs],
        "tokens_per_second": float(np.mean([run.tokens_per_second for run in runs])),
        "epochs": None if first.epochs is None else float(np.mean([run.epochs for run in runs])),
        "memory_bytes": max((run.memory_bytes for run in runs if run.memory_bytes is not None), default=None),
        "missing_seeds": [seed for seed in plan.seeds if (layer, seed) not in finished],
        "note": failed,
    }
    return ResultRow(**{each.name: getattr(first, each.name) for each in fields(Row)} | described | changed)


def _describe(row: str) -> JsonObject:
    """Return what a layer is, what it keeps of the past, and its paper, for all layers of a stack."""
    names = {"layer": row, "architecture": architecture(row), "width": width_of(row), "counted": is_non_neural(row)}
    names |= {"learned": FITTED[row].fitting if is_non_neural(row) else "trained"}
    if is_non_neural(row) and (describe := FITTED[row].describe_model) is not None:
        described = describe()
        return {**names, **{name: described[name] for name in ("keeps", "parallel", "paper")}}
    layers = [find_layer(layer) for layer in dict.fromkeys(layers_of(row))]
    return {
        **names,
        "keeps": "; ".join(dict.fromkeys(layer.keeps for layer in layers)),
        "parallel": all(layer.parallel for layer in layers),
        "paper": "; ".join(dict.fromkeys(layer.paper for layer in layers)),
    }


def _run(folder: Path, row: TrainingRow) -> JsonObject:
    run = folder / "runs" / row.name
    command = ["seriatim", "train", "--config", str(run / "config.yaml"), "--out", f"{folder}-again/{row.name}"]
    command += ["--allow-code"] if (run / CODE).exists() else []
    values = {name: getattr(row, name) for name in OF_EVERY_RUN}
    return {"path": f"runs/{row.name}", **values, "machine": row.machine or None, "command": shlex.join(command)}


def _add_differences(
    folder: Path, metric: Metric, measured: Sequence[ResultRow], baseline: str | None, equal: Spent | None
) -> None:
    """Compare every row, best first, with the best one, the best trained one, and the baseline; and give ranks.

    A row that cannot be tested against the first of a rank has no rank. Trained rows that spent unequal amounts of the
    budget are not compared with each other, and no row has a rank then.
    """
    unequal = equal is not None and not equal.is_equal
    statistics = {row.layer: _statistics(folder, row) for row in measured}

    def compared(row: ResultRow, other: ResultRow) -> JsonObject:
        if row is other or (unequal and not (row.counted or other.counted)):
            return {}
        result = difference(statistics[row.layer], statistics[other.layer], metric.key)
        return {"to": other.layer, **result} if result else {}

    # Three questions are asked of a row, and each needs its own test: how far from the best, from the best trained one,
    # and from the simple baseline.
    best, simple = measured[:1], [row for row in measured if row.layer == baseline]
    trained = [row for row in measured if not row.counted][:1]
    for others, name in ((best, "difference"), (trained, "beside_best_trained"), (simple, "beside_baseline")):
        for other in others:
            for row in measured:
                setattr(row, name, compared(row, other))
    if unequal or not any(row.is_tested for row in measured):
        return

    # A rank begins with the first row that differs from the leader of the rank before; rows of one rank may differ.
    leader = measured[0]
    leader.rank = 1
    for rank, row in enumerate(measured[1:], 2):
        test = compared(row, leader)
        if test and is_significant(test["p_value"], test["low"], test["high"]):
            leader, row.rank = row, rank
        elif test.get("p_value") is not None:
            row.rank = leader.rank


def _ranked(rows: Sequence[ResultRow], metric: Metric) -> list[ResultRow]:
    """Return the rows that are ranked, best first: those with the metric, of which no seed is missing."""
    known = [row for row in rows if not row.missing_seeds and row.metrics.get(metric.key) is not None]
    return sorted(known, key=lambda row: row.metrics[metric.key] or 0.0, reverse=metric.more_is_better)


def _statistics(folder: Path, row: ResultRow) -> dict[str, np.ndarray]:
    """Return the statistics of every item by figure, summed over the seeds."""
    total: dict[str, np.ndarray] = {}
    for run in row.runs:
        path = folder / "rows" / f"{row.layer}-{run['seed']}.safetensors"
        if not path.exists():
            remedy = f"seriatim compare --resume {shlex.quote(str(folder))} continues it"
            raise MissingError(f"{path}: was removed during the comparison; {remedy}")
        for name, values in load_tensors(path).items():
            if name.startswith(PREFIX):  # of single items, from the first seed only
                continue
            total[name] = total.get(name, 0) + values.numpy()
    return total


def add_conditions(runs: Sequence[JsonObject], trials: Sequence[JsonObject]) -> None:
    """Replace the record of each run by what its conditions were, from the records of all runs and trials.

    A run gets its ``machine``; ``at_once``, the largest number of trainings at the same time on that machine, itself
    included; and ``beside``, how many others ran there on average. ``load["rows_cpu_seconds"]`` estimates the part of
    the other programs' time that these others took, and ``others_processors`` is how many processors all that is no
    training of the comparison used meanwhile, None where it is not known. The records of the trials are removed.
    """
    recorded = [training["machine"] for training in (*runs, *trials) if training.get("machine")]
    names = ("host", *MACHINE) if len({machine["host"] for machine in recorded}) > 1 else MACHINE
    for run in runs:
        if not (machine := run.get("machine")):
            continue

        # Only trainings on the same machine disturb each other, and a short overlap does not count.
        seconds = machine["ended"] - machine["began"]
        others = [other for other in recorded if other is not machine and other["host"] == machine["host"]]
        others = [other for other in others if _overlap(machine, other) > SHORT * seconds]
        run["at_once"] = 1 + _most_at_once(machine, others)
        run["beside"] = sum(_overlap(machine, other) for other in others) / max(seconds, 1e-9)
        if load := run.get("load"):
            trained = machine["trained_from"], machine["trained_from"] + load["seconds"]
            of_rows, other = sum(_used_between(*trained, span) for span in others), load["other_cpu_seconds"]
            run["load"] = {**load, "rows_cpu_seconds": of_rows}
            is_known = other is not None and load["seconds"]
            run["others_processors"] = max(0.0, other - of_rows) / load["seconds"] if is_known else None
        run["machine"] = {name: machine[name] for name in names}
    for trial in trials:
        for name in ("machine", "load"):
            trial.pop(name, None)


def _overlap(first: JsonObject, second: JsonObject) -> float:
    """Return the seconds that two spans have in common."""
    return float(max(0.0, min(first["ended"], second["ended"]) - max(first["began"], second["began"])))


def _most_at_once(span: JsonObject, others: Sequence[JsonObject]) -> int:
    """Return the largest number of other spans at one moment of a span; it is reached where one of them begins."""
    moments = [max(span["began"], other["began"]) for other in others]
    return max((sum(other["began"] <= at < other["ended"] for other in others) for at in moments), default=0)


def _used_between(began: float, ended: float, machine: JsonObject) -> float:
    """Return the processor seconds that a training used between two moments, evenly between those that it noted."""
    clock, seconds = zip(*machine["used"], strict=True)
    return float(np.interp(ended, clock, seconds) - np.interp(began, clock, seconds))
