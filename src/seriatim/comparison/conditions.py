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
from ..pages.wording import in_time, in_time_range, listed
from ..training.hardware import environment
from .results import Json, ResultRow, Results

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

    # Only trainings on the same machine disturb each other, and a short overlap does not count.
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

    # The record of each machine is shortened last, since the others were compared with it.
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


# Sentences about the conditions of the trainings: other programs, trainings at the same time, several machines.
# Times and speeds can be compared only where these were equal; see `add_conditions` for the figures.


BUSY = 0.1  # share of the processors' time that other programs may take during a training
UNEQUAL = 0.25  # the difference of the mean numbers of other trainings from which rows were disturbed unequally


def conditions(results: Results) -> str:
    """Return what is to be said about all conditions; empty if rows were trained one by one on one quiet machine."""
    return " ".join(filter(None, [at_once(results), machines(results), unequal_minutes(results), busy(results)]))


def same_conditions(rows: Sequence[ResultRow]) -> bool:
    """Return whether times and speeds of some rows can be compared: equal machines, equally disturbed."""
    return len(_kinds(rows)) <= 1 and not _unequal(rows)


def at_once(results: Results) -> str:
    """Return how many trainings ran at the same time on a machine, and how unequally the rows were disturbed."""
    together = [run for row in results.ran for run in row.runs if (run.get("at_once") or 1) > 1]
    if not together:
        return ""
    most = max(run["at_once"] for run in together)
    where = "on one machine" if len(_hosts(results.ran)) > 1 else "on this machine"
    up_to = "Up to " if any(_beside(row) < most - 1 - UNEQUAL for row in results.ran if _known(row)) else ""
    each = _threads({run["machine"]["threads"] for run in together})
    text = (
        f"{up_to}{most} trainings ran at the same time {where}, with {each} each; times and speeds are those beside "
        f"{'another training' if most == 2 else 'other trainings'}."
    )
    if _unequal(results.ran):
        known = [row for row in results.ran if _known(row)]
        least, worst = min(known, key=_beside), max(known, key=_beside)
        text += (
            f" The rows were not disturbed equally: on average {_beside(least):.1f} ({least.layer}) to "
            f"{_beside(worst):.1f} ({worst.layer}) others ran at the same time."
        )
    return text


def machines(results: Results) -> str:
    """Return on which machines the rows were trained, if there were several, or with which numbers of threads."""
    hosts, kinds = _hosts(results.ran), _kinds(results.ran)
    if len(hosts) < 2 and len(kinds) < 2:
        return ""
    named = f"on {len(hosts)} machines ({listed(sorted(hosts))})" if len(hosts) > 1 else "on this machine"
    if len(kinds) < 2:
        return f"The rows were trained {named} with the same processor and number of threads: {next(iter(kinds))}."
    groups = "; ".join(f"{listed(layers)} with {kind}" for kind, layers in kinds.items())
    return (
        f"The rows were trained {named}, under different conditions: {groups}. Times and speeds of rows can only be "
        "compared where these are equal."
    )


def unequal_minutes(results: Results) -> str:
    """Return that a budget in minutes is not fair, where rows were trained under different conditions."""
    if not results.section("budget").get("minutes") or same_conditions(results.ran):
        return ""
    return (
        "The budget is in minutes, so a row on a slower or busier machine took fewer steps, whatever its layer is; "
        "compare by tokens instead (--tokens)."
    )


def busy(results: Results) -> str:
    """Return in which trainings other programs kept the processors busy, so that times say little; else empty.

    The trainings of the comparison itself are no other programs.
    """
    shares = {row.layer: shared for row in results.ran if (shared := _of_others(row, results)) is not None}
    disturbed = {layer: (share, count) for layer, (share, count) in shares.items() if share > BUSY * count}
    if not disturbed:
        return ""
    most, processors = max(disturbed.values())
    fewer = ", and a budget in minutes gave fewer steps" if results.section("budget").get("minutes") else ""
    were = "was" if len(disturbed) == 1 else "were"
    who = "all layers were" if len(disturbed) == len(shares) else f"{listed(list(disturbed))} {were}"
    return (
        f"The machine was busy: while {who} trained, other programs used up to {most:.1f} of {processors} processors. "
        f"The measured times are too long{fewer}."
    )


def _of_others(row: ResultRow, results: Results) -> tuple[float, int] | None:
    """Return how many processors other programs used while a row was trained, and how many there are."""
    machine = results.section("machine")
    loads = [
        (load["seconds"], max(0.0, load["other_cpu_seconds"] - (load.get("rows_cpu_seconds") or 0.0)))
        for run in row.runs
        if (load := run.get("load")) and load.get("other_cpu_seconds") is not None
    ]
    if not sum(seconds for seconds, _ in loads):
        return None
    recorded = [run["machine"]["processors"] for run in row.runs if run.get("machine")]
    processors = max(recorded, default=machine.get("processors") or machine.get("cores") or 1)
    return sum(other for _, other in loads) / sum(seconds for seconds, _ in loads), processors


def missed_budgets(results: Results) -> str:
    """Return the shortest and longest training of a budget in time, if some missed it; else an empty string."""
    trainings: Sequence[Json] = [run for row in results.ran for run in row.trainings]
    off = [row.layer for row in results.ran if row.missed_budget]
    if not off:
        return ""
    seconds, planned = [run["training_seconds"] for run in trainings], trainings[0]["planned_seconds"]
    tuned = (
        ", which is half of the budget; trials of learning rates took the other half"
        if results.values.get("tune")
        else ""
    )
    return (
        f"The number of steps was set before each training, so that it can be repeated; the trainings took "
        f"{in_time_range(1000 * min(seconds), 1000 * max(seconds))} instead of {in_time(1000 * planned)}{tuned}. "
        f"More than 3 % off: {listed(off)}."
    )


def _known(row: ResultRow) -> bool:
    """Return whether it is known what ran beside a row, which is trained by steps; others take moments."""
    return not row.counted and any(run.get("beside") is not None for run in row.runs)


def _beside(row: ResultRow) -> float:
    """Return how many other trainings ran beside a row on average."""
    known = [run["beside"] for run in row.runs if run.get("beside") is not None]
    return float(sum(known) / len(known))


def _unequal(rows: Sequence[ResultRow]) -> bool:
    known = [_beside(row) for row in rows if _known(row)]
    return bool(known) and max(known) - min(known) > UNEQUAL


def _hosts(rows: Sequence[ResultRow]) -> set[str]:
    """Return the names of the machines, which are recorded only if there are several."""
    return {run["machine"]["host"] for row in rows for run in row.runs if (run.get("machine") or {}).get("host")}


def _kinds(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Return the layers by the machine that they were trained on, in words: ``AMD EPYC, 2 threads``."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        for run in row.runs:
            if machine := run.get("machine"):
                device = "" if machine["device"] == "cpu" else f", {machine['device']}"
                layers = kinds.setdefault(f"{machine['processor']}{device}, {_threads({machine['threads']})}", [])
                if row.layer not in layers:
                    layers.append(row.layer)
    return kinds


def _threads(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return "1 thread" if high == 1 else f"{low} threads" if low == high else f"{low} to {high} threads"
