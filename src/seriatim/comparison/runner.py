"""Run a plan: train one layer after another in processes of their own, and keep what is finished."""

import json
import shlex
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InputError, TrainingError
from ..core.interruption import Interrupted, noted
from ..evaluation.intervals import Metrics
from ..report.notebook_display import framed
from ..runs.child_process import Listen, Signalled, Stopped, run_module
from ..storage.atomic_files import remove, to_json, write_whole
from .assemble import Failure, Finished, assemble
from .comparison_progress import ComparisonProgress, ComparisonReporter
from .comparison_settings import registered_layers
from .folder import REPORT, read_row
from .plan import Plan, is_counted
from .results import ranked
from .worker import WorkerJob

RATE_FACTOR = 3.0
"""The factor between two learning rates that are tried."""


@dataclass
class Comparison:
    """A finished comparison.

    Attributes:
        folder: of the comparison, with its runs and its report.
        results: what `results.json` holds.
    """

    folder: Path
    results: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the results, best first; those that failed last."""
        return ranked(self.results)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The trainings that failed, each with its ``layer``, ``seed`` and ``reason``."""
        return list(self.results["failures"])

    def __repr__(self) -> str:
        """Return the folder and the layers, best first."""
        return f"Comparison({str(self.folder)!r}, best first: {', '.join(row['layer'] for row in self.rows)})"

    def _repr_html_(self) -> str:
        """Return the report in a frame, for notebooks."""
        return framed(self.folder / REPORT)


def run_worker(job: WorkerJob, listen: Listen, signalled: Signalled) -> Metrics:
    """Do a job in a process of its own; see `run_module`."""
    return run_module("seriatim.comparison.worker", asdict(job), listen, signalled)


