"""Trainings from their beginning, or from their last checkpoint, to the run they leave behind."""

import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..config import Config, resolve
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.paths import check_named_by_run
from ..data.vocabulary import load_vocabulary
from ..layers.origins import AllowCode, require_code, require_recorded_code, stacks_of, write_origins
from ..layers.outside_code import refuse_while_importing
from ..storage.atomic_files import remove, to_json, write_whole
from ..storage.lock import locked, refuse_locked
from ..tasks import find, with_current_layer
from ..training.checkpoints import saving
from ..training.loop import Trainer
from ..training.notebook import default_reporter
from ..training.optimizers import FORMER_RATE, SGD_RATE, default_rate
from ..training.precision import choose_device, choose_precision
from ..training.reporting import Reporter, SafeReporter
from ..training.setup import Job, begin_run, begun, check_out, clear_partial, prepare
from ..training.space import check_space, space_needed, space_to_count
from ..training.task import AnyTask, Task
from ..version import __version__
from .identity import identity, read_config, run_folder
from .model_card import model_card
from .run import Run, load

FIXED = (
    "task",
    "data.format",
    "data.unit",
    "data.text",
    "data.label",
    "data.column",
    "tokenizer",
    "model",
    "training.batch_size",
    "training.sequence_length",
    "training.accumulate",
    "training.optimizer",
    "training.seed",
    "training.init",
    "training.keep",
)
"""What a checkpoint counts on, beside the contents of the data, which may lie elsewhere."""


def train(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    allow_code: AllowCode = False,
) -> Run:
    """Train a model.

    Args:
        config: a config, a dict, or the path of a YAML file; it names the folder to write as ``out``.
        overrides: dotted names to values, applied last.
        overwrite: replace the run that stands in ``out``.
        reporter: shows or records the training; see `Reporter`. None shows progress inside a notebook and nothing
            elsewhere; ``Reporter()`` shows nothing anywhere.
        allow_code: whether code outside the library may be imported where ``config`` is the file of a run; see `load`.

    Returns:
        The run, with the weights that were best on held-out data, or the last ones where there is none and with
        ``training.keep: last``.

    Raises:
        InputError: whatever is wrong with configuration or data, before anything is written.
    """
    refuse_while_importing("seriatim.train")
    resolved = resolve(config, overrides)
    if isinstance(config, str | Path):
        require_recorded_code(Path(config).parent, stacks_of(resolved), allow_code=allow_code)
    return _start(find(with_current_layer(resolved)), overwrite=overwrite, reporter=reporter)


def _start(task: AnyTask, *, overwrite: bool, reporter: Reporter | None) -> Run:
    """Train a model from the beginning; arguments as of `train`."""
    config = task.config
    folder = check_out(config.out, overwrite=overwrite)
    refuse_locked(folder)
    device = choose_device(config.training.device)
    torch.manual_seed(config.training.seed)
    job = prepare(task, folder)
    _settle(config, device, counted=task.trainer is not None)
    words = job.vocabulary.tokenizer.vocabulary_size
    check_space(folder, space_to_count(words) if task.trainer else space_needed(job.model, config.training))
    with locked(folder):
        check_out(config.out, overwrite=overwrite)  # another training may have been quicker
        with saving(folder):
            begin_run(folder, config, job.vocabulary)
        return _fit(_trainer(job, device, reporter))


