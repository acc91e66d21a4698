"""One training of a comparison in a process of its own: ``python -m seriatim.comparison.worker JOBFILE``.

So the peak of memory belongs to one training, and a crash loses one row, not the comparison.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..config import resolve
from ..layers.origins import Origin, import_origins
from ..runs.child_process import Tell, serve
from ..runs.launch import resume, train
from ..runs.run import Run, load
from ..storage.atomic_files import remove, to_json, write_whole
from ..storage.weights import save_tensors
from ..tasks import find
from ..training.hardware import choose_device, choose_precision, peak_memory
from ..training.pace import Pace, pace_of, store_pace
from ..training.reporting import Record, Reporter
from .budget import DEVIATION, TOO_FAST, settle_budget
from .folder import check_row
from .plan import Plan, is_counted, read_plan
from .row import measure

STEP_SECONDS = 0.2
"""Seconds between two lines about steps."""


@dataclass(frozen=True)
class WorkerJob:
    """The work of one process.

    Attributes:
        comparison: the folder of the comparison.
        layer: the name of the row.
        seed: of the training.
        share: of the budget, 0 to 1.
        learning_rate: None for the planned one.
        trial: the number of a trial of a learning rate, which is not measured; None for the training itself.
        threads: number of threads to compute with.
        full: whether to measure costs, samples and distances as well.
        registered: the `Origin` of every layer of the user's own that the row is made of.
        search_path: folders in which their modules are found.
    """

    comparison: str
    layer: str
    seed: int
    share: float = 1.0
    learning_rate: float | None = None
    trial: int | None = None
    threads: int = 1
    full: bool = True
    registered: Sequence[Sequence[str | None]] = ()
    search_path: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder and of the row's file."""
        return f"{self.layer}-{self.seed}" + ("" if self.trial is None else f"-{self.trial}")

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return Path(self.comparison) / ("runs" if self.trial is None else "trials") / self.name

    @property
    def row(self) -> Path:
        """The file of the finished row."""
        return Path(self.comparison) / "rows" / f"{self.name}.json"


class EventReporter(Reporter):
    """Tells the parent about a training."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.last = tell, 0.0

    def begin(self, record: Record) -> None:
        """Tell the sizes of model and data."""
        self.tell({"event": "begin", **{name: record[name] for name in ("parameters", "train", "valid", "step")}})

    def step(self, record: Record) -> None:
        """Tell a step, unless one was told less than `STEP_SECONDS` ago."""
        if time.monotonic() - self.last >= STEP_SECONDS:
            self.last = time.monotonic()
            self.tell({"event": "step", **record})

    def validation(self, record: Record) -> None:
        """Tell the numbers of a validation."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self.tell({"event": "validation", **numbers})


def work(job: WorkerJob, tell: Tell) -> None:
    """Train, measure and write the row; the last event is ``done``.

    Raises:
        InputError: the data or the layer are invalid, or have changed since the comparison began.
        TrainingError: the training failed.
    """
    torch.set_num_threads(job.threads)
    import_origins([Origin(*origin) for origin in job.registered], job.search_path)  # type: ignore[arg-type]
    plan = read_plan(Path(job.comparison))
    run, trained_here = _trained(job, plan, tell)
    facts = {"memory_bytes": peak_memory() if trained_here else None, "note": _note(job, plan, run)}
    if job.trial is not None:
        tell({"event": "done", "value": run.summary["best_valid"], "learning_rate": run.config.training.learning_rate})
        return
    tell({"event": "measuring"})
    row, statistics = measure(run, plan, full=job.full)
    if row["trained_on"] != plan.digests.get("train", row["trained_on"]):
        remove(job.run)  # so that it is trained again once the data are restored
    check_row(job.row, row, plan)
    job.row.parent.mkdir(exist_ok=True)
    tensors = {name: torch.tensor(values) for name, values in statistics.items()}  # copies: some arrays are shared
    save_tensors(tensors, job.row.with_suffix(".safetensors"))
    write_whole(job.row, to_json({**row, **facts, "layer": job.layer, "seed": job.seed}, indent=1) + "\n")
    tell({"event": "done"})


def _trained(job: WorkerJob, plan: Plan, tell: Tell) -> tuple[Run, bool]:
    """Return the run, trained to its end, and whether this process trained it."""
    reporter = EventReporter(tell)
    if (job.run / "summary.json").exists() and (job.run / "model.safetensors").exists():
        return load(job.run), False
    if (job.run / "config.yaml").exists():
        return resume(job.run, reporter=reporter), True
    config = plan.config(job.layer, job.seed)
    overrides: dict[str, object] = {"out": str(job.run)}
    if is_counted(job.layer):
        return train(config, overrides=overrides, reporter=reporter), True
    if job.learning_rate is not None:
        overrides["training.learning_rate"] = job.learning_rate
    device = choose_device(config.training.device)
    config.training.precision = choose_precision(config.training.precision, device)
    tell({"event": "timing"})
    seconds = None if plan.budget.minutes is None else 60 * plan.budget.minutes * job.share
    pace, name = pace_of(find(config), device, seconds)

    def run_at(pace: Pace, *, overwrite: bool = False) -> Run:
        fields = settle_budget(config, plan.budget, pace, share=job.share, automatic=plan.automatic)
        return train(resolve(config, overrides | fields), overwrite=overwrite, reporter=reporter)

    run = run_at(pace)
    actual = replace(pace, step_seconds=_training_seconds(run) / run.summary["steps"])
    ratio = actual.step_seconds / pace.step_seconds
    if seconds is not None and not TOO_FAST <= ratio <= 1 / TOO_FAST:
        store_pace(name, actual)
        if ratio < 1:  # the machine was busy while the speed was measured
            del run
            run = run_at(actual, overwrite=True)
    return run, True


def _note(job: WorkerJob, plan: Plan, run: Run) -> str | None:
    """Return a sentence where a training took another time than its budget."""
    steps = run.config.training.steps
    if plan.budget.minutes is None or steps is None or run.summary["steps"] != steps or is_counted(job.layer):
        return None  # without a budget in minutes, or ended early
    planned, spent = 60 * plan.budget.minutes * job.share, _training_seconds(run)
    if abs(spent - planned) <= max(DEVIATION * planned, spent / steps):
        return None
    return f"trained for {spent:.3g} s instead of {planned:.3g} s, because its speed differed from the measured speed"


def _training_seconds(run: Run) -> float:
    """Return the seconds of training without validations."""
    return float(run.summary["tokens"] / run.summary["tokens_per_second"])


if __name__ == "__main__":
    serve(lambda arguments, tell: work(WorkerJob(**arguments), tell))
