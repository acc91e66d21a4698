"""Under which conditions rows were trained: on which machine, and beside how many other trainings of the comparison.

A training records its machine and when it began and ended there. What ran at the same time follows from the times of
all trainings on a machine, so that it is also known where workers of a cluster share a machine.
"""

import os
import platform
import time
from collections.abc import Sequence

import torch

from ..evaluation.intervals import Metrics
from ..training.hardware import environment

SHORT = 0.01
"""Share of a training up to which another one that runs at the same time does not count."""
MACHINE = ("processor", "device", "threads", "processors")
"""Fields of a machine that the results record; its name is recorded only if there are several machines."""


def describe_machine(device: torch.device, began: float) -> Metrics:
    """Return the record of this machine for a training that ends now and ``began`` then, in seconds of the clock."""
    described = environment(device)
    return {
        "host": platform.node(),
        "processor": described["processor"],
        "device": described["device"],
        "processors": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "began": began,
        "ended": time.time(),
    }


def add_conditions(runs: Sequence[Metrics], trials: Sequence[Metrics]) -> None:
    """Replace the record of each run by what its conditions were, from the records of all runs and trials.

    A run gets its ``machine``; ``at_once``, the largest number of trainings at the same time on that machine, itself
    included; and ``beside``, how many others ran there on average. ``load["rows_cpu_seconds"]`` estimates the part of
    the other programs' time that these others took. The records of the trials are removed.
    """
    recorded = [training for training in (*runs, *trials) if training.get("machine")]
    machines = {id(training): training["machine"] for training in recorded}
    several = len({machine["host"] for machine in machines.values()}) > 1
    for run in runs:
        own = machines.get(id(run))
        if own is None:
            continue
        others = [
            training
            for training in recorded
            if training is not run
            and machines[id(training)]["host"] == own["host"]
            and _overlap(own, machines[id(training)]) > SHORT * (own["ended"] - own["began"])
        ]
        spans = [machines[id(training)] for training in others]
        run["at_once"] = 1 + _most_at_once(own, spans)
        run["beside"] = sum(_overlap(own, span) for span in spans) / max(own["ended"] - own["began"], 1e-9)
        if run.get("load"):
            trained = {**own, "ended": own["began"] + run["load"]["seconds"]}
            used = (_cpu_rate(other) * _overlap(trained, machines[id(other)]) for other in others)
            run["load"] = {**run["load"], "rows_cpu_seconds": sum(used)}
    for run in runs:
        if (own := machines.get(id(run))) is not None:
            names = ("host", *MACHINE) if several else MACHINE
            run["machine"] = {name: own[name] for name in names}
    for trial in trials:
        for name in ("machine", "load"):
            trial.pop(name, None)


def _overlap(first: Metrics, second: Metrics) -> float:
    """Return the seconds that two spans have in common."""
    return float(max(0.0, min(first["ended"], second["ended"]) - max(first["began"], second["began"])))


def _most_at_once(own: Metrics, others: Sequence[Metrics]) -> int:
    """Return the largest number of other spans at one moment of a span; it is reached where one of them begins."""
    moments = [max(own["began"], other["began"]) for other in others]
    return max((sum(other["began"] <= at < other["ended"] for other in others) for at in moments), default=0)


def _cpu_rate(training: Metrics) -> float:
    """Return how many processors a training uses: measured while it trained, else its threads."""
    load = training.get("load")
    return float(load["cpu_seconds"] / load["seconds"] if load and load["seconds"] else training["machine"]["threads"])
