"""One training of a comparison, in a process of its own: ``python -m seriatim.comparison.worker JOBFILE``.

What it does it tells its parent in lines of JSON on standard output. So its peak of memory is its own, and what ends it
ends one row, not the comparison. When the parent is gone, the next line finds no reader and ends the process.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from ..config import resolve
from ..core.errors import InputError, TrainingError
from ..layers.origins import Origin, import_origins
from ..runs.launch import resume, train
from ..runs.run import Run, load
from ..storage.atomic_files import remove, to_json, write_whole
from ..storage.weights import save_tensors
from ..tasks import find
from ..tasks.counting import LAYER as COUNTED
from ..training.precision import choose_device, choose_precision
from ..training.reporting import Record, Reporter
from .budget import DEVIATION, TOO_QUICK, Pace, keep_pace, pace_of, settle_budget
from .folder import check_row
from .measuring import measure
from .plan import Plan, read_plan

EVERY = 0.2
"""Seconds between two lines about steps."""
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Work:
    """What one process does.

    Attributes:
        comparison: the folder.
        layer: as the plan names it.
        seed: of the training.
        share: of the budget.
        learning_rate: None for that of the plan.
        trial: the number of a trial, of which nothing is measured; None for the training itself.
        threads: to compute with.
        full: whether costs, samples and distances are measured too.
        registered: `Origin` of every class of the user's own that the layer is made of.
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
        """Of the run's folder, and of the row's file."""
        return f"{self.layer}-{self.seed}" + ("" if self.trial is None else f"-{self.trial}")

    @property
    def run(self) -> Path:
        """The run's folder."""
        return Path(self.comparison) / ("runs" if self.trial is None else "trials") / self.name

    @property
    def row(self) -> Path:
        """The file that says the row is finished."""
        return Path(self.comparison) / "rows" / f"{self.name}.json"

    def write(self, path: Path) -> None:
        """As a file for the process."""
        write_whole(path, json.dumps(asdict(self)))


class LineReporter(Reporter):
    """Tells a training to the parent."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.last = tell, 0.0

    def begin(self, record: Record) -> None:
        """Sizes of model and data."""
        self.tell({"event": "begin", **{name: record[name] for name in ("parameters", "train", "valid", "step")}})

    def step(self, record: Record) -> None:
        """A step, unless one was told just now."""
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            self.tell({"event": "step", **record})

    def validation(self, record: Record) -> None:
        """The figures, without what is no number."""
        plain = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self.tell({"event": "validation", **plain})


def work(job: Work, tell: Tell) -> None:
    """Trains, measures, and writes the row; tells ``done`` last."""
    torch.set_num_threads(job.threads)
    import_origins([Origin(*origin) for origin in job.registered], job.search_path)  # type: ignore[arg-type]
    plan = read_plan(Path(job.comparison))
    run, here = _trained(job, plan, tell)
    facts = {"memory_bytes": peak_memory() if here else None, "note": _note(job, plan, run)}
    if job.trial is not None:
        tell({"event": "done", "value": run.summary["best_valid"], "learning_rate": run.config.training.learning_rate})
        return
    tell({"event": "measuring"})
    row, statistics = measure(run, plan, seed=job.seed, full=job.full)
    if row["trained_on"] != plan.digests.get("train", row["trained_on"]):
        remove(job.run)  # or its weights would be measured once the data is restored
    check_row(job.row, row, plan)
    job.row.parent.mkdir(exist_ok=True)
    tensors = {name: torch.tensor(values) for name, values in statistics.items()}  # each its own: some are one
    save_tensors(tensors, job.row.with_suffix(".safetensors"))
    write_whole(job.row, to_json({**row, **facts, "layer": job.layer, "seed": job.seed}, indent=1) + "\n")
    tell({"event": "done"})


def _trained(job: Work, plan: Plan, tell: Tell) -> tuple[Run, bool]:
    """The run, trained to its end, and whether it was this process that trained it."""
    reporter = LineReporter(tell)
    if (job.run / "summary.json").exists() and (job.run / "model.safetensors").exists():
        return load(job.run), False
    if (job.run / "config.yaml").exists():
        return resume(job.run, reporter=reporter), True
    config = plan.config(job.layer, job.seed)
    overrides: dict[str, Any] = {"out": str(job.run)}
    if job.layer == COUNTED:
        return train(config, overrides=overrides, reporter=reporter), True
    if job.learning_rate is not None:
        overrides["training.learning_rate"] = job.learning_rate
    device = choose_device(config.training.device)
    config.training.precision = choose_precision(config.training.precision, device)  # type: ignore[assignment]
    tell({"event": "timing"})
    seconds = None if plan.budget.minutes is None else 60 * plan.budget.minutes * job.share
    pace, name = pace_of(find(config), device, seconds)

    def run_at(pace: Pace, *, again: bool = False) -> Run:
        fields = settle_budget(config, plan.budget, pace, share=job.share, automatic=plan.automatic)
        return train(resolve(config, overrides | fields), overwrite=again, reporter=reporter)

    run = run_at(pace)
    shown = replace(pace, step_seconds=_training_seconds(run) / run.summary["steps"])
    ratio = shown.step_seconds / pace.step_seconds
    if seconds is not None and not TOO_QUICK <= ratio <= 1 / TOO_QUICK:  # else the same steps come again next time
        keep_pace(name, shown)
        if ratio < 1:  # the machine was busy while it was timed
            del run
            run = run_at(shown, again=True)
    return run, True


def _note(job: Work, plan: Plan, run: Run) -> str | None:
    """What a reader must know of a training: that it took another time than it was given."""
    steps = run.config.training.steps
    if plan.budget.minutes is None or job.layer == COUNTED:
        return None
    if steps is None or run.summary["steps"] != steps:  # it ended early
        return None
    given, taken = 60 * plan.budget.minutes * job.share, _training_seconds(run)
    if abs(taken - given) <= max(DEVIATION * given, taken / steps):
        return None
    return f"trained for {taken:.3g} s instead of {given:.3g} s, because its speed differed from the measured speed"


def _training_seconds(run: Run) -> float:
    """Validations left out."""
    return float(run.summary["tokens"] / run.summary["tokens_per_second"])


def peak_memory() -> int | None:
    """The most memory this process has held at once, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_plain_words(error: Exception) -> str:
    """What went wrong in a training, in one line."""
    if isinstance(error, InputError | TrainingError):
        return str(error)
    reason = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in reason):
        return "out of memory; lower training.batch_size, training.sequence_length or the sizes"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; check space and permissions"
    return f"the training process failed ({type(error).__name__}: {reason})"


def main(path: str, out: TextIO) -> int:
    """Does the work of a file; returns the exit code."""

    def tell(event: dict[str, Any]) -> None:
        out.write(to_json(event) + "\n")
        out.flush()

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        tell({"event": "warning", "text": str(message)})

    warnings.showwarning = warn
    try:
        work(Work(**json.loads(Path(path).read_text(encoding="utf-8"))), tell)
    except BrokenPipeError:  # nobody is interested any more
        return 1
    except KeyboardInterrupt as error:
        tell({"event": "interrupted", "text": str(error)})
        return 130
    except Exception as error:
        tell({"event": "error", "text": in_plain_words(error), "input": isinstance(error, InputError)})
        return 1
    return 0


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything prints is no line of ours
    sys.exit(main(sys.argv[1], lines))
