"""One training of a comparison in a process of its own: ``python -m seriatim.comparison.worker JOBFILE``.

So the peak of memory belongs to one training, and a crash loses one row, not the comparison. The speed of the layer is
measured first, which turns a budget in minutes into a number of steps. Then the run is trained and measured, and the
row is written, with the machine and what else was running there.
"""

import hashlib
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from ..config import Config, resolve
from ..core.errors import RangeError
from ..core.json_object import JsonObject
from ..data.repairs import DataWarning
from ..layers.outside_code import Origin, import_origins
from ..processes.child import OnEvent, serve
from ..processes.ranks import ONE_RANK
from ..runs.run import Run, load
from ..runs.train import resume, train
from ..storage.disk_cache import cache_folder, cached, read_entry, read_facts, seal
from ..storage.files import to_json, write_whole
from ..storage.weights import save_tensors
from ..storage.written_folders import RUN, discard
from ..tasks.model_size import build_model
from ..tasks.task import TaskBatch
from ..training.checkpoints import RunWriter
from ..training.finish import MINUTES
from ..training.hardware import (
    choose_device,
    environment,
    freed_memory_kept,
    peak_memory,
    resident_memory,
    waiting_threads_asleep,
)
from ..training.loop import Trainer
from ..training.reporting import Reporter, SafeReporter
from ..training.settle import Settled, settle
from .plan import BASELINE, Budget, Plan, check_row, is_non_neural, read_plan
from .results import EQUAL
from .row import measure

# The training speed of a layer, measured once on a machine and cached with a key of everything that it depends on. If
# it were measured for every training, two trainings with the same seed and a budget in minutes would take different
# numbers of steps and give different figures.

FORMAT = 1
TIMED_FRACTION, LONGEST, SHORTEST = 0.08, 8.0, 1.5
"""Time to measure the speed: the fraction of a budget in minutes, and its bounds in seconds."""
ROUGH = 0.5
"""Seconds to measure the speed without a budget in minutes."""
MIN_STEPS = 3
"""Steps that are timed, if they take less than `LONGEST` seconds."""


@dataclass(frozen=True)
class Pace:
    """The speed of a layer."""

    step_seconds: float
    step_tokens: float
    validation_seconds: float  # 0 without held-out data


def pace_of(config: Config, device: torch.device, seconds: float | None, *, at_once: int = 1) -> tuple[Pace, str]:
    """Return the speed of a layer on this machine, and the name of its cache entry.

    The budget in ``seconds`` bounds the time of the measurement; None stands for a budget of tokens or steps. With a
    budget in seconds, the speed beside other trainings has an entry of its own: ``at_once`` trainings run at the same
    time, this one included. Otherwise the speed only decides how often to validate, which must not depend on it.
    """
    torch.manual_seed(0)
    settled = settle(config, device)
    beside = "" if at_once == 1 or seconds is None else f"-{at_once}"
    name = f"pace-{FORMAT}-{_key(settled, device)}{beside}"

    def write(folder: Path) -> None:
        (folder / "pace.json").write_text(json.dumps(asdict(_measure(settled, device, seconds))), encoding="utf-8")

    return read_entry(lambda: cached(name, write), lambda folder: Pace(**read_facts(folder / "pace.json"))), name


def store_pace(name: str, pace: Pace) -> None:
    """Replace a measured speed in the cache by the speed that a training showed."""
    with suppress(OSError):  # a full cache must not cost the row
        write_whole(cache_folder() / name / "pace.json", json.dumps(asdict(pace)))
        seal(cache_folder() / name)


