"""What the console concludes from measurements, as statements: a condition, a template and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.json_object import JsonObject
from ..evaluation.intervals import Metric, Paired, interval_digits, is_significant, written
from ..pages.statements import Statement, told
from ..tasks.beside_baseline import ADVICE

# A training beside the simpler models that it should exceed.


@dataclass(frozen=True)
class BesideSimpler:
    """A metric of a trained model beside that of a simpler one."""

    model: str  # what precedes the name of the metric; empty for the run itself
    metric: Metric
    metrics: JsonObject
    simpler: JsonObject  # its metrics and its name
    is_clear: bool  # whether the difference is more than chance, where that is known
    advice: str

    @property
    def is_better(self) -> bool:
        """Whether the model has the better value."""
        value, limit = self.metrics[self.metric.key], self.simpler[self.metric.key]
        return bool(value > limit if self.metric.more_is_better else value < limit)

    @property
    def value(self) -> str:
        """The metric of the model, as a table shows it."""
        return self.metric.text(self.metrics)

    @property
    def limit(self) -> str:
        """The metric of the simpler model, as a table shows it."""
        return self.metric.text(self.simpler, self.metrics)


CAUTIONS: tuple[Statement[BesideSimpler], ...] = (
    Statement(
        lambda facts: facts.is_clear and not facts.is_better,
        "{model}{metric.name} {value}, worse than {simpler[name]} ({limit}): {advice}",
    ),
    Statement(
        lambda facts: not facts.is_clear,
        "{model}{metric.name} {value}, not significantly different from {simpler[name]} ({limit}): {advice}",
    ),
)
"""What is said of a training whose result a simpler model reaches, too."""


def cautions(record: JsonObject, headline: Sequence[Metric], *, is_fitted: bool) -> list[str]:
    """Return what is to be said of a training that does not exceed its simpler models, the gravest first.

    Args:
        record: the content of `summary.json`.
        headline: the metrics that are shown during the training.
        is_fitted: whether the model is counted or fitted directly, so that it cannot be trained longer.
    """
    if not (metrics := record.get("valid")):
        return []
    trivial, network = record["baseline"], record.get("network")
    simple = trivial.get("simple", {})
    if is_fitted:
        advice = "give it more text"
    elif "budget" in record["ended"]:
        advice = "train longer"
    else:
        advice = "train on more text, or try another --layer"
    advice += ", or use --training.baseline_weight auto" if ADVICE in simple.get("verdict", "") else ""

    # A constant answer is exceeded in some metric or not; BLEU of short answers is 0 for all. From the simple baseline,
    # the run must differ by more than chance.
    beside = [
        BesideSimpler("", each, metrics, trivial, metrics[each.key] != trivial[each.key], advice)
        for each in headline
        if metrics.get(each.key) is not None and trivial.get(each.key) is not None
    ]
    facts = [] if any(each.is_better for each in beside) else beside[:1]
    for metric in (each for each in headline if each.key == simple.get("metric")):
        is_clear = is_significant(simple["p_value"], simple["difference_low"], simple["difference_high"])
        facts.append(BesideSimpler("", metric, metrics, simple, is_clear, advice))
        if network:
            is_other = network[metric.key] != simple[metric.key]
            facts.append(BesideSimpler("the network alone: ", metric, network, simple, is_other, advice))
    return [sentence for each in facts for sentence in told(CAUTIONS, each)]


# Two systems on the same data.


@dataclass(frozen=True)
class Difference:
    """The difference of a metric of two systems, the first minus the second; differences of shares are in points."""

    first: str
    second: str
    metric: Metric
    paired: Paired

    @property
    def is_significant(self) -> bool:
        """Whether the difference is more than chance."""
        return is_significant(self.paired.p_value, self.paired.low, self.paired.high)

    @property
    def is_better(self) -> bool:
        """Whether the first system has the better value."""
        return self.metric.best((self.paired.difference, 0.0)) == self.paired.difference

    def turned(self) -> "Difference":
        """Return the second system minus the first."""
        value, low, high, p_value = self.paired
        ends = [None if end is None else -end for end in (high, low)]
        return Difference(self.second, self.first, self.metric, Paired(-value, ends[0], ends[1], p_value))

    @property
    def texts(self) -> list[str]:
        """The signed difference and the bounds of its interval, with the digits that the interval supports."""
        factor, digits = (100, self.metric.digits - 2) if self.metric.is_fraction else (1, self.metric.digits)
        value, low, high = (None if each is None else factor * each for each in self.paired[:3])
        if low is not None and high is not None:
            digits = interval_digits(low, high, digits)
        return [written(each, digits, signed=True) for each in (value, low, high)]

    @property
    def size(self) -> str:
        """The signed difference with its unit."""
        return f"{self.texts[0]} points" if self.metric.is_fraction else self.texts[0]

    @property
    def interval(self) -> str:
        """The interval of the difference; empty if there are too few items for one."""
        return "" if self.paired.low is None else " to ".join(self.texts[1:])


DIFFERENCES: tuple[Statement[Difference], ...] = (
    Statement(
        lambda facts: facts.is_significant,
        "{first} is better than {second}: {metric.name} {size} ({interval}), significant",
    ),
    Statement(
        lambda facts: not facts.is_significant and bool(facts.interval),
        "{first} and {second} cannot be told apart: {metric.name} {size} ({interval}), not significant",
    ),
    Statement(
        lambda facts: not facts.interval,
        "{first} and {second} cannot be told apart: {metric.name} {size}, and too few items for an interval",
    ),
)
"""What is said of two systems on the same data, the first of which has the better value."""


def conclusion(difference: Difference) -> list[str]:
    """Return which of two systems is better, by how much, and whether that is significant."""
    return told(DIFFERENCES, difference if difference.is_better else difference.turned())