class Runner:
    """Runs a plan.

    Args:
        folder: of the comparison, locked by this process.
        plan: what to compare, completed by `fit_plan`.
        reporter: listens to the comparison.
    """

    def __init__(self, folder: Path, plan: Plan, reporter: ComparisonReporter | None) -> None:
        self.folder, self.plan = folder, plan
        self.reporter = reporter or ComparisonReporter()
        self.finished = Finished()
        self.progress = ComparisonProgress(plan)
        self.origins = plan.origins()

    def read_rows(self) -> bool:
        """Read the rows that an earlier process has finished, and return whether they are all.

        Raises:
            InputError: a row is damaged, or of other data than the plan's.
        """
        for layer in self.plan.layers:
            for seed in self.plan.seeds:
                if (row := read_row(self.folder, f"{layer}-{seed}", self.plan)) is not None:
                    self._add(layer, seed, row)
                    self.progress.done += 1
        return len(self.finished.rows) == self.progress.count

    def run(self) -> Comparison:
        """Train what is not trained yet, and write the results.

        Raises:
            Interrupted: a signal came; what is finished is kept.
            InputError, TrainingError: no layer could be trained.
        """
        started, before = time.perf_counter(), self._seconds_before()
        write_whole(self.folder / "comparison.yaml", self.plan.to_yaml())
        self.reporter.begin(self.plan, self.progress)
        with noted() as signalled:
            try:
                for seed in self.plan.seeds:
                    for layer in self.plan.layers:
                        if (layer, seed) not in self.finished.rows:
                            self._run(layer, seed, signalled)
            except Stopped:
                pass
            number = signalled()
        self.finished.seconds = before + time.perf_counter() - started
        results = assemble(self.folder, self.plan, self.finished)
        write_whole(self.folder / "results.json", to_json(results, indent=1) + "\n")
        if number is not None:
            raise Interrupted(
                f"interrupted; finished rows are kept in {self.folder}",
                number,
                go_on=shlex.join(
                    ["seriatim", "compare", "--resume", str(self.folder), *(["--allow-code"] if self.plan.code else [])]
                ),
            )
        if not self.finished.rows:
            failure = self.finished.failures[0]
            raise InputError(failure.reason) if failure.refused else TrainingError(f"{failure.layer}: {failure.reason}")
        self.reporter.end(results)
        return Comparison(self.folder, results)

    def _run(self, layer: str, seed: int, signalled: Signalled) -> None:
        """Try learning rates, train and measure one layer with one seed, or record why it failed."""
        self.progress.start(layer, seed)
        self.reporter.run(self.progress)
        try:
            job = WorkerJob(str(self.folder), layer, seed, full=seed == self.plan.seeds[0])
            if self.plan.tune and not is_counted(layer):
                job = replace(job, share=0.5, learning_rate=self._best_rate(layer, signalled))
            self._work(job, signalled)
            row = read_row(self.folder, job.name, self.plan)
            assert row is not None
        except (InputError, TrainingError) as error:
            self.finished.failures.append(Failure(layer, seed, str(error), isinstance(error, InputError)))
            self.progress.done += 1
            self.reporter.failure(layer, seed, str(error))
            return
        self._add(layer, seed, row)
        self.progress.finish()
        self.reporter.row(self.progress, row)

    def _best_rate(self, layer: str, signalled: Signalled) -> float:
        """Return the best of the learning rates that are tried, once for all seeds."""
        path = self._trials_file(layer)
        if not path.exists():
            trials = self._try_rates(layer, signalled)
            path.parent.mkdir(exist_ok=True)
            write_whole(path, to_json(trials))
            for folder in path.parent.glob(f"{layer}-{self.plan.seeds[0]}-*"):
                remove(folder)
        self._read_trials(layer)
        sign = -1 if self.plan.task(layer).more_is_better else 1
        succeeded = [trial for trial in self.finished.trials[layer] if trial["value"] is not None]
        if not succeeded:
            raise TrainingError("the training failed with every learning rate that was tried")
        return float(min(succeeded, key=lambda trial: sign * trial["value"])["learning_rate"])

    def _try_rates(self, layer: str, signalled: Signalled) -> list[Metrics]:
        count, rate = self.plan.tune or 1, self.plan.sized[layer].learning_rate or 1.0
        trials = []
        for i in range(count):
            tried = rate * RATE_FACTOR ** (i - (count - 1) / 2)
            job = WorkerJob(str(self.folder), layer, self.plan.seeds[0], 0.5 / count, tried, trial=i + 1)
            self.progress.trial = i + 1
            try:
                value = self._work(job, signalled)["value"]
            except TrainingError:  # a learning rate with which the training fails counts as tried
                value = None
            trials.append({"learning_rate": tried, "value": value})
        self.progress.trial = None
        return trials

    def _work(self, job: WorkerJob, signalled: Signalled) -> Metrics:
        """Do a job in a process of its own."""

        def listen(event: Metrics) -> None:
            self.progress.hear(event)
            self.reporter.hear(self.progress, event)

        names = registered_layers([job.layer], self.plan.base)
        origins = [origin for origin in self.origins if origin.name in names]
        search_path = [str(Path(folder or ".").resolve()) for folder in sys.path] if origins else []
        job = replace(job, threads=torch.get_num_threads(), registered=origins, search_path=search_path)
        return run_worker(job, listen, signalled)

    def _add(self, layer: str, seed: int, row: Metrics) -> None:
        self.finished.rows[layer, seed] = row
        self._read_trials(layer)
        self.progress.update_best(layer, row["metrics"])

    def _trials_file(self, layer: str) -> Path:
        return self.folder / "trials" / f"{layer}.json"

    def _read_trials(self, layer: str) -> None:
        if (path := self._trials_file(layer)).exists():
            self.finished.trials[layer] = json.loads(path.read_text(encoding="utf-8"))

    def _seconds_before(self) -> float:
        """Return the seconds that the comparison took before it was resumed."""
        try:
            return float(json.loads((self.folder / "results.json").read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0
