"""Under which conditions rows were trained: on which machine, and beside how many other trainings of the comparison.

A training records its machine, when its process began and ended there, and how much processor time it used meanwhile:
for starting, training and measuring. What ran at the same time follows from the times of all trainings on a machine, so
that it is also known where workers of a cluster share a machine.
"""

import os
import platform
import time
from collections.abc import Sequence

import numpy as np
import torch

from ..core.json_object import JsonObject
from ..training.hardware import environment

SHORT = 0.01
"""Share of a training up to which another one that runs at the same time does not count."""
MACHINE = ("processor", "device", "threads", "processors")
"""Fields of a machine that the results record; its name is recorded only if there are several machines."""


class ProcessTimes:
    """Moments of this process, each with the processor seconds that it and its children had used by then.

    Attributes:
        used: pairs of seconds of the clock and processor seconds. The first moment is ``began``, when the parent
            started the process, because its imports take seconds of processor time; None if that is not known.
    """

    def __init__(self, began: float | None) -> None:
        self.used: list[tuple[float, float]] = [] if began is None else [(began, 0.0)]
        self.note()

    def note(self) -> float:
        """Note the present moment, and return it in seconds of the clock."""
        self.used.append((time.time(), sum(os.times()[:4])))
        return self.used[-1][0]


def describe_machine(device: torch.device, times: ProcessTimes, trained_from: float) -> JsonObject:
    """Return the record of this machine for a process that ends now, and whose training began then."""
    ended, described = times.note(), environment(device)
    return {
        "host": platform.node(),
        "processor": described["processor"],
        "device": described["device"],
        "processors": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "began": times.used[0][0],
        "trained_from": trained_from,
        "ended": ended,
        "used": times.used,
    }


def add_conditions(runs: Sequence[JsonObject], trials: Sequence[JsonObject]) -> None:
    """Replace the record of each run by what its conditions were, from the records of all runs and trials.

    A run gets its ``machine``; ``at_once``, the largest number of trainings at the same time on that machine, itself
    included; and ``beside``, how many others ran there on average. ``load["rows_cpu_seconds"]`` estimates the part of
    the other programs' time that these others took. The records of the trials are removed.
    """
    recorded = [training for training in (*runs, *trials) if (training.get("machine") or {}).get("used")]
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
            trained = own["trained_from"], own["trained_from"] + run["load"]["seconds"]
            run["load"] = {**run["load"], "rows_cpu_seconds": sum(_used_between(*trained, span) for span in spans)}
    for run in runs:
        if (own := machines.get(id(run))) is not None:
            names = ("host", *MACHINE) if several else MACHINE
            run["machine"] = {name: own[name] for name in names}
    for trial in trials:
        for name in ("machine", "load"):
            trial.pop(name, None)


def _overlap(first: JsonObject, second: JsonObject) -> float:
    """Return the seconds that two spans have in common."""
    return float(max(0.0, min(first["ended"], second["ended"]) - max(first["began"], second["began"])))


def _most_at_once(own: JsonObject, others: Sequence[JsonObject]) -> int:
    """Return the largest number of other spans at one moment of a span; it is reached where one of them begins."""
    moments = [max(own["began"], other["began"]) for other in others]
    return max((sum(other["began"] <= at < other["ended"] for other in others) for at in moments), default=0)


def _used_between(began: float, ended: float, machine: JsonObject) -> float:
    """Return the processor seconds that a training used between two moments, evenly between those that it noted."""
    clock, seconds = zip(*machine["used"], strict=True)
    return float(np.interp(ended, clock, seconds) - np.interp(began, clock, seconds))
