"""What a comparison shows, in a headline, one line of warnings and four facts: statements and the figures in them.

Every statement has the condition under which it is true. A layer is called better or worse only where a paired test
shows it, and trained layers are ordered only where their budgets were equal.
"""

import math
from collections.abc import Sequence
from itertools import chain

from ..core.json_object import JsonMapping
from ..evaluation.intervals import Metric, is_significant, supported_digits, written
from ..pages.statements import Statement, told
from ..pages.wording import in_short, in_time, in_time_range, listed, percent, rounded, short_name
from .results import ResultRow, Results

BUSY = 0.1
"""Fraction of the processors that other programs may lack for themselves beside the threads of a training."""
MAX_DIFFERENCE_DIGITS = 4
"""Digits after the point of a difference, at most; of a value there may be fewer."""
READ = 0.5
"""Epochs below which a reader is told how little of the data the layers have read."""
DISTURBED = 0.25
"""The difference of the mean numbers of other trainings from which rows were disturbed unequally."""


# Who is best, by how much, at what cost


class Verdict:
    """The figures of the headline.

    Attributes:
        metric, degree: the name of the metric, and ``highest`` or ``lowest``, whichever is better.
        best, trained: the best row, and the best of those that were trained by steps.
        next: the best row that differs significantly from the best one.
        others, worse: how many other rows there are, and how many of them are significantly worse.
        is_decided: whether one row is better than all the others, by tests.
        equals: the best row, and those that were tested against it and do not differ significantly.
        best_value, trained_value: the metric with its interval.
        next_gap, trained_gap: how much worse than the best one.
        is_equal_budget: whether trained rows may be ordered.
        is_below_simplest: whether not even the best row is clearly better than the simplest prediction.
        is_counted_best: whether a model that is not trained by steps is better than every other one, by tests.
        cost: of the best row, as the end of a sentence.
        equal_names, tied_names: of ``equals``, and of those beside the best row.
        fastest: that of ``equals`` with the least time of a token, if the ranges of repetitions tell it from the
            others, with its cost if that is not told already.
        setup: what was compared on what.
    """

    def __init__(self, results: Results) -> None:
        self.setup = Setup(results)
        self.metric = results.metric.name
        self.degree = "highest" if results.metric.more_is_better else "lowest"
        self.best = next(iter(results.measured), None)
        self.trained = next(iter(results.trained), None)
        self.next = next((row for row in results.measured if row.differs), None)
        self.others, self.worse = len(results.measured) - 1, sum(row.differs for row in results.measured)
        self.is_decided = self.others > 0 and self.others == self.worse
        self.equals = [row for row in results.measured if row is self.best or row.is_tied]
        self.best_value = value_text(results, self.best)
        self.trained_value = value_text(results, self.trained)
        self.next_gap = "" if self.next is None else gap_text(results, self.next.difference)
        self.trained_gap = "" if self.trained is None else gap_text(results, self.trained.difference)
        self.is_equal_budget = is_equal_budget(results)
        self.is_below_simplest = self.best is not None and self.best.layer in chain(*_below_simplest(results))
        self.wins = "is the best of them" if self.is_below_simplest else "wins"
        self.cost = "" if self.best is None else _cost_text(self.best)
        self.fastest = _fastest(self.equals)
        is_other = self.fastest is not self.best
        self.fastest_cost = f", {_token_text(self.fastest)}" if self.fastest and is_other else ""
        ties = self.equals, self.equals[1:]
        self.equal_names, self.tied_names = (listed([row.layer for row in rows]) for rows in ties)

    @property
    def is_counted_best(self) -> bool:
        """Whether a model that is not trained by steps is better than every other one, by tests."""
        return bool(self.best and self.best.counted and self.trained and self.trained.differs and self.is_decided)


