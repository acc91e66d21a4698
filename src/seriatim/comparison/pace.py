"""The training speed of a layer, measured once on a machine and cached with a key of everything that it depends on.

If it were measured for every training, two trainings with the same seed and a budget in minutes would take different
numbers of steps and give different figures.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..config import Config
from ..data.corpus import Corpus
from ..processes.ranks import ONE_RANK
from ..storage.disk_cache import cache_folder, cached, read_entry, read_facts, seal
from ..storage.files import write_whole
from ..tasks.model_size import build_model
from ..tasks.task import TaskBatch
from ..training.checkpoints import RunWriter
from ..training.hardware import environment, freed_memory_kept
from ..training.loop import Trainer
from ..training.reporting import Reporter, SafeReporter
from ..training.settle import Settled, settle

FORMAT = 1
SHARE, LONGEST, SHORTEST = 0.08, 8.0, 1.5
"""Time to measure the speed: its share of a budget in minutes, and its bounds in seconds."""
ROUGH = 0.5
"""Seconds to measure the speed without a budget in minutes."""
MIN_STEPS = 3
"""Steps that are timed, if they take less than `LONGEST` seconds."""
PART = 10_000
"""Tokens of a running text that are validated to estimate the time for all of it."""


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
    limit = ROUGH if seconds is None else max(SHORTEST, min(LONGEST, SHARE * seconds))
    model = build_model(settled.task.builder, settled.vocabulary)
    settled.initialise(model)
    writer = RunWriter(Path("unused"), {})
    trainer = Trainer(settled, model, device, writer, SafeReporter(Reporter()), ONE_RANK)

    # Two steps before the clock starts: the first compiles the layer, the second finds its memory allocated.
    trainer.start()
    trainer.model.train()
    trainer.began = time.perf_counter()
    batches = _endless_batches(trainer)
    with freed_memory_kept():
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
    """Return the seconds of a validation, estimated from a part of a long running text."""
    valid, factor = trainer.valid, 1.0
    if valid is None:
        return 0.0
    if isinstance(valid, Corpus) and valid.ends is None and len(valid.ids) > PART:
        factor, valid = len(valid.ids) / PART, replace(valid, ids=valid.ids[:PART])
    started = time.perf_counter()
    trainer.objective.validate(trainer.model, valid)
    return factor * (time.perf_counter() - started)
