"""Compare layers on the same data under one budget: what `seriatim.compare` and the command do.

A `Runner` trains the rows of a plan, one after another or several at a time, keeps what is finished, and tells a
`ComparisonReporter` of its progress.
"""

import shlex
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..config import ConfigSource
from ..core.errors import InputError, TrainingError
from ..core.json_object import JsonObject
from ..layers.outside_code import AllowCode, Origin, refuse_while_importing, require_code
from ..pages.page import framed
from ..pages.wording import listed
from ..processes.child import Stopped
from ..processes.executors import WorkersLostError
from ..processes.ranks import refuse_ranks
from ..processes.signals import Interrupted, signals_deferred
from ..storage.files import locked, read_json, refuse_locked, to_json, write_whole
from ..storage.written_folders import COMPARISON, begin, finish_replacing, latest_folder, outer, record, recover, settle
from ..training.run_files import check_folder, check_out, files_read, refuse_overwriting
from .assemble import assemble
from .plan import (
    MAX_BYTES,
    REPORT,
    Plan,
    Trials,
    best_rate,
    check_runs,
    choose_metric,
    default_out,
    is_non_neural,
    read_plan,
    read_row,
    trials_left,
)
from .planning import (
    ComparisonSettings,
    check_data_named,
    extend_plan,
    fit_plan,
    make_plan,
    read_data,
    register_references,
)
from .results import Results, TrainingRow
from .worker import WorkerJob
from .workers import TrainingWorkers, open_workers, run_jobs

OVERHEAD = 15.0  # estimated seconds that a row takes beside its training, until a row has been finished
KNOWN_FRACTION = 0.05  # the fraction of a run after which its remaining time is known


