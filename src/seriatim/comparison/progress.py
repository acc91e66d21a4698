"""How far a comparison has come, for whoever listens."""

import time
from collections.abc import Mapping
from typing import Any

from ..tasks.counting import LAYER as COUNTED
from .plan import Plan

OVERHEAD = 15.0
"""Seconds that a row takes beside its training, as long as none is known."""

KNOWN = 0.05
"""The share of a run from which on its speed is known."""


class Standing:
    """Which run it is, how long is left, what is best.

    Attributes:
        number, count: the run under way, from 1, and how many there are.
        layer, seed, trial: what is being trained; ``trial`` None for the training itself.
        share, left: of the run under way, 0 to 1; seconds of training that are left of it.
        best: the layer that is best so far and its figure; None before the first.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.count = len(plan.layers) * len(plan.seeds)
        self.number, self.share = 0, 0.0
        self.left: float | None = None
        self.layer, self.seed, self.trial = "", 0, None  # type: str, int, int | None
        self.best: tuple[str, float] | None = None
        self.durations: list[float] = []
        self.done = 0
        self.began = 0.0

    def keep(self) -> None:
        """A run was finished before."""
        self.done += 1

    def start(self, layer: str, seed: int) -> None:
        """A run begins."""
        self.layer, self.seed, self.trial = layer, seed, None
        self.number = self.done + 1
        self.share, self.left, self.began = 0.0, None, time.monotonic()

    def finish(self) -> None:
        """It has ended well; how long counting takes says nothing of the others."""
        if self.layer != COUNTED:
            self.durations.append(time.monotonic() - self.began)
        self.done += 1

    def fail(self) -> None:
        """It has not."""
        self.done += 1

    def best_of(self, layer: str, value: float, more_is_better: bool) -> None:
        """Takes note of a figure."""
        if self.best is None or ((value > self.best[1]) == more_is_better and value != self.best[1]):
            self.best = (layer, value)

    def hear(self, event: Mapping[str, Any]) -> None:
        """Takes note of what a process tells."""
        if event["event"] == "step":
            self.share = float(event["progress"])
            self.left = event["seconds_left"] if self.share > KNOWN else None

    @property
    def seconds_left(self) -> float | None:
        """Of all that is to do; None as long as nothing is known."""
        one = self._one()
        if one is None:
            return None
        here = max(0.0, one - (time.monotonic() - self.began))
        return here + one * max(0, self.count - self.number)

    def _one(self) -> float | None:
        """What a run takes."""
        if self.durations:
            return sum(self.durations) / len(self.durations)
        if self.plan.budget.minutes is not None:
            return 60 * self.plan.budget.minutes + OVERHEAD
        if self.left is None or self.trial is not None:
            return None
        return time.monotonic() - self.began + self.left + OVERHEAD


class ComparisonReporter:
    """Listens to a comparison. The library never prints; a program passes one of its own."""

    def begin(self, plan: Plan, standing: Standing) -> None:
        """Before the first run: what is compared."""

    def run(self, standing: Standing) -> None:
        """A run begins."""

    def hear(self, standing: Standing, event: Mapping[str, Any]) -> None:
        """What the process of a run tells: ``timing``, ``begin``, ``step``, ``validation``, ``measuring``, ``done``."""

    def row(self, standing: Standing, row: Mapping[str, Any]) -> None:
        """A row is finished."""

    def failure(self, layer: str, seed: int, reason: str) -> None:
        """A layer could not be trained."""

    def end(self, results: Mapping[str, Any]) -> None:
        """All is done: what `results.json` holds."""

    def close(self) -> None:
        """When the comparison has ended, well or not."""