def _key(settled: Settled, device: torch.device) -> str:
    """Return a digest of everything that the speed depends on; seed, learning rate and budget are left out."""
    same = {"seed": 0, "learning_rate": 1.0, "warmup_steps": 0, "evaluate_every": None, "checkpoint_every": 1}
    same |= {"epochs": None, "steps": 1, "tokens": None, "minutes": None}
    training = settled.config.training.model_copy(update=same)
    data_keys = settled.train.key, "" if settled.valid is None else settled.valid.key
    settings = settled.config.model_copy(update={"training": training}).to_yaml()
    texts = [settings, settled.vocabulary.fingerprint(), *data_keys, json.dumps(environment(device))]
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _measure(settled: Settled, device: torch.device, seconds: float | None) -> Pace:
    """Measure the speed by training a model for a moment, which is thrown away."""
    limit = ROUGH if seconds is None else max(SHORTEST, min(LONGEST, TIMED_FRACTION * seconds))
    model = build_model(settled.task.builder, settled.vocabulary)
    settled.initialise(model)
    writer = RunWriter(Path("unused"), {})
    trainer = Trainer(settled, model, device, writer, SafeReporter(Reporter()), ONE_RANK)

    # Two steps before the clock starts: the first compiles the layer, the second finds its memory allocated.
    trainer.start()
    trainer.model.train()
    trainer.began = time.perf_counter()
    batches = _endless_batches(trainer)
    with freed_memory_kept(), waiting_threads_asleep():
        trainer.step(next(batches))
        trainer.step(next(batches))
        before, steps, started = trainer.progress.tokens, 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < limit or (steps < MIN_STEPS and spent < LONGEST) or not steps:
            trainer.step(next(batches))
            steps += 1
        tokens = trainer.progress.tokens - before
        return Pace(spent / steps, tokens / steps, _validation_seconds(trainer))


def _endless_batches(trainer: Trainer) -> Iterator[list[TaskBatch]]:
    while True:
        yield from trainer.steps_of_epoch()
        trainer.progress.epoch, trainer.progress.window = trainer.progress.epoch + 1, 0


def _validation_seconds(trainer: Trainer) -> float:
    """Return the seconds of a validation, 0 without held-out data."""
    if trainer.valid is None:
        return 0.0
    started = time.perf_counter()
    trainer.objective.validate(trainer.model, trainer.valid)
    return time.perf_counter() - started


# What else the machine did meanwhile: how busy its processors were.

IDLE = (3, 4)
"""Columns of idle time in the first line of ``/proc/stat``: doing nothing, and waiting for a disk."""
COUNTED = 8
"""Columns of that line that add up to all of the time; the later ones are part of the first."""


class Moment(NamedTuple):
    """Seconds of the clock, and the processor seconds until then of this process with its children, and of everything.

    The last are counted from the start of the system, and None where it does not tell.
    """

    clock: float
    used: float
    busy: float | None

    @classmethod
    def now(cls) -> "Moment":
        """Return the present moment."""
        return cls(time.time(), sum(os.times()[:4]), _busy_seconds())  # with children, such as the compiler


def load_between(first: Moment, last: Moment) -> JsonObject:
    """Return the seconds between two moments, and the processor seconds of this process and of all other programs."""
    used, other = last.used - first.used, None
    if first.busy is not None and last.busy is not None:
        other = max(0.0, last.busy - first.busy - used)
    return {"seconds": last.clock - first.clock, "cpu_seconds": used, "other_cpu_seconds": other}


def _busy_seconds() -> float | None:
    """Return the seconds that all processors together were busy since the system started."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
        ticks = [int(value) for value in first[1 : 1 + COUNTED]]
        return sum(value for i, value in enumerate(ticks) if i not in IDLE) / float(os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None


# The training.

STEP_SECONDS = 0.2  # seconds between two lines about steps
VALIDATIONS = (8, 4, 2, 1)
"""Possible numbers of validations. The largest is chosen that takes at most `VALIDATING` of the training time, or
`SPARED` seconds."""
VALIDATING, SPARED = 0.25, 10.0


@dataclass
class WorkerJob:
    """The work of one process: a training of a row with a seed, in the folder of a comparison.

    Attributes:
        fraction: of the budget, 0 to 1.
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
    fraction: float = 1.0
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
    """Reports a training to the parent process, and notes what it and the machine did meanwhile.

    Attributes:
        used: pairs of seconds of the clock and of the processor seconds that this process and its children had used by
            then. The first moment is ``began``, when the parent started the process, because its imports take seconds
            of processor time.
        trained_from: when the training itself began, after data were read.
        reported: the last report of a step or validation.
    """

    def __init__(self, emit: OnEvent, began: float | None) -> None:
        self.emit = emit
        self.used: list[tuple[float, float]] = [] if began is None else [(began, 0.0)]
        self.reported = self.trained_from = self.note()

    def note(self) -> Moment:
        """Note the present moment."""
        moment = Moment.now()
        self.used.append((moment.clock, moment.used))
        return moment

    @property
    def load(self) -> JsonObject | None:
        """The load from the beginning of the training until the last report; None where nothing was trained."""
        return None if self.reported is self.trained_from else load_between(self.trained_from, self.reported)

    def begin(self, record: JsonObject) -> None:
        """Report the sizes of model and data."""
        self.reported = self.trained_from = self.note()
        self.emit({"event": "begin", **{name: record[name] for name in ("parameters", "train", "valid", "step")}})

    def step(self, record: JsonObject) -> None:
        """Report a step, unless one was reported less than `STEP_SECONDS` ago."""
        if self.reported is self.trained_from or time.time() - self.reported.clock >= STEP_SECONDS:
            self.reported = Moment.now()
            self.emit({"event": "step", **record})

    def validation(self, record: JsonObject) -> None:
        """Report the numbers of a validation."""
        self.reported = Moment.now()
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self.emit({"event": "validation", **numbers})

    def machine(self, device: torch.device) -> JsonObject:
        """Return the record of this machine for a process that ends now."""
        ended, described = self.note(), environment(device)
        return {
            "host": platform.node(),
            "processor": described["processor"],
            "device": described["device"],
            "processors": os.cpu_count() or 1,
            "threads": torch.get_num_threads(),
            "began": self.used[0][0],
            "trained_from": self.trained_from.clock,
            "ended": ended.clock,
            "used": self.used,
        }


