"""One training of a comparison in a process of its own: ``python -m seriatim.comparison.worker JOBFILE``.

So the peak of memory belongs to one training, and a crash loses one row, not the comparison.
"""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..config import resolve
from ..core.errors import RangeError
from ..core.json_object import JsonObject
from ..data.repairs import DataWarning
from ..layers.outside_code import Origin, import_origins
from ..processes.child import OnEvent, serve
from ..runs.run import Run, load
from ..runs.train import resume, train
from ..storage.files import to_json, write_whole
from ..storage.weights import save_tensors
from ..storage.written_folders import RUN, discard
from ..training.finish import MINUTES
from ..training.hardware import choose_device, peak_memory, resident_memory
from ..training.reporting import Record, Reporter
from .conditions import ProcessTimes, describe_machine
from .pace import Pace, pace_of, store_pace
from .plan import BASELINE, Budget, Plan, check_row, is_non_neural, read_plan
from .processor_load import Load
from .row import measure

STEP_SECONDS = 0.2  # seconds between two lines about steps
VALIDATIONS = (8, 4, 2, 1)
"""Possible numbers of validations. The largest is chosen that takes at most `VALIDATING` of the training time."""
VALIDATING = 0.25
TOO_FAST = 0.7
"""Where the ratio of the training's time per step to the measured one is outside 0.7..1/0.7, the cache is corrected.

Below 0.7, the training had far too few steps, and it is repeated.
"""


@dataclass
class WorkerJob:
    """The work of one process: a training of a row with a seed, in the folder of a comparison.

    Attributes:
        share: of the budget, 0 to 1.
        learning_rate: None for the planned one.
        trial: the number of a trial of a learning rate, which is not measured; None for the training itself.
        threads: number of threads to compute with.
        at_once: how many trainings are expected to run on this machine at the same time, with this one.
        began: when the process of the training was started, in seconds of the clock; None if that is not known.
        registered: the record of every layer of the user's own that the row is made of.
        search_path: folders in which their modules are found.
    """

    comparison: str
    layer: str
    seed: int
    share: float = 1.0
    learning_rate: float | None = None
    trial: int | None = None
    threads: int = 1
    at_once: int = 1
    began: float | None = None
    registered: Sequence[dict[str, str | None]] = ()
    search_path: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder and of the row's file."""
        return f"{self.layer}-{self.seed}" + ("" if self.trial is None else f"-{self.trial}")

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return Path(self.comparison) / ("runs" if self.trial is None else "trials") / self.name


