"""The first paragraphs of a comparison: which layer is best, by how much, and what the budget did not allow.

Every sentence follows from figures of the rows; a difference is only claimed where a paired test shows it.
"""

from collections.abc import Sequence

from ..evaluation.intervals import SIGNIFICANT
from ..report.number_formats import in_short, in_time, listed, percent, rounded
from .results import Json, ResultRow, Results

CLOSE = 0.05  # relative difference from the best value up to which another value is close to it
STILL_FALLING = 0.01  # relative gain of the last validation from which a training counts as still improving
BUSY = 0.1  # share of the processors' time that other programs may take during a training


def finding(results: Results) -> str:
    """Return the verdict: the best trained layer, the best of all, the fastest close to the best, and the caveats."""
    failed = [row.layer for row in results.rows if row.failed]
    if not results.measured:
        return f"No layer has a {results.metric.name}{': all failed' if len(failed) == len(results.rows) else ''}."
    sentences = [
        *_best_trained(results),
        _best_counted(results),
        _fastest_close(results),
        _unfinished(results),
        f"Failed: {listed(failed)}." if failed else "",
        _one_seed(results),
    ]
    return " ".join(filter(None, sentences))


def _best_trained(results: Results) -> list[str]:
    """Return the best trained layer with its interval, and how the other trained layers compare with it."""
    metric, trained = results.metric, results.trained
    if not trained:
        best = results.measured[0]
        return [f"{best.layer} has the {_degree(results)} {metric.name}: {results.text(best)}."]
    best, *others = trained
    if not others:
        return [f"{best.layer} is the only trained layer. Its {metric.name} is {results.text(best)}."]
    sentences = [f"{best.layer} has the {_degree(results)} {metric.name} of the trained layers: {results.text(best)}."]
    p_values = {row.layer: _p_value(row, best) for row in others}
    tied = [layer for layer, p in p_values.items() if p is not None and p > SIGNIFICANT]
    untested = [layer for layer, p in p_values.items() if p is None]
    if tied:
        sentences.append(f"Not significantly different from it (paired bootstrap): {listed(tied)}.")
    elif not untested:
        second = others[0]
        sentences.append(
            f"{f'All {len(others)} others are' if len(others) > 1 else f'{second.layer} is'} significantly worse "
            f"(paired bootstrap)"
            + (f"; the next is {second.layer} with {results.text(second)}." if len(others) > 1 else ".")
        )
    return sentences


def _p_value(row: ResultRow, best: ResultRow) -> float | None:
    """Return the p-value of the difference of a row from the best trained one; None without a test."""
    for test in (row.beside_best_trained, row.difference):
        if test.get("to") == best.layer and test.get("p_value") is not None:
            return float(test["p_value"])
    return None


def _best_counted(results: Results) -> str:
    """Return that a counted or linear model is better than every trained layer, with what differs beside the score."""
    metric, best = results.metric, results.measured[0]
    if not best.counted or not results.trained:
        return ""
    trained = results.trained[0]
    p_value = _p_value(best, trained) if best.beside_best_trained else _p_value(trained, best)
    if p_value is None or p_value > SIGNIFICANT:
        tested = "was not tested" if p_value is None else "is not significant"
        value = f"{metric.name} {results.text(best)}"
        return (
            f"{best.layer}, which is not trained by steps, has {value}; the difference from {trained.layer} {tested}."
        )
    sizes = [row.parameters for row in results.trained if row.parameters]
    notes = []
    if best.parameters and sizes:
        span = (
            in_short(min(sizes))
            if max(sizes) < 1.1 * min(sizes)
            else f"{in_short(min(sizes))} to {in_short(max(sizes))}"
        )
        notes.append(f"it has {in_short(best.parameters)} parameters, the trained layers have {span}")
    if seen := epochs_seen(results):
        notes.append(f"they read the training data {seen}")
    more = f": {'; '.join(notes)}" if notes else ""
    return f"{best.layer}, which is not trained by steps, has a better {metric.name}, {results.text(best)}{more}."


def epochs_seen(results: Results) -> str:
    """Return how often the trained layers read the training data: ``0.6 to 2.7 times``; empty if it is not known."""
    known = [row.epochs for row in results.trained if row.epochs is not None]
    if not known:
        return ""
    low, high = rounded(min(known), 2), rounded(max(known), 2)
    return f"{low} times" if low == high else f"{low} to {high} times"


def _fastest_close(results: Results) -> str:
    """Return the fastest layer whose metric is within `CLOSE` of the best one, if it is not the best itself."""
    best, value = results.measured[0], results.of(results.measured[0])
    close = [
        row
        for row in results.measured
        if abs(results.of(row) - value) <= CLOSE * abs(value) and row.milliseconds_per_token
    ]
    if not close or not best.milliseconds_per_token:
        return ""
    fastest = min(close, key=lambda row: row.milliseconds_per_token or 0.0)
    if fastest is best or 1.1 * (fastest.milliseconds_per_token or 0.0) > best.milliseconds_per_token:
        return ""
    spreads = fastest.milliseconds_spread, best.milliseconds_spread
    if all(spreads) and spreads[0][1] >= spreads[1][0]:
        return ""  # the repetitions differ as much as the layers
    return (
        f"Within {percent(CLOSE)} of the best {results.metric.name}, {fastest.layer} needs the least time per token: "
        f"{in_time(fastest.milliseconds_per_token or 0.0)}, {best.layer} needs {in_time(best.milliseconds_per_token)}."
    )