def work(job: WorkerJob, emit: OnEvent) -> None:
    """Train, measure and write the row; the last event is ``done``. Data that have changed are refused."""
    reporter = EventReporter(emit, job.began)
    torch.set_num_threads(job.threads)
    import_origins([Origin.from_record(record, job.comparison) for record in job.registered], job.search_path)
    plan = read_plan(Path(job.comparison))
    idle = resident_memory()
    run, trained_here = _trained(job, plan, emit, reporter)
    peak = peak_memory()
    reporter.note()
    memory = max(0, peak - idle) if trained_here and peak is not None and idle is not None else None
    conditions: JsonObject = {"load": reporter.load}
    device = choose_device(run.config.training.device)

    # A trial only chooses a learning rate, so that nothing else is measured of it.
    if job.trial is not None:
        conditions["machine"] = reporter.machine(device)
        rate = run.config.training.learning_rate
        outcome = {"value": run.summary["best_valid"], "learning_rate": rate}
        outcome["more_is_better"] = run.task.evaluator.selection(run.vocabulary).more_is_better
        emit({"event": "done", **outcome, **conditions})
        return

    # The row is written last, after its statistics: a row that exists is complete.
    emit({"event": "measuring"})
    conditions |= {"memory_bytes": memory, "ended_early": ended_early(run)}
    conditions["planned_seconds"] = _planned(job, plan, run)
    row, statistics = measure(run, plan, job.layer, full=job.seed == plan.seeds[0], conditions=conditions)
    if row.trained_on != plan.digests.get("train"):
        discard(job.run, RUN)  # so that it is trained again once the data are restored
    path = Path(job.comparison) / "rows" / f"{job.name}.json"
    check_row(path, row, plan)
    row.machine = reporter.machine(device)
    path.parent.mkdir(exist_ok=True)
    tensors = {name: torch.tensor(values) for name, values in statistics.items()}  # copies: some arrays are shared
    save_tensors(tensors, path.with_suffix(".safetensors"))
    write_whole(path, to_json(row.to_json(), indent=1) + "\n")
    emit({"event": "done"})


