"""The learning rates that ``--tune`` tries for a layer, once for all of its seeds."""

from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from ..core.errors import TrainingError
from ..evaluation.intervals import Metrics
from ..storage.atomic_files import remove, to_json, write_whole
from .plan import Plan, read_trials

RATE_FACTOR = 3.0  # the factor between two learning rates that are tried


@dataclass
class Trials:
    """The trials of one layer, numbered from 1: which have been started, and what those that ended gave.

    Attributes:
        seed: of the trainings, the first one.
        results: what `read_trials` returns, by number; a value of None stands for a training that failed.
        error: the reason why no trial of this layer can be made, such as a budget that is too small.
    """

    plan: Plan
    layer: str
    count: int
    started: int = 0
    results: dict[int, Metrics] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def seed(self) -> int:
        """The seed of all trials."""
        return self.plan.seeds[0]

    @property
    def ended(self) -> bool:
        """Whether nothing is left to try."""
        return self.error is not None or len(self.results) == self.count

    def rate(self, trial: int) -> float:
        """Return the learning rate of a trial: those of all trials lie around the planned one."""
        planned = self.plan.sized[self.layer].learning_rate or 1.0
        return float(planned * RATE_FACTOR ** (trial - (self.count + 1) / 2))

    def add(self, folder: Path, trial: int, outcome: Metrics) -> None:
        """Take the outcome of a trial; after the last one write the file of the trials, and remove their runs."""
        recorded = {name: value for name, value in outcome.items() if name != "event"}
        self.results[trial] = {"learning_rate": self.rate(trial), "value": None, **recorded}
        if len(self.results) < self.count:
            return
        path = folder / "trials" / f"{self.layer}.json"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, to_json([self.results[number] for number in sorted(self.results)]))
        for run in path.parent.glob(f"{self.layer}-{self.seed}-*"):
            remove(run)


def has_trials(folder: Path, layer: str) -> bool:
    """Return whether all trials of a layer are finished."""
    return (folder / "trials" / f"{layer}.json").exists()


def best_rate(folder: Path, plan: Plan, layer: str) -> float:
    """Return the best of the learning rates that were tried; a TrainingError says that none succeeded."""
    succeeded = [trial for trial in read_trials(folder, layer) if trial["value"] is not None]
    if not succeeded:
        raise TrainingError("the training failed with every learning rate that was tried")
    best = max if plan.task(layer).more_is_better else min
    return float(best(succeeded, key=itemgetter("value"))["learning_rate"])
