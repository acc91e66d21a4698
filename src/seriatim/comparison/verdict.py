"""The first paragraphs of a comparison: which layer is best, by how much, and what budget and machine did not allow.

Every sentence follows from figures of the rows; a difference is only claimed where a paired test shows it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from ..core.json_object import JsonMapping
from ..evaluation.intervals import Metric, interval_digits, is_significant, written
from ..pages.wording import in_short, in_time, in_time_range, listed, percent, rounded
from .results import ResultRow, Results

# Paired differences between rows in words, each with its 95 % interval.


MAX_DIFFERENCES = 3  # layers of a sentence that are named with their differences


Tested = tuple[ResultRow, JsonMapping]
"""A row, and its test against another one."""


def between(row: ResultRow, other: ResultRow) -> JsonMapping | None:
    """Return the test of how far a row is above another one; None if they were not tested."""
    for first, second, sign in ((row, other, 1), (other, row, -1)):
        for test in (first.beside_best_trained, first.difference, first.beside_baseline):
            if test.get("to") == second.layer and test.get("p_value") is not None:
                return test if sign == 1 else _reversed(test)
    return None


def is_clear(test: JsonMapping) -> bool:
    """Return whether a difference is significant; see `is_significant`."""
    return is_significant(*(test.get(name) for name in ("p_value", "low", "high")))


def difference_and_interval(results: Results, test: JsonMapping) -> tuple[str, str]:
    """Return a difference and its interval: ``−0.052``, ``−0.086 to −0.018``; both are empty if it is not known.

    The interval is left out if it is empty, or excludes 0 although the difference is not significant.
    """
    value, low, high = (test.get(name) for name in ("difference", "low", "high"))
    figure = _figure(results, test)
    if value is None or low is None or high is None:
        return "", ""
    digits = interval_digits(low, high, figure.digits)
    size, *ends = (_signed(number, digits) for number in (value, low, high))
    if low == high:
        return ("0" if value == 0 else size), ""
    return size, " to ".join(ends) if low <= 0 <= high or is_clear(test) else ""


def difference_text(results: Results, test: JsonMapping, *, other: str = "") -> str:
    """Return a difference in words: ``difference −0.052, 95 % interval −0.086 to −0.018``; empty if not known.

    ``other`` is the layer that the difference is from, where the sentence does not name it.
    """
    size, ends = difference_and_interval(results, test)
    figure = _figure(results, test)
    of = "" if figure.key == results.metric.key else f" in {figure.name}"
    interval = f", 95 % interval {ends}" if ends else ""
    return f"difference{of}{f' from {other}' if other else ''} {size}{interval}" if size else ""


def named_with_differences(results: Results, tests: Sequence[Tested]) -> str:
    """Return the names of rows, each with its difference unless there are more than `MAX_DIFFERENCES`."""
    texts = [(row.layer, difference_text(results, test)) for row, test in tests]
    if len(texts) > MAX_DIFFERENCES:
        return listed([layer for layer, _ in texts])
    return listed([f"{layer} ({text})" if text else layer for layer, text in texts])


def _reversed(test: JsonMapping) -> JsonMapping:
    ends = {"difference": "difference", "low": "high", "high": "low"}
    return {**test, **{name: -test[other] for name, other in ends.items() if test.get(other) is not None}}


def _figure(results: Results, test: JsonMapping) -> Metric:
    """Return the figure that was tested, which may stand for the metric; see `metric.SAME_ORDER`."""
    key = test.get("key", results.metric.key)
    return next((figure for figure in results.figures if figure.key == key), results.metric)


def _signed(value: float, digits: int) -> str:
    return f"{'−' if value < 0 else '+'}{written(abs(value), digits)}"


CLOSE = 0.05  # relative difference from the best value up to which another value is close to it
MIN_VALIDATIONS = 3  # validations without which it is not known whether a training was still improving
TOO_RARELY = "validated too rarely to know whether"


def finding(results: Results) -> str:
    """Return the verdict: the best trained layer, the best of all, the fastest close to the best, and the caveats."""
    failed = [row.layer for row in results.rows if row.failed]
    incomplete = [
        f"{row.layer} is not ranked, because {row.lacking.replace(' of ', ' of its ', 1)}."
        for row in results.rows
        if row.lacking
    ]
    failures = _each({"Failed: {}.": listed(failed)})
    if not results.measured:
        nothing = f"No layer has a {results.metric.name}{': all failed' if len(failed) == len(results.rows) else ''}."
        return " ".join([*incomplete, *failures] if incomplete else [nothing])

    # Without a test there is no order, and a reader must know it before the figures.
    untested = len(results.measured) > 1 and not results.is_tested
    no_ranks = f"The layers were not tested against each other on {results.metric.name}, so they have no ranks."
    sentences = [
        *incomplete,
        *_best_trained(results),
        _best_counted(results),
        _fastest_close(results),
        _unfinished(results),
        *failures,
        no_ranks if untested else "",
        _seeds(results),
    ]
    return " ".join(filter(None, sentences))


def _each(templates: Mapping[str, str]) -> list[str]:
    """Return each sentence with its names, where there are any."""
    return [template.format(names) for template, names in templates.items() if names]


def _grouped(tests: Iterable[Tested]) -> tuple[list[Tested], list[Tested]]:
    """Return the rows that do not differ significantly from another one, and those that do, with their tests."""
    known = list(tests)
    return [each for each in known if not is_clear(each[1])], [each for each in known if is_clear(each[1])]


def _best_trained(results: Results) -> list[str]:
    """Return the best trained layer with its interval, and how the other trained layers compare with it."""
    metric, trained = results.metric, results.trained
    degree = "highest" if metric.more_is_better else "lowest"
    if not trained:
        best = results.measured[0]
        return [f"{best.layer} has the {degree} {metric.name}: {results.text(best)}."]

    # "Best" alone would say too much where nothing else was trained or ranked.
    best, *others = trained
    if not others:
        more = " that is ranked" if any(row.lacking for row in results.rows) else ""
        return [f"{best.layer} is the only trained layer{more}. Its {metric.name} is {results.text(best)}."]

    # Layers that could not be tested are named too; silence would read as a significant difference.
    tests = [(row, test) for row in others if (test := between(row, best)) is not None]
    untested = [row.layer for row in others if between(row, best) is None]
    tied, worse = _grouped(tests)
    return [
        f"{best.layer} has the {degree} {metric.name} of the trained layers: {results.text(best)}.",
        *_each(
            {
                "Not significantly different from it (paired bootstrap): {}.": named_with_differences(results, tied),
                "Significantly worse (paired bootstrap): {}.": named_with_differences(results, worse),
                "Not tested against it: {}.": listed(untested) if tests else "",
            }
        ),
    ]


def _best_counted(results: Results) -> str:
    """Return that a counted or linear model is better than every trained layer, with what differs beside the score."""
    metric, best = results.metric, results.measured[0]
    if not best.counted or not results.trained:
        return ""

    # A difference that may be chance is told as such, and nothing else is compared then.
    trained = results.trained[0]
    test = between(best, trained)
    if test is None or not is_clear(test):
        tested = "was not tested" if test is None else "is not significant"
        apart = difference_text(results, test) if test else ""
        return (
            f"{best.layer}, which is not trained by steps, has {metric.name} {results.text(best)}; the difference from "
            f"{trained.layer} {tested}{f' ({apart})' if apart else ''}."
        )

    # A better score at another size or after fewer readings is no contest between equals, so both are told.
    sizes = [row.parameters for row in results.trained if row.parameters]
    one = trained.layer if len(results.trained) == 1 else ""
    notes = list(filter(None, [difference_text(results, test, other=trained.layer)]))
    if best.parameters and sizes:
        low, high = in_short(min(sizes)), in_short(max(sizes))
        span = low if low == high else f"{low} to {high}"
        others = f"{one} has" if one else "the trained layers have"
        notes.append(f"it has {in_short(best.parameters)} parameters, {others} {span}")
    if seen := epochs_seen(results):
        notes.append(f"{one or ('they' if sizes else 'the trained layers')} read the training data {seen}")
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

    # Speed is worth a sentence only if it is clearly higher, and was measured under the same conditions.
    fastest = min(close, key=lambda row: row.milliseconds_per_token or 0.0)
    if fastest is best or 1.1 * (fastest.milliseconds_per_token or 0.0) > best.milliseconds_per_token:
        return ""
    if not same_conditions([fastest, best]):
        return ""
    spreads = fastest.milliseconds_spread, best.milliseconds_spread
    if all(spreads) and spreads[0][1] >= spreads[1][0]:
        return ""  # the repetitions differ as much as the layers
    return (
        f"Within {percent(CLOSE)} of the best {results.metric.name}, {fastest.layer}, with {results.text(fastest)}, "
        f"needs the least time per token: {_time(fastest)}; {best.layer} needs {_time(best)}."
    )


def _time(row: ResultRow) -> str:
    """Return the time of a token, and the range of its repetitions: ``0.21 ms (0.20 to 0.22 ms)``."""
    spread = f" ({in_time_range(*row.milliseconds_spread)})" if row.milliseconds_spread else ""
    return f"{in_time(row.milliseconds_per_token or 0.0)}{spread}"


def _unfinished(results: Results) -> str:
    """Return which layers were still improving when the budget ended, and of which that is not known."""
    trained, sentences = results.trained, list[str]()
    if falling := [row.layer for row in trained if (last_gain(row, results) or 0.0) > 0]:
        which = "All trained layers were" if 1 < len(falling) == len(trained) else f"{listed(falling)} {_were(falling)}"
        order = ", so a longer budget may change the order" if len(results.measured) > 1 else ""
        sentences.append(f"{which} still improving when the budget ended{order}.")
    if trained and not any(held_out(row) for row in trained):
        sentences.append("No data were held out, so it is not known whether the layers were still improving.")
    elif rare := [row.layer for row in trained if len(held_out(row)) < MIN_VALIDATIONS]:
        they = "it was" if len(rare) == 1 else "they were"
        sentences.append(f"{listed(rare)} {_were(rare)} {TOO_RARELY} {they} still improving.")
    return " ".join(sentences)


def last_gain(row: ResultRow, results: Results) -> float | None:
    """Return the relative gain of the last validation over the mean of the others in the last third of all validations.

    None with fewer than `MIN_VALIDATIONS`, or if the change is not larger than the sampling error, which is half the
    95 % interval of the last validation.
    """
    points = held_out(row)
    if len(points) < MIN_VALIDATIONS or points[-1].get("low") is None or points[-1].get("high") is None:
        return None
    *earlier, last = [float(point["value"]) for point in points[-max(2, math.ceil(len(points) / 3)) :]]
    before = sum(earlier) / len(earlier)
    if not before or abs(last - before) <= (points[-1]["high"] - points[-1]["low"]) / 2:
        return None
    up = results.more_is_better(str(points[-1]["key"]))
    return (last - before if up else before - last) / abs(before)


def held_out(row: ResultRow) -> list[JsonMapping]:
    """Return the validations of a training in their order."""
    return [point for point in row.held_out if point.get("value") is not None]


def _seeds(results: Results) -> str:
    """Return how many seeds were run, and what intervals and tests therefore do not cover."""
    if not results.trained:
        return ""

    # Intervals and tests resample texts: what another seed would change, one seed cannot show.
    known = ["intervals"] * results.has_intervals + ["tests"] * results.is_tested
    what = f"the {listed(known)}"
    if len(results.seeds) == 1:
        who = "Each layer" if len(results.trained) > 1 else results.trained[0].layer
        covered = f"{what} cover other texts, but not other seeds" if known else "another seed gives another value"
        return f"{who} was trained with one seed: {covered}."

    # With several seeds, the range of the best layer shows how large a difference of seeds is.
    best, metric = results.trained[0], results.metric
    values = [value for run in best.runs if (value := run["metrics"].get(metric.key)) is not None]
    if len(values) < 2:
        return ""
    low, high = (metric.written(value, best.interval(metric.key)) for value in (min(values), max(values)))
    span = f"ranged from {low} to {high}" if low != high else f"was {low} each time"
    covered = f"; {what} do not cover differences between seeds" if known else ""
    return f"Over {len(values)} seeds, the {metric.name} of {best.layer} {span}{covered}."


def beside_baseline(results: Results) -> str:
    """Return which layers are worse than the simple baseline, or cannot be told from it; empty if it was not run."""
    simple = next((row for row in results.measured if row.baseline), None)
    if simple is None:
        return ""
    others = [row for row in results.measured if not row.baseline]
    untested = [row.layer for row in others if row.beside_baseline.get("p_value") is None]
    tied, clear = _grouped((row, row.beside_baseline) for row in others if row.layer not in untested)

    # A layer that differs clearly may be worse: only those that are better justify training a network.
    up = results.metric.more_is_better
    better = [each for each in clear if (results.of(each[0]) > results.of(simple)) == up]
    worse = [each for each in clear if each not in better]
    are = f"{named_with_differences(results, better)} {'is' if len(better) == 1 else 'are'}" if better else ""
    every = len(better) == len(others) > MAX_DIFFERENCES

    # The bad news comes first. Where all layers are better, a phrase replaces a long list.
    sentences = {
        "Worse than the baseline: {}.": named_with_differences(results, worse),
        "Not significantly different from the baseline: {}.": named_with_differences(results, tied),
        "{} better than the baseline.": "All other layers are" if every else are,
        "Not tested against the baseline: {}.": listed(untested),
    }
    lead = f"The simple baseline is {simple.layer}: {results.metric.name} {results.text(simple)}."
    return " ".join([lead, *_each(sentences)])


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
        if pessimistic <= sign * value:
            (worse if optimistic < sign * value else unclear).append(row.layer)
    bounds = next((ends for row in results.measured if (ends := row.interval(metric.key))), None)
    lead = f"The simplest prediction, {simplest.get('name')}, gives {metric.name} {metric.written(value, bounds)}."
    sentences = {"Worse than that: {}.": listed(worse), "Not clearly better than that: {}.": listed(unclear)}
    return " ".join([lead, *_each(sentences)])


def _were(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


# Sentences about the conditions of the trainings: other programs, trainings at the same time, several machines.
# Times and speeds can be compared only where these were equal; see `add_conditions` for the figures.


BUSY = 0.1  # fraction of the processors' time that other programs may take during a training
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

    # Times beside other trainings cannot be compared with those of a machine that is free.
    most = max(run["at_once"] for run in together)
    where = "on one machine" if len(_hosts(results.ran)) > 1 else "on this machine"
    up_to = "Up to " if any(_beside(row) < most - 1 - UNEQUAL for row in results.ran if _known(row)) else ""
    each = _threads({run["machine"]["threads"] for run in together})
    text = (
        f"{up_to}{most} trainings ran at the same time {where}, with {each} each; times and speeds are those beside "
        f"{'another training' if most == 2 else 'other trainings'}."
    )

    # A row with fewer others beside it was faster for that reason alone.
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
    used_by_others = {row.layer: shared for row in results.ran if (shared := _of_others(row, results)) is not None}
    disturbed = {layer: (used, count) for layer, (used, count) in used_by_others.items() if used > BUSY * count}
    if not disturbed:
        return ""
    most, processors = max(disturbed.values())
    fewer = ", and a budget in minutes gave fewer steps" if results.section("budget").get("minutes") else ""
    were = "was" if len(disturbed) == 1 else "were"
    who = "all layers were" if len(disturbed) == len(used_by_others) else f"{listed(list(disturbed))} {were}"
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
    trainings: Sequence[JsonMapping] = [run for row in results.ran for run in row.trainings]
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
