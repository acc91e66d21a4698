"""What a comparison shows, in a headline, one line of warnings and five facts: statements and the figures in them.

Every statement has the condition under which it is true. A layer is called better or worse only where a paired test
shows it, and trained layers are ordered only where their budgets were equal.
"""

import math
from collections.abc import Sequence
from functools import cached_property

from ..core.json_object import JsonMapping
from ..evaluation.intervals import Metric, is_significant, supported_digits, written
from ..pages.statements import Statement, told
from ..pages.wording import in_short, in_time, in_time_range, listed, short_name
from .results import ResultRow, Results

BUSY = 0.1
"""Fraction of the processors' time that other programs may take during a training."""
DISTURBED = 0.25
"""The difference of the mean numbers of other trainings from which rows were disturbed unequally."""
MIN_VALIDATIONS = 3
"""Validations without which it is not known whether a training was still improving."""
TOLERANCE = 0.02
"""Relative difference up to which numbers of parameters are called equal."""


class Findings:
    """The figures of the statements about a comparison, written as a reader sees them."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.metric = results.metric.name
        self.degree = "highest" if results.metric.more_is_better else "lowest"

    # Who is best, by how much, at what cost

    @cached_property
    def best(self) -> ResultRow | None:
        """The row with the best metric."""
        return next(iter(self.results.measured), None)

    @cached_property
    def trained(self) -> ResultRow | None:
        """The trained row with the best metric."""
        return next(iter(self.results.trained), None)

    @cached_property
    def equals(self) -> list[ResultRow]:
        """The best row, and those that were tested against it and do not differ significantly."""
        return [row for row in self.results.measured if row is self.best or row.is_tied]

    @property
    def equal_names(self) -> str:
        """The names of `equals`."""
        return listed([row.layer for row in self.equals])

    @cached_property
    def next(self) -> ResultRow | None:
        """The best row that differs significantly from the best one."""
        return next((row for row in self.results.measured if row.differs), None)

    @property
    def best_value(self) -> str:
        """The metric of the best row with its interval."""
        return value_text(self.results, self.best)

    @property
    def trained_value(self) -> str:
        """The metric of the best trained row with its interval."""
        return value_text(self.results, self.trained)

    @property
    def next_gap(self) -> str:
        """How much worse the next row is."""
        return "" if self.next is None else gap_text(self.results, self.next.difference)

    @cached_property
    def trained_test(self) -> JsonMapping:
        """The test of the best trained row against the best one."""
        return {} if self.trained is None else self.trained.difference

    @property
    def trained_gap(self) -> str:
        """How much worse the best trained row is than the best one."""
        return gap_text(self.results, self.trained_test)

    @property
    def is_counted_best(self) -> bool:
        """Whether a model that is not trained by steps is significantly better than every trained one."""
        return bool(self.best and self.best.counted and self.trained and self.trained.differs)

    @property
    def is_equal_budget(self) -> bool:
        """Whether trained layers may be ordered: their budgets were equal, or there are fewer than two."""
        spent = self.results.spent
        return spent is None or spent.is_equal or len(self.results.trained) < 2

    @property
    def is_decided(self) -> bool:
        """Whether one row is better than all the others, by tests."""
        return self.next is not None and len(self.equals) == 1

    @property
    def cost(self) -> str:
        """What the best row cost, as the end of a sentence: the seconds of its training, and the time of a token."""
        text = "" if self.best is None else _cost_text(self.best)
        return f"; it {text}" if text else ""

    @cached_property
    def cheapest(self) -> ResultRow | None:
        """The row of `equals` with the least time of a token, if the ranges of repetitions tell it from the others."""
        known = [row for row in self.equals if row.milliseconds_spread]
        known.sort(key=lambda row: row.milliseconds_per_token or 0.0)
        if len(known) < 2 or len(known) < len(self.equals) or not same_conditions(known):
            return None
        return known[0] if known[0].milliseconds_spread[1] < known[1].milliseconds_spread[0] else None

    @property
    def cheapest_cost(self) -> str:
        """The time of a token of the cheapest row, with the range of the repetitions."""
        return "" if self.cheapest is None else _token_text(self.cheapest)

    # What a reader must know before trusting it

    @property
    def spent(self) -> str:
        """What the trainings spent of their budget, least and most: ``9 to 25 s``."""
        spent = self.results.spent
        if spent is None:
            return ""
        if spent.of == "seconds":
            return in_time_range(1000 * spent.low, 1000 * spent.high)
        return f"{spent.low:,.0f} to {spent.high:,.0f} {spent.of}"

    @property
    def planned(self) -> str:
        """The budget in time of each training, which may have missed it; empty for other budgets."""
        planned = {run["planned_seconds"] for row in self.results.trained for run in row.trainings}
        return f" instead of {in_time(1000 * max(planned))}" if planned else ""

    @property
    def missed_budget(self) -> bool:
        """Whether a training took clearly more or less time than the budget."""
        return any(row.missed_budget for row in self.results.trained)

    @property
    def repeat(self) -> str:
        """The option that gives every layer the same budget: the fewest tokens that a trained layer has read."""
        tokens = [run["tokens"] for row in self.results.trained for run in row.runs if run.get("tokens")]
        least = min(tokens, default=0)
        return f"--tokens {_two_digits(least):,}".replace(",", "") if least else "--tokens N"

    @cached_property
    def busy(self) -> dict[str, float]:
        """The processors that other programs used while a row was trained, for the rows that this disturbed."""
        used = {row.layer: row.others_processors or 0.0 for row in self.results.trained}
        return {layer: others for layer, others in used.items() if others > BUSY * self.processors}

    @property
    def processors(self) -> int:
        """The processors of the machine."""
        machine = self.results.section("machine")
        return int(machine.get("processors") or machine.get("cores") or 1)

    @property
    def busy_most(self) -> str:
        """The most processors that other programs used during a training."""
        return f"{max(self.busy.values(), default=0):.1f}"

    @property
    def busy_names(self) -> str:
        """The rows that other programs disturbed."""
        everyone = len(self.busy) == len(self.results.trained)
        return "the layers" if everyone else listed(list(self.busy))

    @property
    def has_equal_conditions(self) -> bool:
        """Whether times and speeds can be compared."""
        return same_conditions(self.results.ran)

    @property
    def at_once(self) -> int:
        """The largest number of trainings at the same time on one machine."""
        return max((run.get("at_once") or 1 for row in self.results.ran for run in row.runs), default=1)

    @property
    def machines(self) -> str:
        """The machines with the rows that they trained."""
        kinds = machine_kinds(self.results.ran)
        return "; ".join(f"{listed(layers)} with {kind}" for kind, layers in kinds.items())

    @property
    def is_several_machines(self) -> bool:
        """Whether the rows were trained on different machines, or with different numbers of threads."""
        return len(machine_kinds(self.results.ran)) > 1

    @property
    def failed(self) -> str:
        """The rows that failed."""
        return listed([row.layer for row in self.results.rows if row.failed])

    @property
    def lacking(self) -> str:
        """The rows without a rank because a seed is missing."""
        return listed([f"{row.layer} ({row.lacking})" for row in self.results.rows if row.lacking])

    # The simple baseline and the simplest prediction

    @cached_property
    def baseline(self) -> ResultRow | None:
        """The row of the simple baseline."""
        return next((row for row in self.results.measured if row.baseline), None)

    @property
    def baseline_value(self) -> str:
        """The metric of the baseline with its interval."""
        return value_text(self.results, self.baseline)

    @cached_property
    def below_baseline(self) -> list[ResultRow]:
        """The trained rows that are significantly worse than the baseline."""
        sign = 1 if self.results.metric.more_is_better else -1
        return [
            row
            for row in self.results.trained
            if is_clear(row.beside_baseline) and sign * row.beside_baseline["difference"] < 0
        ]

    @property
    def below_baseline_names(self) -> str:
        """The names of `below_baseline`."""
        everyone = 1 < len(self.results.trained) == len(self.below_baseline)
        return "all trained layers" if everyone else listed([row.layer for row in self.below_baseline])

    @property
    def simplest(self) -> str:
        """The name of the simplest prediction."""
        return str(self.results.section("simplest").get("name", ""))

    @property
    def simplest_value(self) -> str:
        """The metric of the simplest prediction; empty if it is not known."""
        value = self.results.section("simplest").get(self.results.metric.key)
        bounds = next((row.interval(self.results.metric.key) for row in self.results.measured), None)
        return "" if value is None else self.results.metric.written(value, bounds)

    @property
    def below_simplest(self) -> str:
        """The rows whose interval does not lie on the better side of the simplest prediction."""
        value = self.results.section("simplest").get(self.results.metric.key)
        if value is None:
            return ""
        sign, key = 1 if self.results.metric.more_is_better else -1, self.results.metric.key
        worst = {
            row.layer: min(sign * end for end in row.interval(key) or (self.results.of(row),))
            for row in self.results.measured
        }
        return listed([layer for layer, low in worst.items() if low <= sign * value])

    # What was equal

    @property
    def budget(self) -> str:
        """The budget: ``2 minutes``, ``1,000,000 tokens`` or ``60 steps``."""
        for name, amount in self.results.section("budget").items():
            if amount is not None:
                return f"{amount:,.10g} {name.removesuffix('s') if amount == 1 else name}"
        return "no budget"

    @property
    def parameters(self) -> str:
        """The smallest and the largest number of parameters of the trained rows."""
        sizes = [row.parameters for row in self.results.ran if row.parameters and not row.counted]
        if not sizes:
            return ""
        low, high = in_short(min(sizes)), in_short(max(sizes))
        return low if low == high else f"{low} to {high}"

    @property
    def data(self) -> str:
        """The training data, and how much of them there are."""
        data = self.results.section("data")
        described = (data.get("described") or {}).get("train")
        return ", ".join(filter(None, [short_name(str(data.get("train") or "a text")), described]))

    @property
    def measured_on(self) -> str:
        """The data of the measurement, and how much of them there are."""
        data = self.results.section("data")
        described = (data.get("described") or {}).get("measured")
        return ", ".join(filter(None, [short_name(str(data.get("measured_on") or "held-out data")), described]))

    @property
    def selects_on_measured(self) -> bool:
        """Whether the data of the measurement also selected the weights."""
        data = self.results.section("data")
        return data.get("valid") is not None and data.get("valid") == data.get("measured_on")

    @property
    def seeds(self) -> str:
        """The number of seeds."""
        count = len(self.results.seeds)
        return "1 seed" if count == 1 else f"{count} seeds"

    # Whether a longer training would help

    @cached_property
    def improving(self) -> list[str]:
        """The trained rows that were still improving at the end of their training."""
        return [row.layer for row in self.results.trained if (last_gain(row, self.results) or 0.0) > 0]

    @property
    def improving_names(self) -> str:
        """The names of `improving`."""
        everyone = 1 < len(self.improving) == len(self.results.trained)
        return "all trained layers" if everyone else listed(self.improving)

    @cached_property
    def too_rare(self) -> list[str]:
        """The trained rows with too few validations to know whether they were still improving."""
        return [row.layer for row in self.results.trained if len(held_out(row)) < MIN_VALIDATIONS]

    @property
    def too_rare_names(self) -> str:
        """The names of `too_rare`."""
        everyone = 1 < len(self.too_rare) == len(self.results.trained)
        return "any layer" if everyone else listed(self.too_rare)


HEADLINE: Sequence[Statement[Findings]] = (
    Statement(lambda f: f.best is None, "No layer has a {metric}."),
    Statement(
        lambda f: f.is_counted_best,
        "{best.layer} wins: {metric} {best_value}{cost}. The best trained layer, {trained.layer}, is {trained_gap}.",
    ),
    Statement(
        lambda f: f.best is not None and not f.is_counted_best and not f.is_equal_budget,
        "No winner, because the budgets were not equal. {best.layer} has the {degree} {metric}: {best_value}.",
    ),
    Statement(
        lambda f: f.best is not None and f.is_equal_budget and not f.is_counted_best and f.is_decided,
        "{best.layer} wins: {metric} {best_value}{cost}. {next.layer} is {next_gap}.",
    ),
    Statement(
        lambda f: f.is_equal_budget and len(f.equals) > 1 and not f.is_counted_best,
        "A tie: {equal_names} do not differ significantly. {best.layer} has {metric} {best_value}.",
    ),
    Statement(
        lambda f: f.best is not None and f.is_equal_budget and len(f.equals) == 1 and f.next is None,
        "{best.layer} has the {degree} {metric}: {best_value}. It was tested against no other layer.",
    ),
    Statement(lambda f: f.cheapest is not None, "The cheapest of them is {cheapest.layer}, {cheapest_cost}."),
)
"""Who wins, by how much, at what cost: one of the first six; after a tie, which of the equals is cheapest."""

FAILED: Statement["Findings"] = Statement(lambda f: bool(f.failed), "Failed: {failed}.")
WARNINGS: Sequence[Statement[Findings]] = (
    Statement(
        lambda f: not f.is_equal_budget,
        "The trainings took {spent}{planned}, so trained layers have no ranks; repeat with {repeat}.",
    ),
    Statement(lambda f: f.is_equal_budget and f.missed_budget, "The trainings took {spent}{planned}."),
    Statement(
        lambda f: bool(f.below_baseline) and not f.is_counted_best,
        "Worse than the baseline {baseline.layer}: {below_baseline_names}.",
    ),
    Statement(
        lambda f: bool(f.below_simplest),
        "No better than the simplest prediction ({simplest}, {simplest_value}): {below_simplest}.",
    ),
    FAILED,
    Statement(lambda f: bool(f.lacking), "Without a rank: {lacking}."),
    Statement(
        lambda f: bool(f.busy),
        "Other programs used {busy_most} of {processors} processors while {busy_names} trained: times are too long.",
    ),
    Statement(
        lambda f: not f.has_equal_conditions, "Times cannot be compared: rows were trained under different conditions."
    ),
    Statement(
        lambda f: f.selects_on_measured, "The measured data also selected the weights, so values are a little too good."
    ),
)

FACTS: Sequence[tuple[str, Statement[Findings]]] = (
    ("Trained on", Statement(lambda f: True, "{data}")),
    ("Budget", Statement(lambda f: bool(f.parameters), "{budget} each, {parameters} parameters")),
    ("Measured on", Statement(lambda f: True, "{measured_on}")),
    ("Baseline", Statement(lambda f: f.baseline is not None, "{baseline.layer}: {baseline_value}")),
    (
        "Simplest",
        Statement(lambda f: f.baseline is None and bool(f.simplest_value), "{simplest}: {simplest_value}"),
    ),
    ("Still improving", Statement(lambda f: bool(f.improving), "{improving_names}")),
    (
        "Still improving",
        Statement(
            lambda f: not f.improving and bool(f.too_rare), "not known of {too_rare_names}, validated too rarely"
        ),
    ),
    (
        "Still improving",
        Statement(lambda f: bool(f.results.trained) and not f.improving and not f.too_rare, "none of the layers"),
    ),
)
"""At most five facts beside the chart: a name, and what it is."""

CONDITIONS: Sequence[Statement[Findings]] = (
    Statement(lambda f: f.at_once > 1, "Up to {at_once} trainings ran at the same time on one machine."),
    Statement(lambda f: f.is_several_machines, "Under different conditions: {machines}."),
    Statement(
        lambda f: bool(f.busy),
        "While {busy_names} trained, other programs used up to {busy_most} of {processors} processors.",
    ),
)
"""The conditions of the trainings, as ``results.json`` tells them."""

CONSOLE: Sequence[tuple[str, Statement[Findings]]] = (
    ("best", Statement(lambda f: f.best is not None, "{best.title}  {best_value}")),
    ("equal to it", Statement(lambda f: len(f.equals) > 1, "{equal_names} (no significant difference)")),
    (
        "best trained",
        Statement(
            lambda f: f.trained is not None and f.trained is not f.best and is_clear(f.trained_test),
            "{trained.layer}  {trained_value}, {trained_gap}",
        ),
    ),
)
"""The last lines of the console."""


def headline(results: Results) -> str:
    """Return who wins, by how much, at what cost."""
    return " ".join(told(HEADLINE, Findings(results)))


def warnings_of(results: Results, *, on_console: bool = False) -> list[str]:
    """Return what a reader must know before trusting the headline; the console tells failures beside the table."""
    statements = [statement for statement in WARNINGS if not (on_console and statement is FAILED)]
    return told(statements, Findings(results))


def conditions(results: Results) -> str:
    """Return the conditions of the trainings; empty if they ran one by one on one quiet machine."""
    return " ".join(told(CONDITIONS, Findings(results)))


# Figures as they are written


def value_text(results: Results, row: ResultRow | None) -> str:
    """Return the metric of a row with its interval: ``36.7 (34.8–38.6)``."""
    if row is None:
        return ""
    bounds, metric = row.interval(results.metric.key), results.metric
    value = metric.written(results.of(row), bounds)
    return value if bounds is None else f"{value} ({'–'.join(metric.written(end, bounds) for end in bounds)})"


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
    digits = supported_digits(low, high, max(1, metric.digits - 2 * (scale > 1)))
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
    clauses = []
    if row.training_seconds:
        how = row.learned if row.counted else "trained"
        clauses.append(f"was {how} in {in_time(1000 * row.training_seconds)}")
    if row.milliseconds_per_token:
        clauses.append(f"takes {_token_text(row)}")
    return " and ".join(clauses)


def _token_text(row: ResultRow) -> str:
    spread = f" ({in_time_range(*row.milliseconds_spread)})" if row.milliseconds_spread else ""
    return f"{in_time(row.milliseconds_per_token or 0.0)} a token{spread}"


def _two_digits(number: float) -> int:
    """Return a number rounded down to two significant digits."""
    scale = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return int(number // scale * scale)


# Trainings: their validations and conditions


def held_out(row: ResultRow) -> list[JsonMapping]:
    """Return the validations of a training in their order."""
    return [point for point in row.held_out if point.get("value") is not None]


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