def _trained(job: WorkerJob, plan: Plan, emit: OnEvent, reporter: Reporter) -> tuple[Run, bool]:
    """Return the run, trained to its end, and whether this process trained it."""
    if job.learning_rate is not None and _has_other_rate(job):
        discard(job.run, RUN)
    if (job.run / "summary.json").exists() and (job.run / "model.safetensors").exists():
        return load(job.run), False
    if (job.run / "config.yaml").exists():
        return resume(job.run, reporter=reporter), True
    config = plan.config(job.layer, job.seed)
    overrides: dict[str, object] = {"out": str(job.run)}
    if is_non_neural(job.layer):
        with warnings.catch_warnings():
            if BASELINE in plan.automatic and job.layer == plan.baseline:
                warnings.simplefilter("ignore")  # advice on options that nobody has set
                overrides["training.minutes"] = MINUTES
            return train(config, overrides=overrides, reporter=reporter), True
    if job.learning_rate is not None:
        overrides["training.learning_rate"] = job.learning_rate

    # A budget in time becomes a number of steps before the training, so that the run can be repeated exactly.
    device = choose_device(config.training.device)
    emit({"event": "timing"})
    seconds = None if plan.budget.minutes is None else 60 * plan.budget.minutes * job.fraction
    pace, name = pace_of(config, device, seconds, at_once=job.at_once)

    def run_at(pace: Pace) -> Run:
        fields = settle_budget(plan.budget, pace, fraction=job.fraction, automatic=plan.automatic)
        return train(resolve(config, overrides | fields), reporter=reporter)

    # A speed that was measured while the machine was busy gives too few steps, and one that was measured while it was
    # free gives too many for a machine that is busy. Rows of unequal budgets have no ranks, so such a run is trained
    # again, but only once.
    run = run_at(pace)
    spent = run.summary["tokens"] / run.summary["tokens_per_second"]  # without validations
    actual = replace(pace, step_seconds=spent / run.summary["steps"])
    ratio = actual.step_seconds / pace.step_seconds
    if seconds is not None and max(ratio, 1 / ratio) > EQUAL:
        store_pace(name, actual)
        if actual.step_seconds <= seconds and not ended_early(run):  # else it cannot be set right
            del run
            discard(job.run, RUN)
            run = run_at(actual)
    return run, True


def _has_other_rate(job: WorkerJob) -> bool:
    """Return whether an earlier process began the run with another rate, before failed trials were repeated."""
    path = job.run / "config.yaml"
    return path.exists() and resolve(path).training.learning_rate != job.learning_rate


def settle_budget(budget: Budget, pace: Pace, *, fraction: float, automatic: Sequence[str]) -> dict[str, int | None]:
    """Return the fields of a training's configuration, by dotted name, that follow from its fraction of the budget.

    ``automatic`` are the fields that the user did not set. A budget shorter than one step is refused.
    """
    # A budget becomes a number of steps, which a later training can repeat exactly; minutes it could not.
    tokens: int | None = None
    if budget.minutes is not None:
        steps = int(60 * budget.minutes * fraction / pace.step_seconds)
        if steps < 1:
            needed = math.ceil(1000 * pace.step_seconds / 60 / fraction) / 1000
            short = f"{budget.minutes:g} is too little, one step takes {pace.step_seconds:.2g} s"
            raise RangeError(f"--minutes: {short}; give {needed:g} or more")
    elif budget.tokens is not None:
        tokens = max(1, int(budget.tokens * fraction))
        steps = max(1, math.ceil(tokens / pace.step_tokens))
    else:
        assert budget.steps is not None
        steps = max(1, int(budget.steps * fraction))

    # Exactly one limit is set, so that no default ends the training earlier.
    fields = {"training.epochs": None, "training.tokens": tokens, "training.steps": None if tokens else steps}
    if "evaluate_every" in automatic:
        fields["training.evaluate_every"] = evaluate_every(steps, pace)
    return fields


def evaluate_every(steps: int, pace: Pace) -> int:
    """Return the number of steps between validations, of which one always follows the last step."""
    affordable = max(VALIDATING * steps * pace.step_seconds, SPARED) / max(pace.validation_seconds, 1e-9)
    count = next((count for count in VALIDATIONS if count <= affordable), VALIDATIONS[-1])
    return math.ceil(steps / count)


def _planned(job: WorkerJob, plan: Plan, run: Run) -> float | None:
    """Return the seconds of training that the budget gives; None where it gives none, or the training ended early."""
    if plan.budget.minutes is None or is_non_neural(job.layer) or ended_early(run):
        return None
    return 60 * plan.budget.minutes * job.fraction


def ended_early(run: Run) -> bool:
    """Return whether a training stopped before its budget ended, because validations brought no improvement."""
    training = run.config.training
    return any(run.summary[name] < (getattr(training, name) or 0) for name in ("steps", "tokens"))


if __name__ == "__main__":
    warnings.simplefilter("ignore", DataWarning)  # the parent has read the same data, and has given these warnings
    serve(lambda arguments, emit: work(WorkerJob(**arguments), emit))