HEADLINE: Sequence[Statement[Verdict]] = (
    Statement(lambda v: v.is_below_simplest, "No layer clearly beats {setup.simplest} ({setup.simplest_value})."),
    Statement(lambda v: v.best is None, "No layer has a {metric}."),
    Statement(
        lambda v: v.is_counted_best and v.is_equal_budget,
        "{best.layer} wins: {metric} {best_value}{cost}. The best trained layer, {trained.layer}, is {trained_gap}.",
    ),
    Statement(
        lambda v: v.is_counted_best and not v.is_equal_budget,
        "{best.layer} wins: {metric} {best_value}{cost}. Of the trained layers, whose budgets were not equal, "
        "{trained.layer} has the {degree} {metric}: it is {trained_gap}.",
    ),
    Statement(
        lambda v: v.best is not None and not v.is_counted_best and not v.is_equal_budget,
        "No winner, because the budgets were not equal. {best.layer} has the {degree} {metric}: {best_value}.",
    ),
    Statement(
        lambda v: v.is_equal_budget and not v.is_counted_best and v.is_decided,
        "{best.layer} {wins}: {metric} {best_value}{cost}. {next.layer} is {next_gap}.",
    ),
    Statement(
        lambda v: v.is_equal_budget and not v.is_counted_best and len(v.equals) > 1,
        "A tie: {equal_names} do not differ significantly. {best.layer} has {metric} {best_value}{cost}.",
    ),
    Statement(
        lambda v: v.is_equal_budget and len(v.equals) == 1 and not v.is_decided and v.others > 0,
        "{best.layer} has the {degree} {metric}: {best_value}{cost}.",
    ),
    Statement(lambda v: v.best is not None and not v.others, "{best.layer} has {metric} {best_value}{cost}."),
    Statement(
        lambda v: v.is_equal_budget and len(v.equals) == 1 and not v.is_decided and v.others > 0,
        "It was tested against {worse} of the {others} others.",
    ),
    Statement(lambda v: v.fastest is not None, "Fastest of these: {fastest.layer}{fastest_cost}."),
    Statement(lambda v: v.best is not None, "Measured with {setup.seeds} on {setup.measured}."),
)
"""Whether anything was learned; who wins (one of the next eight); which of the equals is fastest; measured on what."""

CONSOLE: Sequence[tuple[str, Statement[Verdict]]] = (
    ("best", Statement(lambda v: v.best is not None, "{best.title}  {best_value}")),
    ("equal to it", Statement(lambda v: len(v.equals) > 1, "{tied_names} (no significant difference)")),
    (
        "best trained",
        Statement(
            lambda v: v.trained is not None and v.trained is not v.best and v.trained.differs,
            "{trained.layer}  {trained_value}, {trained_gap}",
        ),
    ),
)
"""The last lines of the console."""


def headline(results: Results) -> str:
    """Return who wins, by how much, at what cost."""
    return " ".join(told(HEADLINE, Verdict(results)))


def is_equal_budget(results: Results) -> bool:
    """Whether trained rows may be ordered: their budgets were equal, or there are fewer than two."""
    return results.spent is None or results.spent.is_equal or len(results.trained) < 2


def _fastest(equals: Sequence[ResultRow]) -> ResultRow | None:
    known = [row for row in equals if row.milliseconds_spread]
    known.sort(key=lambda row: row.milliseconds_per_token or 0.0)
    if len(known) < max(2, len(equals)) or not same_conditions(known):
        return None
    others = min(row.milliseconds_spread[0] for row in known[1:])  # the second may have a narrower range than a third
    last, first = (float(rounded(end, 2)) for end in (known[0].milliseconds_spread[1], others))  # as they are written
    return known[0] if last < first else None


# What a reader must know before trusting it


