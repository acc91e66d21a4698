"""Run a plan: train its rows, one after another or several at a time, tell the progress, and keep what is finished."""

import shlex
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError, TrainingError
from ..core.json_object import JsonObject
from ..processes.child import Stopped
from ..processes.executors import WorkersLostError
from ..processes.signals import Interrupted, signals_deferred
from ..report.notebook_display import framed
from ..storage.atomic_files import to_json, write_whole
from ..storage.safe_files import read_json
from ..storage.written_folders import COMPARISON, outer, record, settle
from .assemble import assemble
from .comparison_progress import ComparisonProgress, ComparisonReporter, PresentTraining
from .learning_rate_trials import Trials, best_rate, trials_left
from .plan import MAX_BYTES, REPORT, Plan, is_counted, read_row
from .results import Results
from .worker import WorkerJob
from .workers import TrainingWorkers, run_jobs


@dataclass
class Comparison:
    """A finished comparison: its folder, with its runs and its report, and what its `results.json` holds."""

    folder: Path
    results: JsonObject

    @property
    def rows(self) -> list[JsonObject]:
        """The rows of the results, best first; those that failed last."""
        order = [row.layer for row in Results(self.results).ranked]
        return sorted(self.results["rows"], key=lambda row: order.index(row["layer"]))

    @property
    def failures(self) -> list[JsonObject]:
        """The trainings that failed, each with its ``layer``, ``seed`` and ``reason``."""
        return list(self.results["failures"])

    def __repr__(self) -> str:
        failed = ", ".join(dict.fromkeys(failure["layer"] for failure in self.failures))
        ranked = ", ".join(row["layer"] for row in self.rows if row["failed"] is None)
        return f"Comparison({str(self.folder)!r}, best first: {ranked}{f'; failed: {failed}' if failed else ''})"

    def _repr_html_(self) -> str:
        """Return the report in a frame, for notebooks."""
        return framed(self.folder / REPORT)


