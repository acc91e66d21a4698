"""Run a plan: train one layer after another in processes of their own, tell the progress, and keep what is finished."""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

import torch

from ..core.errors import InputError, TrainingError
from ..core.interruption import Interrupted, noted
from ..evaluation.intervals import Metrics
from ..report.notebook_display import framed
from ..runs.child_process import Listen, Signalled, Stopped, run_module
from ..storage.atomic_files import remove, to_json, write_whole
from .assemble import assemble
from .metric import choose_metric
from .plan import REPORT, Plan, is_counted, read_row, read_trials
from .results import Results
from .worker import WorkerJob

RATE_FACTOR = 3.0  # the factor between two learning rates that are tried
OVERHEAD = 15.0  # estimated seconds that a row takes beside its training, until a row has been finished
KNOWN_SHARE = 0.05  # the share of a run after which its remaining time is known


class ComparisonProgress:
    """Which run is being trained, how long the comparison will take, and which layer is the best so far.

    Runs are numbered from 1. The ``layer``, ``seed`` and ``trial`` are those of the present run, of which the ``share``
    from 0 to 1 is done.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.metric = plan, choose_metric(plan.task(), plan.metric or None)
        self.count = len(plan.layers) * len(plan.seeds)
        self.number, self.done, self.share = 0, 0, 0.0
        self.layer, self.seed = "", 0
        self.trial: int | None = None  # the number of a learning rate that is tried
        self.best: tuple[str, float] | None = None  # the best layer so far and its metric
        self._left: float | None = None  # seconds of training of this run
        self._durations: list[float] = []
        self._began = 0.0

    @property
    def name(self) -> str:
        """The layer, and the seed where there are several."""
        return self.layer if len(self.plan.seeds) == 1 else f"{self.layer}, seed {self.seed}"

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the whole comparison; None while the speed is not known."""
        spent = time.monotonic() - self._began
        if self._durations:
            run = sum(self._durations) / len(self._durations)
        elif self.plan.budget.minutes is not None:
            run = 60 * self.plan.budget.minutes + OVERHEAD
        elif self._left is None or self.trial is not None:
            return None
        else:
            run = spent + self._left + OVERHEAD
        return max(self._left or 0.0, run - spent) + run * max(0, self.count - self.number)

    def start(self, layer: str, seed: int) -> None:
        """Begin a run."""
        self.layer, self.seed, self.trial = layer, seed, None
        self.number = self.done + 1
        self.share, self._left, self._began = 0.0, None, time.monotonic()

    def hear(self, event: Metrics) -> None:
        """Take note of an event of a worker."""
        if event["event"] == "step":
            self.share = float(event["progress"])
            self._left = event["seconds_left"] if self.share > KNOWN_SHARE else None

    def finish(self) -> None:
        """End a run that succeeded. The time that counting takes says nothing about other layers."""
        if not is_counted(self.layer):
            self._durations.append(time.monotonic() - self._began)

    def add(self, layer: str, metrics: Mapping[str, float | None]) -> None:
        """Count a finished row, and compare its metric with the best so far."""
        self.done += 1
        value = metrics.get(self.metric.key)
        if value is not None and (self.best is None or self.metric.best([self.best[1], value]) != self.best[1]):
            self.best = (layer, value)


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


@dataclass
class Comparison:
    """A finished comparison: its folder, with its runs and its report, and what its `results.json` holds."""

    folder: Path
    results: Metrics

    @property
    def rows(self) -> list[Metrics]:
        """The rows of the results, best first; those that failed last."""
        order = [row.layer for row in Results(self.results).ranked]
        return sorted(self.results["rows"], key=lambda row: order.index(row["layer"]))

    @property
    def failures(self) -> list[Metrics]:
        """The trainings that failed, each with its ``layer``, ``seed`` and ``reason``."""
        return list(self.results["failures"])

    def __repr__(self) -> str:
        failed = ", ".join(dict.fromkeys(failure["layer"] for failure in self.failures))
        ranked = ", ".join(row["layer"] for row in self.rows if row["failed"] is None)
        return f"Comparison({str(self.folder)!r}, best first: {ranked}{f'; failed: {failed}' if failed else ''})"

    def _repr_html_(self) -> str:
        """Return the report in a frame, for notebooks."""
        return framed(self.folder / REPORT)


def run_worker(job: WorkerJob, listen: Listen, signalled: Signalled) -> Metrics:
    """Do a job in a process of its own; see `run_module`."""
    return run_module("seriatim.comparison.worker", asdict(job), listen, signalled)