class Caveats:
    """The figures of the warnings.

    Attributes:
        is_equal_budget, missed_budget: whether the trained rows spent the same, and whether one missed its time.
        epochs, read: how much of the training data a trained row has read, at most, and this in words.
        spent, planned: what the trainings spent of their budget, least and most, and the budget in time of each.
        repeat: the option that gives every layer the same budget: the fewest tokens that a trained layer has read.
        below_baseline: the trained rows that are significantly worse than the simple baseline.
        worse_than_simplest, below_simplest: the rows whose interval lies on the worse side of the simplest prediction,
            and those whose interval contains it.
        failed, unmeasured, lacking: the rows that failed, those without a finite value of the metric, and those without
            a rank because a seed is missing.
        busy: the processors that other programs used while a row was trained, for the rows that this disturbed;
            ``busy_most`` and ``busy_names`` are in words.
        kinds, machines: the rows by the machine that trained them, and this in words.
        at_once: the largest number of trainings at the same time on one machine.
        has_equal_conditions: whether times and speeds can be compared.
        selects_on_measured: whether the data of the measurement also selected the weights.
    """

    def __init__(self, results: Results) -> None:
        data, trained, machine = results.section("data"), results.trained, results.section("machine")
        sign = 1 if results.metric.more_is_better else -1
        below = [
            row.layer
            for row in trained
            if is_clear(row.beside_baseline) and sign * row.beside_baseline["difference"] < 0 and row.has_memory
        ]
        used = {row.layer: row.others_processors or 0.0 for row in trained}
        planned = [run["planned_seconds"] for row in trained for run in row.trainings]
        tokens = [run["tokens"] for row in trained for run in row.runs if run.get("tokens")]
        self.setup, self.trained = Setup(results), len(trained)
        self.is_equal_budget = is_equal_budget(results)
        self.missed_budget = any(row.missed_budget for row in trained)
        self.spent = _spent_text(results)
        self.epochs = max((row.epochs for row in trained if row.epochs is not None), default=1.0)
        self.read = percent(self.epochs)
        self.planned = f" instead of {in_time(1000 * max(planned))}" if planned else ""
        self.repeat = f"--tokens {_two_digits(min(tokens, default=0)) or 'N'}"
        # The headline tells it where the baseline is better than every trained layer.
        told = bool(Verdict(results).is_counted_best and results.measured[0].baseline)
        self.below_baseline = "" if told else _names(below, trained)
        worse, unclear = _below_simplest(results)
        self.worse_than_simplest, self.below_simplest = listed(worse), listed(unclear)
        self.failed = listed([row.layer for row in results.rows if row.failed])
        self.unmeasured = listed([row.layer for row in results.ran if row.value(results.metric.key) is None])
        self.lacking = listed([f"{row.layer} ({row.lacking})" for row in results.rows if row.lacking])
        self.processors = int(machine.get("processors") or machine.get("cores") or 1)
        # Other programs take nothing from a training as long as there are processors for both.
        limit = (1 + BUSY) * self.processors
        needed = {row.layer: min(self.processors, _threads(row, self.processors)) for row in trained}
        self.busy = {layer: others for layer, others in used.items() if others + needed[layer] > limit}
        self.busy_most = f"{max(self.busy.values(), default=0):.1f}"
        self.busy_names = "the layers" if 1 < len(self.busy) == self.trained else listed(list(self.busy))
        self.kinds = machine_kinds(results.ran)
        self.machines = "; ".join(f"{listed(layers)} with {kind}" for kind, layers in self.kinds.items())
        self.at_once = max((run.get("at_once") or 1 for row in results.ran for run in row.runs), default=1)
        self.has_equal_conditions = same_conditions(results.ran)
        self.selects_on_measured = data.get("valid") is not None and data.get("valid") == data.get("measured_on")


