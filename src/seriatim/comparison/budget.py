"""How many steps a budget is: a layer's speed is measured once on a machine, and kept.

The figures lie in the cache under everything that they hang on, as the choice of precision does: were they measured
anew each time, two comparisons with one seed would train for different numbers of steps, and differ.
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
from typing import Any

import torch

from ..config import Config
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.corpus import Corpus
from ..storage.atomic_files import write_whole
from ..storage.disk_cache import cache_folder, cached, seal
from ..training.environment import environment
from ..training.loop import Trainer
from ..training.reporting import Reporter
from ..training.setup import Job, prepare
from ..training.task import AnyTask
from .plan import Budget

FORMAT = 1
SHARE, LONGEST, SHORTEST = 0.08, 8.0, 1.5
"""Of a budget of time, what measuring takes; seconds at most, and at least."""
ROUGH = 0.5
"""Seconds that measuring takes where the budget is not one of time: only validations are placed by it."""
FEWEST = 3
"""Steps that are timed."""
VALIDATIONS = (8, 4, 2, 1)
"""How often the held-out text is looked at; the most that take no more than `VALIDATING` of the training's time."""
VALIDATING = 0.25
PART = 10_000
"""Tokens of a running text that are validated to see how long all of it takes."""
DEVIATION = 0.15
"""How far a training may miss its time, as a share of it, before its row says so."""
TOO_QUICK = 0.7
"""The share of the measured time of a step below which a training was given far too few of them, and trains again.

Below it, and above its inverse, what the training showed is kept in place of what was measured.
"""


@dataclass(frozen=True)
class Pace:
    """What a step takes, how many tokens it reads, and what a validation takes (0 where nothing is held out)."""

    step_seconds: float
    step_tokens: float
    validation_seconds: float


def pace_of(task: AnyTask, device: torch.device, seconds: float | None) -> tuple[Pace, str]:
    """A layer's speed on this machine, and the name it is kept under.

    Args:
        task: with a settled configuration.
        device: where it trains.
        seconds: the budget; None where it is not one of time.
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
    raise AssertionError("what was just written cannot be read")


def keep_pace(name: str, pace: Pace) -> None:
    """Puts the speed that a training has shown in place of one that has turned out wrong."""
    with suppress(OSError):  # a row is not lost because the cache is full
        write_whole(cache_folder() / name / "pace.json", json.dumps(asdict(pace)))
        seal(cache_folder() / name)


def settle_budget(config: Config, budget: Budget, pace: Pace, *, share: float, automatic: list[str]) -> dict[str, Any]:
    """The fields of a training's configuration that follow from its share of the budget.

    Args:
        config: of the training.
        budget: the whole one.
        pace: its speed.
        share: of the budget, for this training.
        automatic: the fields that were not given.

    Raises:
        InputError: the budget is shorter than one step.
    """
    fields: dict[str, Any] = {"training.epochs": None, "training.steps": None, "training.tokens": None}
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
        fields["training.tokens"] = max(1, int(budget.tokens * share))
        steps = max(1, math.ceil(fields["training.tokens"] / pace.step_tokens))
    else:
        assert budget.steps is not None
        steps = fields["training.steps"] = max(1, int(budget.steps * share))
    if "evaluate_every" in automatic:
        fields["training.evaluate_every"] = evaluate_every(steps, pace)
    return fields


def evaluate_every(steps: int, pace: Pace) -> int:
    """Steps between validations: as many validations as are worth their time, the last step's always."""
    most = VALIDATING * steps * pace.step_seconds / max(pace.validation_seconds, 1e-9)
    times = next((times for times in VALIDATIONS if times <= most), VALIDATIONS[-1])
    return max(1, math.ceil(steps / times))


def _key(config: Config, job: Job, device: torch.device) -> str:
    """The same for what trains at the same speed: seed, learning rate and budget do not matter."""
    same = {"seed": 0, "learning_rate": 1.0, "warmup_steps": 0, "evaluate_every": None, "checkpoint_every": 1}
    same |= {"epochs": None, "steps": 1, "tokens": None, "minutes": None}
    training = config.training.model_copy(update=same)
    held_out = "" if job.valid is None else job.valid.key
    what = [
        config.model_copy(update={"training": training}).to_yaml(),
        job.vocabulary.fingerprint(),
        job.train.key,
        held_out,
        json.dumps(environment(device)),
    ]
    return hashlib.blake2b("\0".join(what).encode(), digest_size=16).hexdigest()


def _measure(job: Job, device: torch.device, seconds: float | None) -> Pace:
    """Trains a model that is thrown away, for a moment."""
    most = ROUGH if seconds is None else max(SHORTEST, min(LONGEST, SHARE * seconds))
    trainer = Trainer(job, device, Reporter(), {})
    trainer.model.train()
    trainer.began = time.perf_counter()
    batches = _endless(trainer)
    with freed_memory_kept():
        trainer.step(next(batches))  # compiles what is to be compiled
        trainer.step(next(batches))
        before, steps, started = trainer.progress.tokens, 0, time.perf_counter()
        while (taken := time.perf_counter() - started) < most or (steps < FEWEST and taken < LONGEST) or not steps:
            trainer.step(next(batches))
            steps += 1
        tokens = trainer.progress.tokens - before
        return Pace(taken / steps, tokens / steps, _validation_seconds(trainer))


def _endless(trainer: Trainer) -> Iterator[list[Any]]:
    """The batches of one epoch after another."""
    while True:
        yield from trainer.steps_of_epoch()
        trainer.progress.epoch, trainer.progress.window = trainer.progress.epoch + 1, 0


def _validation_seconds(trainer: Trainer) -> float:
    """What a validation takes; of a long running text a part is measured."""
    whole, part = trainer.job.valid, trainer.job.valid
    if whole is None:
        return 0.0
    longer = 1.0
    if isinstance(whole, Corpus) and whole.ends is None and len(whole.ids) > PART:
        part, longer = replace(whole, ids=whole.ids[:PART]), len(whole.ids) / PART
    started = time.perf_counter()
    trainer.task.validate(trainer.model, part)
    return longer * (time.perf_counter() - started)