class EventReporter(Reporter):
    """Reports a training to the parent process."""

    def __init__(self, emit: OnEvent) -> None:
        self.emit, self.last = emit, 0.0

    def begin(self, record: Record) -> None:
        """Report the sizes of model and data."""
        self.emit({"event": "begin", **{name: record[name] for name in ("parameters", "train", "valid", "step")}})

    def step(self, record: Record) -> None:
        """Report a step, unless one was reported less than `STEP_SECONDS` ago."""
        if time.monotonic() - self.last >= STEP_SECONDS:
            self.last = time.monotonic()
            self.emit({"event": "step", **record})

    def validation(self, record: Record) -> None:
        """Report the numbers of a validation."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self.emit({"event": "validation", **numbers})


def work(job: WorkerJob, emit: OnEvent) -> None:
    """Train, measure and write the row; the last event is ``done``. Data that have changed are refused."""
    times = ProcessTimes(job.began)
    torch.set_num_threads(job.threads)
    import_origins([Origin.from_record(record, job.comparison) for record in job.registered], job.search_path)
    plan = read_plan(Path(job.comparison))
    idle, before, trained_from = resident_memory(), Load.now(), times.note()
    run, trained_here = _trained(job, plan, emit)
    peak, load = peak_memory(), Load.now().since(before)
    times.note()
    memory = max(0, peak - idle) if trained_here and peak is not None and idle is not None else None
    conditions: JsonObject = {"load": load._asdict() if trained_here else None}
    device = choose_device(run.config.training.device)

    # A trial only chooses a learning rate, so that nothing else is measured of it.
    if job.trial is not None:
        conditions["machine"] = describe_machine(device, times, trained_from)
        rate = run.config.training.learning_rate
        outcome = {"value": run.summary["best_valid"], "learning_rate": rate}
        outcome["more_is_better"] = run.task.evaluator.selection(run.vocabulary).more_is_better
        emit({"event": "done", **outcome, **conditions})
        return

    # The row is written last, after its statistics: a row that exists is complete.
    emit({"event": "measuring"})
    conditions |= {"memory_bytes": memory, "planned_seconds": _planned(job, plan, run)}
    row, statistics = measure(run, plan, job.layer, full=job.seed == plan.seeds[0], conditions=conditions)
    if row.trained_on != plan.digests.get("train"):
        discard(job.run, RUN)  # so that it is trained again once the data are restored
    path = Path(job.comparison) / "rows" / f"{job.name}.json"
    check_row(path, row, plan)
    row.machine = describe_machine(device, times, trained_from)
    path.parent.mkdir(exist_ok=True)
    tensors = {name: torch.tensor(values) for name, values in statistics.items()}  # copies: some arrays are shared
    save_tensors(tensors, path.with_suffix(".safetensors"))
    write_whole(path, to_json(row.to_json(), indent=1) + "\n")
    emit({"event": "done"})


def _trained(job: WorkerJob, plan: Plan, emit: OnEvent) -> tuple[Run, bool]:
    """Return the run, trained to its end, and whether this process trained it."""
    reporter = EventReporter(emit)
    if job.learning_rate is not None and _has_other_rate(job):
        discard(job.run, RUN)
    if (job.run / "summary.json").exists() and (job.run / "model.safetensors").exists():
        return load(job.run), False
    if (job.run / "config.yaml").exists():
        return resume(job.run, reporter=reporter), True
    config = plan.config(job.layer, job.seed)
    overrides: dict[str, object] = {"out": str(job.run)}
    if is_non_neural(job.layer):
        if BASELINE in plan.automatic and job.layer == plan.baseline:
            overrides["training.minutes"] = MINUTES
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice on options that nobody has set
                return train(config, overrides=overrides, reporter=reporter), True
        return train(config, overrides=overrides, reporter=reporter), True
    if job.learning_rate is not None:
        overrides["training.learning_rate"] = job.learning_rate

    # A budget in time becomes a number of steps before the training, so that the run can be repeated exactly.
    device = choose_device(config.training.device)
    emit({"event": "timing"})
    seconds = None if plan.budget.minutes is None else 60 * plan.budget.minutes * job.share
    pace, name = pace_of(config, device, seconds, at_once=job.at_once)

    def run_at(pace: Pace) -> Run:
        fields = settle_budget(plan.budget, pace, share=job.share, automatic=plan.automatic)
        return train(resolve(config, overrides | fields), reporter=reporter)

    # A speed that was measured while the machine was busy gives too few steps, and such a run is trained again.
    run = run_at(pace)
    spent = run.summary["tokens"] / run.summary["tokens_per_second"]  # without validations
    actual = replace(pace, step_seconds=spent / run.summary["steps"])
    ratio = actual.step_seconds / pace.step_seconds
    if seconds is not None and not TOO_FAST <= ratio <= 1 / TOO_FAST:
        store_pace(name, actual)
        if ratio < 1:  # the machine was busy while the speed was measured
            del run
            discard(job.run, RUN)
            run = run_at(actual)
    return run, True


def _has_other_rate(job: WorkerJob) -> bool:
    """Return whether an earlier process began the run with another rate, before failed trials were repeated."""
    path = job.run / "config.yaml"
    return path.exists() and resolve(path).training.learning_rate != job.learning_rate


def settle_budget(budget: Budget, pace: Pace, *, share: float, automatic: Sequence[str]) -> dict[str, int | None]:
    """Return the fields of a training's configuration, by dotted name, that follow from its share of the budget.

    ``automatic`` are the fields that the user did not set. A budget shorter than one step is refused.
    """
    tokens: int | None = None
    if budget.minutes is not None:
        steps = int(60 * budget.minutes * share / pace.step_seconds)
        if steps < 1:
            needed = math.ceil(1000 * pace.step_seconds / 60 / share) / 1000
            short = f"{budget.minutes:g} is too little, one step takes {pace.step_seconds:.2g} s"
            raise RangeError(f"--minutes: {short}; give {needed:g} or more")
    elif budget.tokens is not None:
        tokens = max(1, int(budget.tokens * share))
        steps = max(1, math.ceil(tokens / pace.step_tokens))
    else:
        assert budget.steps is not None
        steps = max(1, int(budget.steps * share))
    fields = {"training.epochs": None, "training.tokens": tokens, "training.steps": None if tokens else steps}
    if "evaluate_every" in automatic:
        fields["training.evaluate_every"] = evaluate_every(steps, pace)
    return fields


def evaluate_every(steps: int, pace: Pace) -> int:
    """Return the number of steps between validations, of which one always follows the last step."""
    affordable = VALIDATING * steps * pace.step_seconds / max(pace.validation_seconds, 1e-9)
    count = next((count for count in VALIDATIONS if count <= affordable), VALIDATIONS[-1])
    return math.ceil(steps / count)


def _planned(job: WorkerJob, plan: Plan, run: Run) -> float | None:
    """Return the seconds of training that the budget gives; None where it gives none, or the training ended early."""
    ended_early = run.config.training.steps is not None and run.summary["steps"] < run.config.training.steps
    if plan.budget.minutes is None or is_non_neural(job.layer) or ended_early:
        return None
    return 60 * plan.budget.minutes * job.share


if __name__ == "__main__":
    warnings.simplefilter("ignore", DataWarning)  # the parent has read the same data, and has given these warnings
    serve(lambda arguments, emit: work(WorkerJob(**arguments), emit))