def _unfinished(results: Results) -> str:
    """Return which layers were still improving when the budget ended."""
    falling = [row.layer for row in results.trained if still_improving(row, results)]
    if not falling:
        return ""
    which = "All trained layers were" if len(falling) == len(results.trained) else f"{listed(falling)} {_were(falling)}"
    return f"{which} still improving when the budget ended, so a longer budget may change the order."


def still_improving(row: ResultRow, results: Results) -> bool:
    """Return whether the last validation of a training was its best, and by more than `STILL_FALLING`."""
    gain = last_gain(row, results)
    return gain is not None and gain > STILL_FALLING


def last_gain(row: ResultRow, results: Results) -> float | None:
    """Return the relative gain of the last validation over the best one before; None with fewer than two."""
    points = held_out(row)
    if len(points) < 2:
        return None
    up = results.more_is_better(str(points[-1]["key"]))
    *earlier, last = [float(point["value"]) for point in points]
    before = max(earlier) if up else min(earlier)
    if not before:
        return None
    return (last - before if up else before - last) / abs(before)


def held_out(row: ResultRow) -> list[Json]:
    """Return the validations of a training in their order."""
    return [point for point in row.held_out if point.get("value") is not None]


def _one_seed(results: Results) -> str:
    if len(results.seeds) != 1 or len(results.trained) < 2:
        return ""
    return "Each layer was trained with one seed: the tests cover other texts, but not other seeds."


def beside_baseline(results: Results) -> str:
    """Return which layers are worse than the simple baseline, or cannot be told from it; empty if it was not run."""
    simple = next((row for row in results.measured if row.baseline), None)
    if simple is None:
        return ""
    worse, tied, better = list[str](), list[str](), list[str]()
    for row in results.measured:
        p_value = row.beside_baseline.get("p_value")
        if row.baseline or p_value is None:
            continue
        above = results.of(row) > results.of(simple)
        kind = tied if p_value > SIGNIFICANT else better if above == results.metric.more_is_better else worse
        kind.append(row.layer)
    parts = [f"The simple baseline is {simple.layer}: {results.metric.name} {results.text(simple)}."]
    parts += [f"Worse than the baseline: {listed(worse)}."] * bool(worse)
    parts += [f"Not significantly different from the baseline: {listed(tied)}."] * bool(tied)
    parts += ["All other layers are better than the baseline."] * (bool(better) and not worse + tied)
    return " ".join(parts)


def beside_simplest(results: Results) -> str:
    """Return which layers are no better than the simplest answer, such as the most frequent label."""
    simplest, metric = results.section("simplest"), results.metric
    value = simplest.get(metric.key)
    if value is None:
        return ""
    sign = 1 if metric.more_is_better else -1
    worse, unclear = list[str](), list[str]()
    for row in results.measured:
        low, high = row.interval(metric.key) or (results.of(row),) * 2
        pessimistic, optimistic = sorted((sign * low, sign * high))
        if optimistic < sign * value:
            worse.append(row.layer)
        elif pessimistic <= sign * value:
            unclear.append(row.layer)
    bounds = next((ends for row in results.measured if (ends := row.interval(metric.key))), None)
    text = metric.written(value, bounds)
    parts = [f"Without any model, {simplest.get('name')} gives {metric.name} {text}."]
    parts += [f"Worse than that: {listed(worse)}."] * bool(worse)
    parts += [f"Not clearly better than that: {listed(unclear)}."] * bool(unclear)
    return " ".join(parts)


def busy(results: Results) -> str:
    """Return in which trainings other programs kept the processors busy, so that times say little; else empty."""
    machine = results.section("machine")
    processors = machine.get("processors") or machine.get("cores") or 1
    shares = {}
    for row in results.ran:
        loads = [load for run in row.runs if (load := run.get("load")) and load.get("other_cpu_seconds") is not None]
        if loads and sum(load["seconds"] for load in loads):
            shares[row.layer] = sum(load["other_cpu_seconds"] for load in loads) / sum(
                load["seconds"] for load in loads
            )
    disturbed = [layer for layer, share in shares.items() if share > BUSY * processors]
    if not disturbed:
        return ""
    most = max(shares[layer] for layer in disturbed)
    fewer = ", and a budget in minutes gave fewer steps" if results.section("budget").get("minutes") else ""
    who = "all layers were" if len(disturbed) == len(shares) else f"{listed(disturbed)} {_were(disturbed)}"
    return (
        f"The machine was busy: while {who} trained, other programs used up to {most:.1f} of {processors} processors. "
        f"The measured times are too long{fewer}."
    )


def missed_budgets(results: Results) -> str:
    """Return the shortest and longest training of a budget in time, if some missed it; else an empty string."""
    trainings: Sequence[Json] = [run for row in results.ran for run in row.trainings]
    off = [row.layer for row in results.ran if row.missed_budget]
    if not off:
        return ""
    seconds, planned = [run["training_seconds"] for run in trainings], trainings[0]["planned_seconds"]
    return (
        f"The number of steps was set before each training, so that it can be repeated; the trainings took "
        f"{in_time(1000 * min(seconds))} to {in_time(1000 * max(seconds))} instead of {in_time(1000 * planned)}. "
        f"More than 3 % off: {listed(off)}."
    )


def _degree(results: Results) -> str:
    return "highest" if results.metric.more_is_better else "lowest"


def _were(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
