"""Sentences about the conditions of the trainings: other programs, trainings at the same time, several machines.

Times and speeds can be compared only where these were equal; see `add_conditions` for the figures.
"""

from collections.abc import Sequence

from ..report.number_formats import in_time, in_time_range, listed
from .results import Json, ResultRow, Results

BUSY = 0.1  # share of the processors' time that other programs may take during a training
UNEQUAL = 0.25  # the difference of the mean numbers of other trainings from which rows were disturbed unequally


def conditions(results: Results) -> str:
    """Return what is to be said about all conditions; empty if rows were trained one by one on one quiet machine."""
    return " ".join(filter(None, [at_once(results), machines(results), unfair_minutes(results), busy(results)]))


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


def unfair_minutes(results: Results) -> str:
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
