"""The learning rates that ``--tune`` tries for a layer, once for all of its seeds."""

from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from ..core.errors import TrainingError
from ..core.json_object import JsonObject
from ..storage.atomic_files import to_json, write_whole
from ..storage.written_folders import RUN, discard
from .plan import Plan, read_trials

RATE_FACTOR = 3.0  # the factor between two learning rates that are tried


@dataclass
class Trials:
    """The trials of one layer, numbered from 1: which are left to start, and what those that ended gave.

    Attributes:
        results: what `read_trials` returns, by number; a failed training has the value None and a ``reason``.
        waiting: the numbers of the trials that have not been started.
        error: the reason why no trial of this layer can be made, such as a budget that is too small.
    """

    plan: Plan
    layer: str
    count: int
    results: dict[int, JsonObject] = field(default_factory=dict)
    waiting: list[int] = field(init=False)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.waiting = [number for number in range(1, self.count + 1) if number not in self.results]

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

    def add(self, folder: Path, trial: int, outcome: JsonObject | Exception) -> None:
        """Take the outcome of a trial; after the last one write the file of the trials, and remove their runs."""
        if isinstance(outcome, Exception):
            outcome = {"reason": str(outcome)}
        recorded = {name: value for name, value in outcome.items() if name != "event"}
        self.results[trial] = {"learning_rate": self.rate(trial), "value": None, **recorded}
        if len(self.results) < self.count:
            return
        path = folder / "trials" / f"{self.layer}.json"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, to_json([self.results[number] for number in sorted(self.results)]))
        for run in path.parent.glob(f"{self.layer}-{self.seed}-*"):
            discard(run, RUN)


def trials_left(folder: Path, plan: Plan, layer: str, *, repeat_failed: bool) -> Trials | None:
    """Return the trials of a layer that an earlier process has not made, or None if there are none.

    Failed trials are made again if ``repeat_failed``: the reason may have been the machine, and not the learning rate.
    """
    assert plan.tune is not None
    tried = read_trials(folder, layer)
    if len(tried) != plan.tune:
        tried = []
    kept = {number: trial for number, trial in enumerate(tried, 1) if trial["value"] is not None or not repeat_failed}
    return None if len(kept) == plan.tune else Trials(plan, layer, plan.tune, kept)


def best_rate(folder: Path, plan: Plan, layer: str) -> float:
    """Return the best of the learning rates that were tried; a TrainingError says why none succeeded."""
    tried = read_trials(folder, layer)
    succeeded = [trial for trial in tried if trial["value"] is not None]
    if not succeeded:
        reasons = [trial["reason"] for trial in tried if trial.get("reason")]
        last = f"; the last reason: {reasons[-1]}" if reasons else ""
        raise TrainingError(f"the training failed with every learning rate that was tried{last}")
    best = max if any(trial["more_is_better"] for trial in succeeded) else min
    return float(best(succeeded, key=itemgetter("value"))["learning_rate"])