class Runner:
    """Runs a plan, completed by `fit_plan`, in a folder that this process has locked."""

    def __init__(self, folder: Path, plan: Plan, reporter: ComparisonReporter | None) -> None:
        self.folder, self.plan = folder, plan
        self.reporter = reporter or ComparisonReporter()
        self.progress = ComparisonProgress(plan)
        self.finished: dict[tuple[str, int], Metrics] = {}  # rows by layer and seed
        self.failures: dict[tuple[str, int], Exception] = {}

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
            before = float(json.loads((self.folder / "results.json").read_text(encoding="utf-8"))["seconds"])
        write_whole(self.folder / "comparison.yaml", self.plan.to_yaml())
        self.reporter.begin(self.plan, self.progress)
        with noted() as signalled:
            try:
                for seed in self.plan.seeds:
                    for layer in self.plan.layers:
                        if (layer, seed) not in self.finished:
                            self._run(layer, seed, signalled)
            except Stopped:
                pass
            number = signalled()
        seconds = before + time.perf_counter() - started
        results = assemble(self.folder, self.plan, self.finished, self.failures, seconds)
        write_whole(self.folder / "results.json", to_json(results, indent=1) + "\n")
        if number is not None:
            command = ["seriatim", "compare", "--resume", str(self.folder)]
            go_on = shlex.join([*command, "--allow-code"] if self.plan.code else command)
            raise Interrupted(f"interrupted; finished rows are kept in {self.folder}", number, go_on=go_on)
        if not self.finished:
            (layer, _), error = next(iter(self.failures.items()))
            raise error if isinstance(error, InputError) else TrainingError(f"{layer}: {error}")
        self.reporter.end(results)
        return Comparison(self.folder, results)

    def _run(self, layer: str, seed: int, signalled: Signalled) -> None:
        """Try learning rates, train and measure one layer with one seed, or record why it failed."""
        self.progress.start(layer, seed)
        self.reporter.run(self.progress)
        job = WorkerJob(str(self.folder), layer, seed)
        try:
            if self.plan.tune and not is_counted(layer):
                job.share, job.learning_rate = 0.5, self._best_rate(layer, signalled)
            self._work(job, signalled)
            row = read_row(self.folder, job.name, self.plan)
            assert row is not None
        except (InputError, TrainingError) as error:
            self.failures[layer, seed] = error
            self.progress.done += 1
            self.reporter.failure(layer, seed, str(error))
            return
        self.progress.finish()
        self._add(layer, seed, row)
        self.reporter.row(self.progress, row)

    def _add(self, layer: str, seed: int, row: Metrics) -> None:
        self.finished[layer, seed] = row
        self.progress.add(layer, row["metrics"])

    def _best_rate(self, layer: str, signalled: Signalled) -> float:
        """Return the best of the learning rates that are tried, once for all seeds."""
        path = self.folder / "trials" / f"{layer}.json"
        if not path.exists():
            trials = [self._try_rate(layer, trial, signalled) for trial in range(1, (self.plan.tune or 0) + 1)]
            self.progress.trial = None
            path.parent.mkdir(exist_ok=True)
            write_whole(path, to_json(trials))
            for folder in path.parent.glob(f"{layer}-{self.plan.seeds[0]}-*"):
                remove(folder)
        succeeded = [trial for trial in read_trials(self.folder, layer) if trial["value"] is not None]
        if not succeeded:
            raise TrainingError("the training failed with every learning rate that was tried")
        best = max if self.plan.task(layer).more_is_better else min
        return float(best(succeeded, key=itemgetter("value"))["learning_rate"])

    def _try_rate(self, layer: str, trial: int, signalled: Signalled) -> Metrics:
        count, rate = self.plan.tune or 1, self.plan.sized[layer].learning_rate or 1.0
        rate *= RATE_FACTOR ** (trial - (count + 1) / 2)
        self.progress.trial = trial
        try:
            job = WorkerJob(str(self.folder), layer, self.plan.seeds[0], 0.5 / count, rate, trial)
            return {"learning_rate": rate, "value": self._work(job, signalled)["value"]}
        except TrainingError:  # a learning rate with which the training fails counts as tried
            return {"learning_rate": rate, "value": None}

    def _work(self, job: WorkerJob, signalled: Signalled) -> Metrics:
        """Do a job in a process of its own."""

        def listen(event: Metrics) -> None:
            self.progress.hear(event)
            self.reporter.hear(self.progress, event)

        outside = self.plan.outside_layers(job.layer)
        job.threads = torch.get_num_threads()
        job.registered = [record for record in self.plan.code if record["name"] in outside]
        job.search_path = [str(Path(folder or ".").resolve()) for folder in sys.path] if job.registered else []
        return run_worker(job, listen, signalled)