class Runner:
    """Runs a plan, completed by `fit_plan`, in a folder that this process has locked, or in the stage of one."""

    def __init__(self, folder: Path, plan: Plan, reporter: ComparisonReporter | None, workers: TrainingWorkers) -> None:
        self.folder, self.plan, self.workers = folder, plan, workers
        self.reporter = reporter or ComparisonReporter()
        self.progress = ComparisonProgress(plan)
        self.finished: dict[tuple[str, int], JsonObject] = {}  # rows by layer and seed
        self.failures: dict[tuple[str, int], Exception] = {}
        self._waiting: list[tuple[str, int]] = []  # rows that are not trained yet, in their order
        self._trials: dict[str, Trials] = {}  # by layer, where learning rates are left to try
        self._present: dict[str, PresentTraining] = {}  # by the name of the job

    def read_rows(self) -> bool:
        """Read the rows that an earlier process has finished, and return whether they are all.

        A row whose run was removed is trained again, because the report leads to the run.
        """
        for layer in self.plan.layers:
            for seed in self.plan.seeds:
                name = f"{layer}-{seed}"
                has_run = (self.folder / "runs" / name / "config.yaml").is_file()
                if has_run and (row := read_row(self.folder, name, self.plan)) is not None:
                    self._add(layer, seed, row)
        return self.progress.done == self.progress.count

    def run(self) -> Comparison:
        """Train what is not trained yet, and write the results; errors are those of `seriatim.compare`."""
        started, before = time.perf_counter(), 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            results = read_json(self.folder / "results.json", max_bytes=MAX_BYTES, remedy="remove it")
            before = float(results["seconds"])
        trials = ["trials"] if self.plan.tune else []
        record(self.folder, COMPARISON, "comparison.yaml", "runs", *trials, "rows", "results.json")
        write_whole(self.folder / "comparison.yaml", self.plan.to_yaml())
        self._plan_trainings()
        self.reporter.begin(self.plan, self.progress)
        with signals_deferred() as stop_signal:
            run_jobs(self.workers, stop_signal, next_job=self.next_job, on_event=self.on_event, on_end=self.on_end)
            number = stop_signal()
        if number is None and self.workers.executor.lost is not None:
            for layer, seed in self._waiting:
                self._fail(layer, seed, self.workers.executor.lost)
        seconds = before + time.perf_counter() - started
        if self.finished:
            self.folder = settle(self.folder)
        results = assemble(self.folder, self.plan, self.finished, self.failures, seconds)
        write_whole(self.folder / "results.json", to_json(results, indent=1) + "\n")
        if number is not None:
            text = f"interrupted; finished rows are kept in {outer(self.folder)}"
            raise Interrupted(text, number, go_on=self._resume_command())
        if not self.finished:
            (layer, _), error = next(iter(self.failures.items()))
            if isinstance(error, InputError):
                raise error
            go_on = f"; to go on: {self._resume_command()}" if isinstance(error, WorkersLostError) else ""
            raise TrainingError(f"{layer}: {error}{go_on}")
        self.reporter.end(results)
        return Comparison(self.folder, results)

    def _resume_command(self) -> str:
        command = ["seriatim", "compare", "--resume", str(outer(self.folder)), *self.workers.options]
        return shlex.join([*command, "--allow-code"] if self.plan.code else command)

    def _plan_trainings(self) -> None:
        """List what is to be trained, and share the workers among it."""
        rows = [(layer, seed) for seed in self.plan.seeds for layer in self.plan.layers]
        self._waiting = [row for row in rows if row not in self.finished]
        for layer in dict.fromkeys(layer for layer, _ in self._waiting):
            if not self.plan.tune or is_counted(layer):
                continue
            is_settled = any(name == layer for name, _ in self.finished)  # all seeds have the same learning rate
            left = trials_left(self.folder, self.plan, layer, repeat_failed=not is_settled)
            if left is not None:
                self._trials[layer] = left
        trials = sum(len(trials.waiting) for trials in self._trials.values())
        at_first = [layer for layer, _ in self._waiting if layer not in self._trials]
        most = max(len(self._waiting), trials + len(at_first))
        self.workers.set_parallelism(most)
        self.progress.workers = max(1, min(self.workers.executor.worker_count, most))

    def next_job(self, running: int) -> WorkerJob | None:
        """Return the first training in the order of the rows that can start; a row waits for its learning rate."""
        for layer, seed in list(self._waiting):
            trials = self._trials.get(layer)
            if trials is not None and not trials.ended:
                if trials.waiting:
                    number, share = trials.waiting.pop(0), 0.5 / trials.count
                    job = WorkerJob(str(self.folder), layer, trials.seed, share, trials.rate(number), number)
                    return self._start(job, running)
                continue
            self._waiting.remove((layer, seed))
            job = WorkerJob(str(self.folder), layer, seed)
            try:
                if trials is not None and trials.error is not None:
                    raise trials.error
                if self.plan.tune and not is_counted(layer):
                    job.share, job.learning_rate = 0.5, best_rate(self.folder, self.plan, layer)
            except (InputError, TrainingError) as error:
                self._fail(layer, seed, error)
                continue
            return self._start(job, running)
        return None

    def _start(self, job: WorkerJob, running: int) -> WorkerJob:
        """Complete a job, and report that it begins."""
        outside = self.plan.outside_layers(job.layer)
        job.registered = [record for record in self.plan.code if record["name"] in outside]
        job.search_path = [str(Path(folder or ".").resolve()) for folder in sys.path] if job.registered else []
        job.at_once = min(self.workers.executor.worker_count, running + 1 + len(self._waiting))
        self._present[job.name] = self.progress.start(job.layer, job.seed, job.trial)
        self.reporter.run(self.progress, self._present[job.name])
        return job

    def on_event(self, job: WorkerJob, event: JsonObject) -> None:
        """Pass on an event of a training."""
        if (training := self._present.get(job.name)) is not None:  # of a cluster, an event may come late
            training.hear(event)
            self.reporter.hear(self.progress, training, event)

    def on_end(self, job: WorkerJob, outcome: JsonObject | Exception) -> None:
        """Keep what a training gave, or record why it failed."""
        if not isinstance(outcome, Exception) and job.trial is None:
            outcome = self._read_row(job.name)
        self.progress.end(self._present.pop(job.name), succeeded=not isinstance(outcome, Exception))
        if isinstance(outcome, Stopped):
            return
        if job.trial is not None:
            self._end_trial(job.layer, job.trial, outcome)
        elif isinstance(outcome, Exception):
            self._fail(job.layer, job.seed, outcome)
        else:
            self._add(job.layer, job.seed, outcome)
            self.reporter.row(self.progress, outcome)

    def _read_row(self, name: str) -> JsonObject | Exception:
        """Return the row that a training has written, or the reason why it cannot be used."""
        try:
            row = read_row(self.folder, name, self.plan)
        except InputError as error:
            return error
        assert row is not None
        return row

    def _end_trial(self, layer: str, trial: int, outcome: JsonObject | Exception) -> None:
        trials = self._trials[layer]
        if isinstance(outcome, InputError | WorkersLostError):
            trials.error = outcome
        else:  # a learning rate with which the training fails counts as tried
            trials.add(self.folder, trial, outcome)

    def _fail(self, layer: str, seed: int, error: Exception) -> None:
        self.failures[layer, seed] = error
        self.progress.done += 1
        self.reporter.failure(layer, seed, str(error))

    def _add(self, layer: str, seed: int, row: JsonObject) -> None:
        self.finished[layer, seed] = row
        self.progress.add(layer, row["metrics"])