FAILED: Statement[Caveats] = Statement(lambda c: bool(c.failed), "Failed: {failed}.")
OTHERS: Statement[Caveats] = Statement(
    lambda c: bool(c.busy),
    "Other programs used up to {busy_most} of {processors} processors while {busy_names} trained, "
    "so times may be too long.",
)
WARNINGS: Sequence[Statement[Caveats]] = (
    Statement(
        lambda c: not c.is_equal_budget,
        "The trainings took {spent}{planned}, so trained layers have no ranks; repeat with {repeat}.",
    ),
    Statement(lambda c: c.is_equal_budget and c.missed_budget, "The trainings took {spent}{planned}."),
    Statement(lambda c: c.epochs < READ, "Trained layers have read at most {read} of the training data."),
    Statement(lambda c: bool(c.below_baseline), "Worse than the baseline {setup.baseline.layer}: {below_baseline}."),
    Statement(
        lambda c: bool(c.worse_than_simplest),
        "Worse than the simplest prediction ({setup.simplest}, {setup.simplest_value}): {worse_than_simplest}.",
    ),
    Statement(
        lambda c: bool(c.below_simplest),
        "Not clearly better than the simplest prediction ({setup.simplest}, {setup.simplest_value}): {below_simplest}.",
    ),
    FAILED,
    Statement(lambda c: bool(c.unmeasured), "Without a finite value: {unmeasured}."),
    Statement(lambda c: bool(c.lacking), "Without a rank: {lacking}."),
    Statement(
        lambda c: c.selects_on_measured,
        "The measured data also selected the weights, so values of trained layers are too good.",
    ),
    OTHERS,
    Statement(
        lambda c: not c.has_equal_conditions, "Times cannot be compared: rows were trained under different conditions."
    ),
)

CONDITIONS: Sequence[Statement[Caveats]] = (
    Statement(lambda c: c.at_once > 1, "Up to {at_once} trainings ran at the same time on one machine."),
    Statement(lambda c: len(c.kinds) > 1, "Under different conditions: {machines}."),
    OTHERS,
)
"""The conditions of the trainings, as ``results.json`` tells them."""


def warnings_of(results: Results, *, on_console: bool = False) -> list[str]:
    """Return what a reader must know before trusting the headline; the console tells failures beside the table."""
    statements = [statement for statement in WARNINGS if not (on_console and statement is FAILED)]
    return told(statements, Caveats(results))


def conditions(results: Results) -> str:
    """Return the conditions of the trainings; empty if they ran one by one on one quiet machine."""
    return " ".join(told(CONDITIONS, Caveats(results)))


def _threads(row: ResultRow, processors: int) -> float:
    """Return how many threads trained a row and those beside it; as many as there are processors if it is unknown."""
    runs = ((run, (run.get("machine") or {}).get("threads") or processors) for run in row.runs)
    return max((threads * (1 + (run.get("beside") or 0.0)) for run, threads in runs), default=processors)


def _below_simplest(results: Results) -> tuple[list[str], list[str]]:
    """Return the rows whose interval is worse than the simplest prediction, and those whose interval contains it."""
    key, worse, unclear = results.metric.key, list[str](), list[str]()
    value, sign = results.section("simplest").get(key), 1 if results.metric.more_is_better else -1
    if value is None:
        return worse, unclear
    for row in results.measured:
        low, *_, high = sorted(sign * end for end in row.interval(key) or (results.of(row),) * 2)
        if low <= sign * value and row.has_memory:
            (worse if high < sign * value else unclear).append(row.layer)
    return worse, unclear


def _spent_text(results: Results) -> str:
    """Return what the trainings spent of their budget, least and most: ``9 to 25 s``."""
    spent = results.spent
    if spent is None:
        return ""
    if spent.of == "seconds":
        return in_time_range(1000 * spent.low, 1000 * spent.high)
    ends = dict.fromkeys(f"{end:,.0f}" for end in (spent.low, spent.high))
    return f"{' to '.join(ends)} {spent.of}"


# What was compared on what