class PresentTraining:
    """A training that is running.

    Attributes:
        number: of its row, from 1, in the order in which the rows were begun.
        trial: the number of a learning rate that is tried, None for the training of a row.
        fraction: how much of it is done, 0 to 1.
        event: what it told last; empty before it told anything.
        left: its seconds that are left, None while they are not known.
    """

    def __init__(self, number: int, layer: str, seed: int, trial: int | None) -> None:
        self.number, self.layer, self.seed, self.trial = number, layer, seed, trial
        self.row = layer, seed
        self.fraction, self.event = 0.0, JsonObject()
        self.left: float | None = None
        self.began = time.monotonic()

    def hear(self, event: JsonObject) -> None:
        """Take note of an event."""
        self.event = event
        if event["event"] == "step":
            self.fraction = float(event["progress"])
            self.left = event["seconds_left"] if self.fraction > KNOWN_FRACTION else None


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
    def fraction(self) -> float:
        """The mean fraction of the present trainings that is done."""
        return sum(training.fraction for training in self.present) / max(1, len(self.present))

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the whole comparison; None while the speed is not known."""
        run = self._seconds_of_a_row()
        if run is None:
            return None
        left = {training.row: max(0.0, run - self._spent_on(training.row)) for training in self.present}
        for training in self.present:
            left[training.row] = max(left[training.row], training.left or 0.0)
        waiting = max(0, self.count - self.done - len(left))
        workers = max(1, min(self.workers, len(left) + waiting))
        return max([*left.values(), (sum(left.values()) + run * waiting) / workers])

    def _spent_on(self, row: tuple[str, int]) -> float:
        """Return the seconds of all trainings of a row, the present ones included."""
        present = (time.monotonic() - training.began for training in self.present if training.row == row)
        return self._spent.get(row, 0.0) + sum(present)

    def _seconds_of_a_row(self) -> float | None:
        if self._durations:
            return sum(self._durations) / len(self._durations)
        if self.plan.budget.minutes is not None:
            return 60 * self.plan.budget.minutes + OVERHEAD
        known = [
            self._spent_on(training.row) + training.left + OVERHEAD
            for training in self.present
            if training.trial is None and training.left is not None
        ]
        return max(known, default=None)

    def start(self, layer: str, seed: int, trial: int | None) -> PresentTraining:
        """Begin a training."""
        number = self._numbers.setdefault((layer, seed), max(self.done, *self._numbers.values(), 0) + 1)
        training = PresentTraining(number, layer, seed, trial)
        self.present.append(training)
        return training

    def end(self, training: PresentTraining, *, succeeded: bool) -> None:
        """End a training. The time that counting takes says nothing about other rows."""
        self.present.remove(training)
        spent = self._spent.get(training.row, 0.0) + time.monotonic() - training.began
        self._spent[training.row] = spent
        if succeeded and training.trial is None and not is_non_neural(training.layer):
            self._durations.append(spent)

    def add(self, layer: str, metrics: Mapping[str, float | None]) -> None:
        """Count a finished row, and compare its metric with the best so far."""
        self.done += 1
        value = metrics.get(self.metric.key)
        if value is not None and (self.best is None or self.metric.best([self.best[1], value]) != self.best[1]):
            self.best = (layer, value)


class ComparisonReporter:
    """Listens to a comparison. The library never prints; a program passes a subclass of this class.

    All methods are called by the thread that compares. ``tells_failures`` is whether a user reads each failure when it
    is heard, so that an error at the end need not repeat it.
    """

    tells_failures = False

    def begin(self, plan: Plan, progress: ComparisonProgress) -> None:
        """Receive the plan before the first training."""

    def run(self, progress: ComparisonProgress, training: PresentTraining) -> None:
        """Hear that a training begins."""

    def hear(self, progress: ComparisonProgress, training: PresentTraining, event: JsonObject) -> None:
        """Receive an event of a training: ``timing``, ``begin``, ``step``, ``validation`` or ``measuring``."""

    def row(self, progress: ComparisonProgress, row: TrainingRow) -> None:
        """Receive a finished row."""

    def failure(self, layer: str, seed: int, reason: str) -> None:
        """Receive the reason why a run failed."""

    def end(self, results: JsonObject) -> None:
        """Receive what `results.json` holds, after the last run."""

    def close(self) -> None:
        """Release what the reporter holds; whoever made the reporter calls this."""


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
        self.finished: dict[tuple[str, int], TrainingRow] = {}  # rows by layer and seed
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
                    self._add(row)
        return self.progress.done == self.progress.count

    def run(self) -> Comparison:
        """Train what is not trained yet, and write the results; errors are those of `seriatim.compare`."""
        started, before = time.perf_counter(), 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            results = read_json(self.folder / "results.json", max_bytes=MAX_BYTES, remedy="remove it")
            before = float(results["seconds"])

        # What the folder will hold is recorded first, so that an interrupted comparison can be replaced.
        trials = ["trials"] if self.plan.tune else []
        record(self.folder, COMPARISON, "comparison.yaml", "runs", *trials, "rows", "results.json")
        write_whole(self.folder / "comparison.yaml", self.plan.to_yaml())
        self._plan_trainings()
        self.reporter.begin(self.plan, self.progress)
        with signals_deferred() as stop_signal:
            run_jobs(self.workers, stop_signal, next_job=self.next_job, on_event=self.on_event, on_end=self.on_end)
            number = stop_signal()

        # Rows that no worker is left for have failed; after a signal, they are waiting for the next start.
        if number is None and self.workers.executor.lost is not None:
            for layer, seed in self._waiting:
                self._fail(layer, seed, self.workers.executor.lost)
        seconds = before + time.perf_counter() - started

        # The folder that is replaced stays until the new one has a row.
        if self.finished:
            self.folder = settle(self.folder)
        results = assemble(self.folder, self.plan, self.finished, self.failures, seconds)
        write_whole(self.folder / "results.json", to_json(results, indent=1) + "\n")
        if number is not None:
            text = f"interrupted; finished rows are kept in {outer(self.folder)}"
            raise Interrupted(text, number, go_on=self._resume_command())
        if not self.finished:
            error = next(iter(self.failures.values()))
            if isinstance(error, InputError):
                raise error
            go_on = f"; to go on: {self._resume_command()}" if isinstance(error, WorkersLostError) else ""
            count, by_layer = len(self.plan.layers), {layer: str(error) for (layer, _), error in self.failures.items()}
            reasons = [
                f"{listed([layer for layer in by_layer if by_layer[layer] == reason])}: {reason}"
                for reason in dict.fromkeys(by_layer.values())
            ]
            told = "" if self.reporter.tells_failures else f": {'; '.join(reasons)}"
            raise TrainingError(f"{count} of {count} layers failed{told}{go_on}")
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
            if not self.plan.tune or is_non_neural(layer):
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

            # A row waits until the learning rates of its layer have been tried; meanwhile its trials are started.
            if trials is not None and not trials.ended:
                if trials.waiting:
                    number, fraction = trials.waiting.pop(0), 0.5 / trials.count
                    job = WorkerJob(str(self.folder), layer, trials.seed, fraction, trials.rate(number), number)
                    return self._start(job, running)
                continue

            # A layer whose trials all failed has no learning rate, and its rows fail without being trained.
            self._waiting.remove((layer, seed))
            job = WorkerJob(str(self.folder), layer, seed)
            try:
                if trials is not None and trials.error is not None:
                    raise trials.error
                if self.plan.tune and not is_non_neural(layer):
                    job.fraction, job.learning_rate = 0.5, best_rate(self.folder, self.plan, layer)
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
        self.progress.end(self._present.pop(job.name), succeeded=not isinstance(outcome, Exception))
        if isinstance(outcome, Stopped):
            return
        if job.trial is not None:
            self._end_trial(job.layer, job.trial, outcome)
        elif isinstance(outcome, Exception):
            self._fail(job.layer, job.seed, outcome)
        else:
            row = read_row(self.folder, job.name, self.plan)
            assert row is not None, "the process of a training ends after it has written the row"
            self._add(row)
            self.reporter.row(self.progress, row)

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

    def _add(self, row: TrainingRow) -> None:
        self.finished[row.layer, row.seed] = row
        self.progress.add(row.layer, row.metrics)


def compare(
    config: ConfigSource,
    *,
    layers: Sequence[str],
    minutes: float | None = None,
    tokens: int | None = None,
    steps: int | None = None,
    parameters: int | str | None = None,
    seeds: int = 1,
    tune: int | None = None,
    metric: str | None = None,
    widths: Sequence[int] | None = None,
    overrides: Mapping[str, object] | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
    reporter: ComparisonReporter | None = None,
    command: str = "",
) -> Comparison:
    """Train and measure several layers on the same data, with equal parameters and under one budget.

    Args:
        config: as for `seriatim.train`, without layer and budget; ``out`` is the folder of the comparison.
        layers: names of layers. ``"mamba+transformer"`` is a stack of both, ``"lstm@32"`` a layer of width 32, and
            ``"ngram"`` an n-gram model, for language models.
        minutes: minutes of training of each layer, 2 by default; or give
        tokens: the number of tokens that each layer reads, or
        steps: the number of steps of each layer.
        parameters: number of parameters of each trained layer, within 2 %, such as ``"1M"``; by default that of the
            first layer with the configured sizes.
        seeds: runs of each layer.
        tune: learning rates to try for each layer, in half of its budget.
        metric: the figure to rank by; by default the first headline of the task.
        widths: widths at which every layer is trained, one row each (``lstm@32``), instead of equal parameters.
        overrides: dotted names of fields to values, which replace those of the configuration.
        overwrite: whether to replace a comparison in the folder, as soon as a layer of the new one is finished.
        workers: how many rows, and trials of learning rates, are trained at the same time on this machine, each with
            its share of the threads; 1 by default.
        cluster: address of the scheduler of a Dask cluster, such as ``tcp://host:8786``. Each of its workers trains one
            row at a time. They see the data and the folder of the comparison at the same paths.
        reporter: listens to the comparison.
        command: the command line, for the report.

    Returns:
        The results. The folder also holds the runs, and the report if it is written.

    Raises:
        InputError: the arguments, the configuration or the data are invalid, or the cluster cannot be used; nothing has
            been trained.
        TrainingError: no layer could be trained.
        Interrupted: a signal came; finished rows are kept, and `resume` continues.
    """
    refuse_while_importing("seriatim.compare")
    refuse_ranks("a comparison", "--workers or --cluster")
    settings = ComparisonSettings(layers, minutes, tokens, steps, parameters, seeds, tune, metric, widths, command)
    plan = make_plan(config, settings, overrides=overrides)
    plan.record_code()

    # Nothing is written before all that can be refused has been checked.
    out = plan.base.out or default_out(plan.base.task, plan.base.data.train or "data")
    folder = check_folder(out)
    refuse_overwriting(folder, (str(config) if isinstance(config, str | Path) else None, *files_read(plan.base)))
    refuse_locked(folder)
    check_out(out, overwrite=overwrite, form=COMPARISON)
    with open_workers(workers, cluster) as opened:
        fit_plan(plan)
        with locked(folder), opened.session(folder, plan):
            check_out(out, overwrite=overwrite, form=COMPARISON)
            stage = begin(folder, COMPARISON, lambda folder: (folder / "runs").exists())
            return Runner(stage, plan, reporter, opened).run()


def resume(
    folder: str | Path,
    *,
    layers: Sequence[str] | None = None,
    seeds: int | None = None,
    widths: Sequence[int] | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    reporter: ComparisonReporter | None = None,
    allow_code: AllowCode = False,
) -> Comparison:
    """Continue a comparison: keep finished rows, continue half-trained runs, and repeat what failed.

    Args:
        folder: of the comparison.
        layers: the layers of the comparison and new ones; None for no new ones.
        seeds: as many runs as before or more.
        widths: the widths of the comparison and new ones, for every layer.
        workers: as for `compare`; the number may differ from that of the beginning.
        cluster: as for `compare`.
        reporter: listens to the comparison.
        allow_code: whether code outside the library may be imported; see `seriatim.load`.

    Raises:
        InputError: no comparison, one of another version, fewer layers or seeds than it has, or data that has changed.
        TrainingError, Interrupted: as for `compare`.
    """
    refuse_ranks("a comparison", "--workers or --cluster")
    folder = outer(Path(folder))
    finish_replacing(folder)
    stage = latest_folder(folder, COMPARISON)
    if stage != folder:
        kept = f"the one that is there stays until a layer of this one is finished (to forget this one, remove {stage})"
        warnings.warn(f"{folder}: continues the comparison that is to replace the one there; {kept}", stacklevel=2)

    # Code of the user's own is imported before the layers are checked, and not without permission.
    plan = read_plan(stage)
    if layers is not None:
        layers = register_references(layers)
    origins = [Origin.from_record(record, stage / "comparison.yaml") for record in plan.code]
    by_name = {origin.name: origin for origin in origins}
    require_code(folder, plan.outside_layers(), allow_code=allow_code, origins=by_name)
    check_data_named(plan)
    added = extend_plan(plan, layers, widths, seeds)
    plan.record_code()

    # From here on the folder is written. Data are read again only if something is left to train.
    with open_workers(workers, cluster) as opened, locked(folder), opened.session(folder, plan):
        recover(folder)
        stage = latest_folder(folder, COMPARISON)
        check_runs(stage, plan)
        runner = Runner(stage, plan, reporter, opened)
        finished = runner.read_rows()
        if added:
            fit_plan(plan, layers=added)
        elif not finished:
            read_data(plan)
        return runner.run()