def resume(
    path: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    allow_code: AllowCode = False,
) -> Run:
    """Goes on with a training that was cut off, or whose budget was raised; from the start if nothing was saved yet.

    Args:
        path: the run's folder.
        overrides: dotted names to values; data, tokenizer, model, seed and the shape of batches stay as they are.
        reporter: as of `train`.
        allow_code: whether code outside the library may be imported; see `load`.

    Raises:
        InputError: no run, no checkpoint, or a change of what the checkpoint counts on.
    """
    folder = run_folder(path)
    kept = read_config(folder)
    if kept.training.learning_rate is None:
        kept.training.learning_rate = SGD_RATE if kept.training.optimizer == "sgd" else FORMER_RATE
    require_code(folder, stacks_of(kept), allow_code=allow_code)
    task = find(resolve(kept, overrides))
    config = task.config
    for name, spec in task.named_files().items():
        if name not in (overrides or {}):
            check_named_by_run(spec, name, downloads=True)
    for name in FIXED:
        if _field(config, name) != _field(kept, name):
            raise InputError(f"{name}: cannot change when a run goes on; train a new one with --out")
    counted = task.trainer is not None
    if counted and config.data.train is None:
        raise InputError(f"{folder}: imported, not trained; import it again with --overwrite")
    if counted and (folder / "summary.json").exists() and (folder / "model.safetensors").exists():
        warnings.warn(f"{folder}: counted in one go, nothing is left to do; count anew with --overwrite", stacklevel=2)
        return load(folder)
    if counted or not begun(folder):
        return _start(find(resolve(config, {"out": str(folder)})), overwrite=True, reporter=reporter)
    with locked(folder):
        vocabulary = load_vocabulary(folder)
        device = choose_device(config.training.device)
        _settle(config, device, counted=False)
        job = prepare(task, folder, vocabulary)
        check_space(folder, space_needed(job.model, config.training))
        trainer = _trainer(job, device, reporter)
        trainer.resume()
        clear_partial(folder)
        for name in ("summary.json", "README.md"):  # which tell of a training that has ended
            remove(folder / name)
        write_whole(folder / "config.yaml", config.to_yaml())
        write_origins(folder, stacks_of(config))
        return _fit(trainer)


def _trainer(job: Job, device: torch.device, reporter: Reporter | None) -> Trainer:
    task = job.task
    made: Trainer = (task.trainer or Trainer)(
        job, device, SafeReporter(reporter or default_reporter()), identity(task.config, job.vocabulary)
    )
    return made


def _fit(trainer: Trainer) -> Run:
    """Trains, then writes `summary.json` and the model card."""
    job, task, config = trainer.job, trainer.task, trainer.task.config
    trainer.reporter.begin(
        {
            **_facts(trainer),
            "train": task.describe(job.train),
            "valid": None if job.valid is None else task.describe(job.valid),
            "figures": task.figures,
            "step": trainer.progress.step,
            "nothing_left": trainer.why_ended(trainer.progress.seconds),
        }
    )
    with freed_memory_kept():
        progress = trainer.run()
    run = load(job.folder)
    run.summary = {
        "task": config.task,
        "layer": config.model.layer,
        **_facts(trainer),
        "tokens_per_second": progress.tokens / max(progress.training_seconds, 1e-9),
        "seconds": progress.seconds,
        "steps": progress.step,
        "epochs": progress.epoch,
        "ended": trainer.ended,
        "tokens": progress.tokens,
        **task.facts(job.train),
        "skipped_steps": progress.skipped,
        "best_valid": progress.best_valid,
        "threads": torch.get_num_threads(),
        "versions": {"seriatim": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }
    if job.valid is not None:
        again = type(task).validate is not Task.validate  # which measures less than is told in the end
        run.summary["valid"] = (None if again else trainer.metrics) or task.evaluate(run.model, job.valid)
        simplest = task.baseline(job.train, job.valid, job.vocabulary)
        run.summary["baseline"] = {"name": task.baseline_name, **simplest}
    with saving(job.folder):
        write_whole(job.folder / "README.md", model_card(job.folder.name, task, run.summary, run.model))
        write_whole(job.folder / "summary.json", to_json(run.summary, indent=2) + "\n")  # last: now it is finished
    trainer.reporter.end(run.summary)
    return run


def _facts(trainer: Trainer) -> dict[str, Any]:
    """What is known of a training before its first step."""
    return {
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "vocabulary_size": trainer.job.vocabulary.tokenizer.vocabulary_size,
        "precision": trainer.task.config.training.precision,
        "device": str(trainer.device),
    }


def _settle(config: Config, device: torch.device, *, counted: bool) -> None:
    """Writes the chosen precision and learning rate into the configuration, which the run keeps."""
    config.training.precision = choose_precision(config.training.precision, device)  # type: ignore[assignment]
    if config.training.learning_rate is None and not counted:
        config.training.learning_rate = default_rate(config)


def _field(config: Config, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
