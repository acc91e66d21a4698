"""Runs what a plan says, one training after another, and keeps what is finished."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core.errors import InputError, TrainingError
from ..core.interruption import Interrupted, noted
from ..evaluation.intervals import Metrics
from ..layers.origins import origin_of
from ..report.notebook_display import framed
from ..storage.atomic_files import remove, to_json, write_whole
from ..tasks import find
from ..tasks.counting import LAYER as COUNTED
from .folder import REPORT, read_row
from .metric import more_is_better
from .plan import Plan, own_layers
from .processes import Stopped, run_worker
from .progress import ComparisonReporter, Standing
from .ranking import Row, ranked
from .results import assemble
from .worker import Work

SPREAD = 3.0
"""How many times the next learning rate that is tried is the last."""
Signalled = Callable[[], int | None]
"""The number of a signal that came, or None."""


class Failure(NamedTuple):
    """A training that failed, and why in one line; ``refused`` where its input was bad."""

    layer: str
    seed: int
    reason: str
    refused: bool


@dataclass
class Comparison:
    """What came of a comparison.

    Attributes:
        folder: where it lies, runs and report included.
        results: what `results.json` holds.
    """

    folder: Path
    results: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        """One a layer, best first; those that failed last."""
        return ranked(self.results)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The trainings that failed, each with its ``layer``, ``seed`` and ``reason``."""
        return list(self.results["failures"])

    def _repr_html_(self) -> str:
        """The report in a frame of its own, for notebooks."""
        return framed(self.folder / REPORT)