class Setup:
    """The figures of the facts beside the chart.

    Attributes:
        budget, epochs, parameters: of each trained row, with the smallest and the largest number of epochs and of
            parameters.
        data, measured_on: the names of the data, and how much of them there are; ``measured`` is without the name.
        baseline, baseline_parameters: the row of the simple baseline, and how many parameters it has.
        simplest, simplest_value: the name of the simplest prediction, and its metric.
        seeds: the number of seeds.
    """

    def __init__(self, results: Results) -> None:
        data, simplest = results.section("data"), results.section("simplest")
        described: JsonMapping = data.get("described") or {}
        sizes = [row.parameters for row in results.ran if row.parameters and not row.counted]
        ends = [in_short(size) for size in (min(sizes), max(sizes))] if sizes else []
        bounds = next((row.interval(results.metric.key) for row in results.measured), None)
        value, count = simplest.get(results.metric.key), len(results.seeds)
        self.budget = _budget_text(results.section("budget"))
        self.parameters = " to ".join(dict.fromkeys(ends))
        epochs = [row.epochs for row in results.trained if row.epochs is not None]
        read = dict.fromkeys(rounded(end, 2) for end in (min(epochs), max(epochs))) if epochs else ()
        self.epochs = f" ({' to '.join(read)} epochs)" if read else ""
        self.data = _joined(short_name(str(data.get("train") or "a text")), described.get("train"))
        measured_on = short_name(str(data.get("measured_on") or "held-out data"))
        self.measured = described.get("measured") or measured_on
        self.measured_on = _joined(measured_on, described.get("measured"))
        self.baseline = next((row for row in results.measured if row.baseline), None)
        size = self.baseline and self.baseline.parameters
        self.baseline_parameters = f", {in_short(size)} parameters" if size else ""
        self.simplest = str(simplest.get("name", ""))
        self.simplest_value = "" if value is None else results.metric.written(value, bounds)
        self.seeds = "1 seed" if count == 1 else f"{count} seeds"


FACTS: Sequence[tuple[str, Statement[Setup]]] = (
    ("Trained on", Statement(lambda s: True, "{data}")),
    ("Budget", Statement(lambda s: bool(s.parameters), "{budget}{epochs} and {parameters} parameters each")),
    ("Measured on", Statement(lambda s: True, "{measured_on}")),
    (
        "Baseline",
        Statement(lambda s: s.baseline is not None, "{baseline.layer}{baseline_parameters}, not trained by steps"),
    ),
    ("Simplest", Statement(lambda s: s.baseline is None and bool(s.simplest_value), "{simplest}: {simplest_value}")),
    ("Seeds", Statement(lambda s: s.seeds == "1 seed", "1, so how much a seed changes the values is not known")),
    ("Seeds", Statement(lambda s: s.seeds != "1 seed", "{seeds}, of which values are the means")),
)
"""At most five facts beside the chart: a name, and what it is."""


def facts_of(results: Results) -> list[tuple[str, str]]:
    """Return the facts beside the chart."""
    setup = Setup(results)
    return [(name, statement.of(setup)) for name, statement in FACTS if statement.when(setup)]


def _budget_text(budget: JsonMapping) -> str:
    """Return the budget: ``2 minutes``, ``1,000,000 tokens`` or ``60 steps``."""
    for name, amount in budget.items():
        if amount is not None:
            return f"{amount:,.10g} {name.removesuffix('s') if amount == 1 else name}"
    return "no budget"


def _joined(name: str, described: str | None) -> str:
    return f"{name}, {described}" if described else name


def _names(chosen: Sequence[str], rows: Sequence[ResultRow]) -> str:
    """Return some names among those of all rows."""
    return "all trained layers" if 1 < len(chosen) == len(rows) else listed(chosen)


# Figures as they are written


def value_text(results: Results, row: ResultRow | None) -> str:
    """Return the metric of a row with its interval, with the digits of all rows: ``36.7 (34.8–38.6)``."""
    if row is None:
        return ""
    bounds, digits = row.interval(results.metric.key), shown_digits(results, results.metric)
    value, *ends = (written(number, digits) for number in (results.of(row), *(bounds or ())))
    return f"{value} ({'–'.join(ends)})" if ends else value


