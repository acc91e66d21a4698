"""Metrics in the text format of Prometheus, version 0.0.4.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
Values = tuple[str, ...]
"""The values of the labels of a series, in the order of the metric's labels."""
Reading = float | Mapping[Values, float]
AnyMetric = TypeVar("AnyMetric", bound="Metric")


class Metric:
    """A metric with a name, a help text and labels; its series are kept under a lock."""

    kind = ""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"name: must match {NAME.pattern}, got {name!r}")
        for label in labels:
            if not LABEL.fullmatch(label) or label == "le":
                raise ValueError(f"labels: must match {LABEL.pattern} and not be le, got {label!r}")
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._lock = threading.Lock()

    def lines(self) -> list[str]:
        """Return the lines of the metric in the text format."""
        return [f"# HELP {self.name} {escape(self.text, '')}", f"# TYPE {self.name} {self.kind}", *self._samples()]

    def _samples(self) -> list[str]:
        raise NotImplementedError

    def _values(self, labels: Mapping[str, str]) -> Values:
        if set(labels) != set(self.labels):
            raise ValueError(f"{self.name}: the labels are {', '.join(self.labels) or 'none'}, got {', '.join(labels)}")
        return tuple(str(labels[name]) for name in self.labels)

    def _sample(self, values: Values, number: float, suffix: str = "", bound: str = "") -> str:
        pairs = [f'{name}="{escape(value)}"' for name, value in zip(self.labels, values, strict=True)]
        pairs += [f'le="{bound}"'] if bound else []
        labels = f"{{{','.join(pairs)}}}" if pairs else ""
        return f"{self.name}{suffix}{labels} {spelled(number)}"


class Counter(Metric):
    """A number that only rises; its name should end with ``_total``."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._series: dict[Values, float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        """Add an amount that is not negative to the series of these labels."""
        if not amount >= 0:
            raise ValueError(f"{self.name}: a counter cannot fall, got {amount}")
        values = self._values(labels)
        with self._lock:
            self._series[values] = self._series.get(values, 0.0) + amount

    def _samples(self) -> list[str]:
        with self._lock:
            series = dict(self._series)
        return [self._sample(values, number) for values, number in series.items()]


class Gauge(Metric):
    """A number that rises and falls: set, or read at every scrape.

    Args:
        name: The name of the metric.
        text: What it measures, with its unit.
        labels: The names of the labels.
        read: Returns the number, or the number of every series by its values of the labels. A gauge that cannot be
            read (the function raises) is left out of the scrape.
        kind: "counter" for a number that another part counts.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        read: Callable[[], Reading] | None = None,
        kind: str = "gauge",
    ) -> None:
        super().__init__(name, text, labels)
        self.kind = kind
        self._read = read
        self._series: dict[Values, float] = {}

    def set(self, value: float, **labels: str) -> None:
        """Set the number of the series of these labels."""
        values = self._values(labels)
        with self._lock:
            self._series[values] = value

    def _samples(self) -> list[str]:
        with self._lock:
            series: Mapping[Values, float] = dict(self._series)
        if self._read is not None:
            try:
                reading = self._read()
            except Exception:  # one unreadable metric must not hide the others
                return []
            series = reading if isinstance(reading, Mapping) else {(): reading}
        return [self._sample(values, number) for values, number in series.items()]


class Histogram(Metric):
    """How many observations are at most as large as each of some bounds, their sum and their number."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(float(bound) for bound in bounds if bound != math.inf)
        if list(self.bounds) != sorted(set(self.bounds)) or any(map(math.isnan, self.bounds)):
            raise ValueError(f"{name}: the bounds must rise, got {list(bounds)}")
        self._series: dict[Values, tuple[list[int], float]] = {}

    def observe(self, value: float, **labels: str) -> None:
        """Count an observation in the series of these labels."""
        values = self._values(labels)
        with self._lock:
            counts, total = self._series.get(values) or ([0] * (len(self.bounds) + 1), 0.0)
            counts[bisect_left(self.bounds, value)] += 1
            self._series[values] = counts, total + value

    def _samples(self) -> list[str]:
        with self._lock:
            series = {values: (list(counts), total) for values, (counts, total) in self._series.items()}
        lines = []
        for values, (counts, total) in series.items():
            below = 0
            for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
                below += count
                lines.append(self._sample(values, below, "_bucket", spelled(bound)))
            lines += [self._sample(values, total, "_sum"), self._sample(values, below, "_count")]
        return lines


class Registry:
    """The metrics of a server, in the order in which they were added."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Add a counter."""
        return self._add(Counter(name, text, labels))

    def gauge(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        read: Callable[[], Reading] | None = None,
        kind: str = "gauge",
    ) -> Gauge:
        """Add a gauge; see `Gauge` for its arguments."""
        return self._add(Gauge(name, text, labels, read, kind))

    def histogram(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        """Add a histogram whose buckets end at ``bounds`` and at infinity."""
        return self._add(Histogram(name, text, bounds, labels))

    def exposition(self) -> str:
        """Return all metrics in the text format."""
        return "".join(f"{line}\n" for metric in list(self._metrics.values()) for line in metric.lines())

    def _add(self, metric: AnyMetric) -> AnyMetric:
        if metric.name in self._metrics:
            raise ValueError(f"the metric {metric.name} exists already")
        self._metrics[metric.name] = metric
        return metric


def escape(text: str, quote: str = '"') -> str:
    """Return a help text (without ``quote``) or the value of a label as the format spells it."""
    text = text.encode(errors="backslashreplace").decode().replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace(quote, f"\\{quote}") if quote else text


def spelled(number: float) -> str:
    """Return a number as the format spells it."""
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    if math.isnan(number):
        return "NaN"
    return str(int(number)) if float(number).is_integer() and abs(number) < 2**53 else repr(float(number))