class Conduct:
    """Runs what a plan says, one training after another.

    Args:
        folder: of the comparison, held by this process.
        plan: settled.
        reporter: who listens.
    """

    def __init__(self, folder: Path, plan: Plan, reporter: ComparisonReporter | None) -> None:
        self.folder, self.plan = folder, plan
        self.reporter = reporter or ComparisonReporter()
        self.rows: dict[tuple[str, int], Metrics] = {}
        self.failures: list[Failure] = []
        self.tried: dict[str, list[Metrics]] = {}
        self.standing = Standing(plan)
        self.origins = [origin_of(name) for name in own_layers(plan.layers, plan.base)]

    def read_rows(self) -> None:
        """Takes over the rows that an earlier process has finished.

        Raises:
            InputError: a row is damaged, or of other data than the plan's.
        """
        for layer in self.plan.layers:
            for seed in self.plan.seeds:
                if (row := read_row(self.folder, f"{layer}-{seed}", self.plan)) is not None:
                    self.keep(layer, seed, row)
                    self.standing.keep()

    @property
    def finished(self) -> bool:
        """Whether every row is there."""
        return len(self.rows) == self.standing.count

    def run(self) -> Comparison:
        """Trains what is not trained yet, and writes the results."""
        started = time.perf_counter()
        before = self._seconds_before()
        write_whole(self.folder / "comparison.yaml", self.plan.to_yaml())
        self.reporter.begin(self.plan, self.standing)
        with noted() as signal:
            try:
                for seed in self.plan.seeds:
                    for layer in self.plan.layers:
                        if (layer, seed) not in self.rows:
                            self.one(layer, seed, signal)
            except Stopped:
                pass
            number = signal()
        self._write(before + time.perf_counter() - started)
        if number is not None:
            raise Interrupted(
                f"interrupted; finished rows are kept in {self.folder}",
                number,
                go_on=shlex.join(["seriatim", "compare", "--resume", str(self.folder)]),
            )
        return self._finish()

    def one(self, layer: str, seed: int, signal: Signalled) -> None:
        """One layer with one seed: its trials, its training, its row; or why there is none."""
        self.standing.start(layer, seed)
        self.reporter.run(self.standing)
        try:
            share, rate = 1.0, None
            if self.plan.tune and layer != COUNTED:
                share, rate = 0.5, self.tuned(layer, signal)
            self.work(Work(str(self.folder), layer, seed, share, rate, full=seed == self.plan.seeds[0]), signal)
            row = read_row(self.folder, f"{layer}-{seed}", self.plan)
            assert row is not None
            self.keep(layer, seed, row)
        except (InputError, TrainingError) as error:
            self.failures.append(Failure(layer, seed, str(error), isinstance(error, InputError)))
            self.standing.fail()
            self.reporter.failure(layer, seed, str(error))
            return
        self.standing.finish()
        self.reporter.row(self.standing, row)

    def tuned(self, layer: str, signal: Signalled) -> float:
        """The best of the learning rates that are tried, once for all seeds."""
        count, base = int(self.plan.tune or 1), self.plan.sized[layer].learning_rate
        kept = self.folder / "trials" / f"{layer}.json"
        if kept.exists():
            self.tried[layer] = json.loads(kept.read_text(encoding="utf-8"))
        else:
            found = []
            for i in range(count):
                rate = (base or 1.0) * SPREAD ** (i - (count - 1) / 2)
                job = Work(str(self.folder), layer, self.plan.seeds[0], 0.5 / count, rate, trial=i + 1)
                self.standing.trial = i + 1
                try:
                    value = self.work(job, signal)["value"]
                except TrainingError:  # a rate at which it does not train is tried, and no more
                    value = None
                found.append({"learning_rate": rate, "value": value})
            self.standing.trial = None
            kept.parent.mkdir(exist_ok=True)
            write_whole(kept, to_json(found))
            for path in kept.parent.glob(f"{layer}-{self.plan.seeds[0]}-*"):
                remove(path)
            self.tried[layer] = found
        sign = -1 if find(self.plan.config(layer, self.plan.seeds[0])).more_is_better else 1
        good = [one for one in self.tried[layer] if one["value"] is not None]
        if not good:
            raise TrainingError("the training failed with every learning rate that was tried")
        return float(min(good, key=lambda one: sign * one["value"])["learning_rate"])

    def work(self, job: Work, signal: Signalled) -> dict[str, Any]:
        """A piece of work in a process of its own."""

        def listen(event: dict[str, Any]) -> None:
            self.standing.hear(event)
            self.reporter.hear(self.standing, event)

        used = [origin for origin in self.origins if origin.name in own_layers([job.layer], self.plan.base)]
        job = replace(job, threads=torch.get_num_threads(), registered=used, search_path=_search_path() if used else ())
        return run_worker(job, listen, signal)

    def keep(self, layer: str, seed: int, row: Metrics) -> None:
        """Adds a finished row."""
        self.rows[layer, seed] = row
        kept = self.folder / "trials" / f"{layer}.json"
        if kept.exists():
            self.tried[layer] = json.loads(kept.read_text(encoding="utf-8"))
        value = row["metrics"].get(self.plan.metric)
        if value is not None:
            self.standing.best_of(layer, value, more_is_better(self.plan.metric))

    def _seconds_before(self) -> float:
        try:
            return float(json.loads((self.folder / "results.json").read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def _write(self, seconds: float) -> None:
        """`results.json`."""
        self.results = assemble(
            self.folder,
            self.plan,
            rows=self.rows,
            failures=[failure._asdict() for failure in self.failures],
            tried=self.tried,
            described=self.plan.described,
            seconds=seconds,
        )
        write_whole(self.folder / "results.json", to_json(self.results, indent=1) + "\n")

    def _finish(self) -> Comparison:
        """Says that all is done.

        Raises:
            InputError, TrainingError: no layer could be trained.
        """
        if not self.rows:
            layer, _, reason, refused = self.failures[0]
            raise InputError(reason) if refused else TrainingError(f"{layer}: {reason}")
        found = Comparison(self.folder, self.results)
        self.reporter.end(found.results)
        return found


def _search_path() -> list[str]:
    """The folders in which this process looks for modules."""
    return [str(Path(folder or ".").resolve()) for folder in sys.path]
