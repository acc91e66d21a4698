"""The progress of a comparison: what is being trained, how long it will take, which layer is the best so far."""

import time
from collections.abc import Mapping

from ..core.json_object import JsonObject
from .metric import choose_metric
from .plan import Plan, is_counted

OVERHEAD = 15.0  # estimated seconds that a row takes beside its training, until a row has been finished
KNOWN_SHARE = 0.05  # the share of a run after which its remaining time is known


class PresentTraining:
    """A training that is running.

    Attributes:
        number: of its row, from 1, in the order in which the rows were begun.
        trial: the number of a learning rate that is tried, None for the training of a row.
        share: how much of it is done, 0 to 1.
        event: what it told last; empty before it told anything.
        left: its seconds that are left, None while they are not known.
    """

    def __init__(self, number: int, layer: str, seed: int, trial: int | None) -> None:
        self.number, self.layer, self.seed, self.trial = number, layer, seed, trial
        self.share, self.event = 0.0, JsonObject()
        self.left: float | None = None
        self.began = time.monotonic()

    def hear(self, event: JsonObject) -> None:
        """Take note of an event."""
        self.event = event
        if event["event"] == "step":
            self.share = float(event["progress"])
            self.left = event["seconds_left"] if self.share > KNOWN_SHARE else None


class ComparisonProgress:
    """Which trainings are running, how long the comparison will take, and which layer is the best so far.

    Attributes:
        count: the number of rows, one for each layer and seed.
        done: the number of rows that are finished or have failed.
        present: the trainings that are running; several if there are several workers.
        workers: how many run at the same time; there may be more workers, with nothing to do.
        best: the best layer so far and its metric.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.metric = plan, choose_metric(plan.task(), plan.metric or None)
        self.count = len(plan.layers) * len(plan.seeds)
        self.done, self.workers = 0, 1
        self.present: list[PresentTraining] = []
        self.best: tuple[str, float] | None = None
        self._numbers: dict[tuple[str, int], int] = {}
        self._spent: dict[tuple[str, int], float] = {}  # seconds of the finished trainings of a row
        self._durations: list[float] = []  # seconds of finished rows, with their trials

    def name(self, layer: str, seed: int) -> str:
        """Return the layer, and the seed where there are several."""
        return layer if len(self.plan.seeds) == 1 else f"{layer}, seed {seed}"

    @property
    def share(self) -> float:
        """The mean share of the present trainings that is done."""
        return sum(training.share for training in self.present) / max(1, len(self.present))

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the whole comparison; None while the speed is not known."""
        run = self._seconds_of_a_row()
        if run is None:
            return None
        present = {(training.layer, training.seed) for training in self.present}
        left = [max(run - self._spent_on(*row), *self._known_left(*row), 0.0) for row in present]
        waiting = max(0, self.count - self.done - len(present))
        workers = max(1, min(self.workers, len(present) + waiting))
        return max([*left, (sum(left) + run * waiting) / workers])

    def _spent_on(self, layer: str, seed: int) -> float:
        """Return the seconds of all trainings of a row, the present ones included."""
        present = (training for training in self.present if (training.layer, training.seed) == (layer, seed))
        return self._spent.get((layer, seed), 0.0) + sum(time.monotonic() - each.began for each in present)

    def _known_left(self, layer: str, seed: int) -> list[float]:
        present = (training for training in self.present if (training.layer, training.seed) == (layer, seed))
        return [training.left for training in present if training.left is not None]

    def _seconds_of_a_row(self) -> float | None:
        if self._durations:
            return sum(self._durations) / len(self._durations)
        if self.plan.budget.minutes is not None:
            return 60 * self.plan.budget.minutes + OVERHEAD
        rows = [training for training in self.present if training.trial is None]
        known = [self._spent_on(each.layer, each.seed) + each.left + OVERHEAD for each in rows if each.left is not None]
        return max(known, default=None)

    def start(self, layer: str, seed: int, trial: int | None) -> PresentTraining:
        """Begin a training."""
        number = self._numbers.setdefault((layer, seed), self._next_number())
        training = PresentTraining(number, layer, seed, trial)
        self.present.append(training)
        return training

    def _next_number(self) -> int:
        return max(self.done, *self._numbers.values(), 0) + 1

    def end(self, training: PresentTraining, *, succeeded: bool) -> None:
        """End a training. The time that counting takes says nothing about other rows."""
        row = training.layer, training.seed
        self.present.remove(training)
        self._spent[row] = self._spent.get(row, 0.0) + time.monotonic() - training.began
        if succeeded and training.trial is None and not is_counted(training.layer):
            self._durations.append(self._spent[row])

    def add(self, layer: str, metrics: Mapping[str, float | None]) -> None:
        """Count a finished row, and compare its metric with the best so far."""
        self.done += 1
        value = metrics.get(self.metric.key)
        if value is not None and (self.best is None or self.metric.best([self.best[1], value]) != self.best[1]):
            self.best = (layer, value)


class ComparisonReporter:
    """Listens to a comparison. The library never prints; a program passes a subclass of this class.

    All methods are called by the thread that compares.
    """

    def begin(self, plan: Plan, progress: ComparisonProgress) -> None:
        """Receive the plan before the first training."""

    def run(self, progress: ComparisonProgress, training: PresentTraining) -> None:
        """Hear that a training begins."""

    def hear(self, progress: ComparisonProgress, training: PresentTraining, event: JsonObject) -> None:
        """Receive an event of a training: ``timing``, ``begin``, ``step``, ``validation`` or ``measuring``."""

    def row(self, progress: ComparisonProgress, row: JsonObject) -> None:
        """Receive a finished row, with its ``layer`` and ``seed``."""

    def failure(self, layer: str, seed: int, reason: str) -> None:
        """Receive the reason why a run failed."""

    def end(self, results: JsonObject) -> None:
        """Receive what `results.json` holds, after the last run."""

    def close(self) -> None:
        """Release what the reporter holds; whoever made the reporter calls this."""
