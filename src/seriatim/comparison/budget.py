"""From a budget to a number of steps: the speed of a layer is measured once on a machine, and cached.

The cache key covers everything that the speed depends on. If the speed were measured for every comparison, two
comparisons with the same seed would train for different numbers of steps and give different figures.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..config import Config
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.corpus import Corpus
from ..storage.atomic_files import write_whole
from ..storage.disk_cache import cache_folder, cached, seal
from ..training.estimator import Job
from ..training.hardware import environment
from ..training.loop import Trainer
from ..training.reporting import Reporter
from ..training.setup import prepare
from ..training.task import AnyTask
from ..training.task_data import TaskBatch
from .plan import Budget

FORMAT = 1
SHARE, LONGEST, SHORTEST = 0.08, 8.0, 1.5
"""Time to measure the speed: its share of a budget in minutes, and its bounds in seconds."""
ROUGH = 0.5
"""Seconds to measure the speed for other budgets, where only the distance between validations depends on it."""
MIN_STEPS = 3
"""Steps that are timed, if they take less than `LONGEST` seconds."""
VALIDATIONS = (8, 4, 2, 1)
"""Possible numbers of validations. The largest is chosen that takes at most `VALIDATING` of the training time."""
VALIDATING = 0.25
PART = 10_000
"""Tokens of a running text that are validated to estimate the time for all of it."""
DEVIATION = 0.15
"""Relative deviation from the budget in minutes above which a row says so."""
TOO_FAST = 0.7
"""Where the ratio of the training's time per step to the measured one is outside 0.7..1/0.7, the cache is corrected.

Below 0.7, the training had far too few steps, and it is repeated.
"""


@dataclass(frozen=True)
class Pace:
    """The speed of a layer: seconds and tokens of a step, and seconds of a validation (0 without held-out data)."""

    step_seconds: float
    step_tokens: float
    validation_seconds: float


def pace_of(task: AnyTask, device: torch.device, seconds: float | None) -> tuple[Pace, str]:
    """Return the speed of a layer on this machine, and the name of its cache entry.

    Args:
        task: with a settled configuration.
        device: where it trains.
        seconds: the budget; None for a budget of tokens or steps.
    """
    torch.manual_seed(0)
    job = prepare(task, Path("unused"))
    name = f"pace-{FORMAT}-{_key(task.config, job, device)}"

    def write(folder: Path) -> None:
        (folder / "pace.json").write_text(json.dumps(asdict(_measure(job, device, seconds))), encoding="utf-8")

    for _ in range(2):
        folder = cached(name, write)
        try:
            return Pace(**json.loads((folder / "pace.json").read_text(encoding="utf-8"))), name
        except (OSError, ValueError, TypeError):
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("a cache entry cannot be read right after it was written")


def store_pace(name: str, pace: Pace) -> None:
    """Replace a measured speed in the cache by the speed that a training showed."""
    with suppress(OSError):  # a full cache must not cost the row
        write_whole(cache_folder() / name / "pace.json", json.dumps(asdict(pace)))
        seal(cache_folder() / name)


def settle_budget(
    config: Config, budget: Budget, pace: Pace, *, share: float, automatic: list[str]
) -> dict[str, int | float | None]:
    """Return the fields of a training's configuration, by dotted name, that follow from its share of the budget.

    Args:
        config: of the training.
        budget: of the layer.
        pace: speed of the layer.
        share: of the budget for this training, 0 to 1.
        automatic: fields of the configuration that the user did not set.

    Raises:
        InputError: the budget is shorter than one step.
    """
    fields: dict[str, int | float | None] = {"training.epochs": None, "training.steps": None, "training.tokens": None}
    if budget.minutes is not None:
        steps = int(60 * budget.minutes * share / pace.step_seconds)
        fields["training.steps"] = steps
        if steps < 1:
            needed = math.ceil(1000 * pace.step_seconds / 60 / share) / 1000
            raise InputError(
                f"--minutes: {budget.minutes:g} is too little, one step takes {pace.step_seconds:.2g} s; "
                f"give {needed:g} or more"
            )
    elif budget.tokens is not None:
        tokens = max(1, int(budget.tokens * share))
        fields["training.tokens"] = tokens
        steps = max(1, math.ceil(tokens / pace.step_tokens))
    else:
        assert budget.steps is not None
        steps = fields["training.steps"] = max(1, int(budget.steps * share))
    if "evaluate_every" in automatic:
        fields["training.evaluate_every"] = evaluate_every(steps, pace)
    return fields


def evaluate_every(steps: int, pace: Pace) -> int:
    """Return the number of steps between validations, of which one always follows the last step."""
    affordable = VALIDATING * steps * pace.step_seconds / max(pace.validation_seconds, 1e-9)
    count = next((count for count in VALIDATIONS if count <= affordable), VALIDATIONS[-1])
    return max(1, math.ceil(steps / count))


def _key(config: Config, job: Job[AnyTask], device: torch.device) -> str:
    """Return a digest of everything that the speed depends on; seed, learning rate and budget are left out."""
    same = {"seed": 0, "learning_rate": 1.0, "warmup_steps": 0, "evaluate_every": None, "checkpoint_every": 1}
    same |= {"epochs": None, "steps": 1, "tokens": None, "minutes": None}
    training = config.training.model_copy(update=same)
    texts = [
        config.model_copy(update={"training": training}).to_yaml(),
        job.vocabulary.fingerprint(),
        job.train.key,
        "" if job.valid is None else job.valid.key,
        json.dumps(environment(device)),
    ]
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _measure(job: Job[AnyTask], device: torch.device, seconds: float | None) -> Pace:
    """Measure the speed by training a model for a moment, which is thrown away."""
    limit = ROUGH if seconds is None else max(SHORTEST, min(LONGEST, SHARE * seconds))
    trainer = Trainer(job, device, Reporter(), {})
    trainer.model.train()
    trainer.began = time.perf_counter()
    batches = _endless_batches(trainer)
    with freed_memory_kept():
        trainer.step(next(batches))  # compiles the layer
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
    """Return the seconds of a validation, estimated from a part of a long running text."""
    valid, factor = trainer.job.valid, 1.0
    if valid is None:
        return 0.0
    if isinstance(valid, Corpus) and valid.ends is None and len(valid.ids) > PART:
        factor, valid = len(valid.ids) / PART, replace(valid, ids=valid.ids[:PART])
    started = time.perf_counter()
    trainer.task.validate(trainer.model, valid)
    return factor * (time.perf_counter() - started)
