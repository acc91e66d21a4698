"""The progress of a comparison, for those who listen to it."""

import time
from collections.abc import Mapping

from ..evaluation.intervals import Metrics
from .metric import higher_is_better
from .plan import Plan, is_counted

OVERHEAD = 15.0
"""Estimated seconds that a row takes beside its training, until a row has been finished."""
KNOWN_SHARE = 0.05
"""The share of a run after which its remaining time is known."""


class ComparisonProgress:
    """Which run is being trained, how long the comparison will take, and which layer is the best so far.

    Attributes:
        number, count: the number of the run, from 1, and of all runs.
        layer, seed, trial: the run; ``trial`` is the number of a learning rate that is tried, or None.
        share: the share of the run that is done, 0 to 1.
        best: the best layer so far and its metric, or None.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.count = len(plan.layers) * len(plan.seeds)
        self.number, self.done, self.share = 0, 0, 0.0
        self.layer, self.seed = "", 0
        self.trial: int | None = None
        self.best: tuple[str, float] | None = None
        self._left: float | None = None  # seconds of training of this run
        self._durations: list[float] = []
        self._began = 0.0

    @property
    def name(self) -> str:
        """The layer, and the seed where there are several."""
        return self.layer if len(self.plan.seeds) == 1 else f"{self.layer}, seed {self.seed}"

    def start(self, layer: str, seed: int) -> None:
        """Begin a run."""
        self.layer, self.seed, self.trial = layer, seed, None
        self.number = self.done + 1
        self.share, self._left, self._began = 0.0, None, time.monotonic()

    def finish(self) -> None:
        """End a run that succeeded. The time that counting takes says nothing about other layers."""
        if not is_counted(self.layer):
            self._durations.append(time.monotonic() - self._began)
        self.done += 1

    def update_best(self, layer: str, metrics: Mapping[str, float | None]) -> None:
        """Compare the metric of a finished row with the best so far."""
        value = metrics.get(self.plan.metric)
        sign = 1 if higher_is_better(self.plan.metric) else -1
        if value is not None and (self.best is None or sign * value > sign * self.best[1]):
            self.best = (layer, value)

    def hear(self, event: Metrics) -> None:
        """Take note of an event of a worker."""
        if event["event"] == "step":
            self.share = float(event["progress"])
            self._left = event["seconds_left"] if self.share > KNOWN_SHARE else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the whole comparison; None while the speed is not known."""
        if self._durations:
            run = sum(self._durations) / len(self._durations)
        elif self.plan.budget.minutes is not None:
            run = 60 * self.plan.budget.minutes + OVERHEAD
        elif self._left is None or self.trial is not None:
            return None
        else:
            run = time.monotonic() - self._began + self._left + OVERHEAD
        return max(0.0, run - (time.monotonic() - self._began)) + run * max(0, self.count - self.number)


class ComparisonReporter:
    """Listens to a comparison. The library never prints; a program passes a subclass of this class."""

    def begin(self, plan: Plan, progress: ComparisonProgress) -> None:
        """Receive the plan before the first run."""

    def run(self, progress: ComparisonProgress) -> None:
        """Hear that a run begins."""

    def hear(self, progress: ComparisonProgress, event: Metrics) -> None:
        """Receive an event of a run: ``timing``, ``begin``, ``step``, ``validation``, ``measuring`` or ``done``."""

    def row(self, progress: ComparisonProgress, row: Metrics) -> None:
        """Receive a finished row."""

    def failure(self, layer: str, seed: int, reason: str) -> None:
        """Receive the reason why a run failed."""

    def end(self, results: Metrics) -> None:
        """Receive what `results.json` holds, after the last run."""

    def close(self) -> None:
        """Release what the reporter holds; whoever made the reporter calls this."""