def shown_digits(results: Results, metric: Metric) -> int:
    """Return the digits after the point of a figure of all rows: those that the interval in the middle supports.

    Two digits of the smallest value are shown, at least, so that none becomes 0 beside very large ones; and one more
    where the best row and one that a test tells from it would be written alike.
    """
    supported = sorted(
        supported_digits(*ends, metric.digits) for row in results.ran if (ends := row.interval(metric.key))
    )
    least = min((abs(value) for row in results.ran if (value := row.value(metric.key))), default=1.0)
    enough = min(0, 1 - math.floor(math.log10(least)))
    digits = max(supported[len(supported) // 2], enough) if supported else metric.digits
    tested = [written(results.of(row), digits) for row in results.measured if row.differs and metric == results.metric]
    return digits + (bool(tested) and written(results.of(results.measured[0]), digits) in tested)


def gap_text(results: Results, test: JsonMapping) -> str:
    """Return how much worse a row is than the one it was tested against: ``1.46 worse (1.06–1.76)``.

    A difference of fractions is in points, hundredths of the whole.
    """
    if test.get("difference") is None or test.get("low") is None:
        return "not tested"
    metric = tested_metric(results, test)
    scale, unit = (100, " points") if metric.is_fraction else (1, "")
    size, *ends = (scale * abs(test[name]) for name in ("difference", "low", "high"))
    low, high = sorted(ends)
    digits = supported_digits(low, high, MAX_DIFFERENCE_DIGITS)
    text, *bounds = (written(value, digits) for value in (size, low, high))
    of = "" if metric.key == results.metric.key else f" in {metric.name}"
    return f"{text}{unit} worse{of} ({bounds[0]}–{bounds[1]})"


def tested_metric(results: Results, test: JsonMapping) -> Metric:
    """Return the figure that was tested, which may stand for the metric; see `plan.SAME_ORDER`."""
    key = test.get("key", results.metric.key)
    return next((figure for figure in results.figures if figure.key == key), results.metric)


def is_clear(test: JsonMapping) -> bool:
    """Return whether a difference is significant; see `is_significant`."""
    return is_significant(*(test.get(name) for name in ("p_value", "low", "high")))


def _cost_text(row: ResultRow) -> str:
    """Return the seconds of a training and the time of a token, as the end of a sentence."""
    clauses = []
    if row.training_seconds:
        clauses.append(f"was {row.learned or 'trained'} in {in_time(1000 * row.training_seconds)}")
    if row.milliseconds_per_token:
        clauses.append(f"takes {_token_text(row)}")
    return f"; it {' and '.join(clauses)}" if clauses else ""


def _token_text(row: ResultRow) -> str:
    spread = f" ({in_time_range(*row.milliseconds_spread)})" if row.milliseconds_spread else ""
    return f"{in_time(row.milliseconds_per_token or 0.0)} a token{spread}"


def _two_digits(number: float) -> int:
    """Return a number rounded down to two significant digits."""
    scale = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return int(number // scale * scale)


# The conditions of trainings


def same_conditions(rows: Sequence[ResultRow]) -> bool:
    """Return whether times and speeds of some rows can be compared: equal machines, equally disturbed."""
    beside = [
        sum(run["beside"] for run in row.runs) / len(row.runs)
        for row in rows
        if not row.counted and row.runs and all(run.get("beside") is not None for run in row.runs)
    ]
    is_even = not beside or max(beside) - min(beside) <= DISTURBED
    return is_even and len(machine_kinds(rows)) <= 1


def machine_kinds(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Return the layers by the machine that they were trained on, in words: ``AMD EPYC, 2 threads``."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        for run in row.runs:
            if machine := run.get("machine"):
                device = "" if machine["device"] == "cpu" else f", {machine['device']}"
                threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
                layers = kinds.setdefault(f"{machine['processor']}{device}, {threads}", [])
                if row.layer not in layers:
                    layers.append(row.layer)
    return kinds
