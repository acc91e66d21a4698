"""Training a run from the beginning, or resuming it from its last checkpoint."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch

from ..config import ConfigSource, Training, resolve
from ..core.errors import InputError, shown
from ..data.paths import check_named_by_run
from ..data.reading_progress import listening
from ..data.vocabulary import load_vocabulary
from ..layers.origins import AllowCode, require_code, require_recorded_code, stacks_of, write_origins
from ..layers.outside_code import refuse_while_importing
from ..processes.ranks import Ranks, join_ranks
from ..storage.atomic_files import write_whole
from ..storage.lock import locked, refuse_locked
from ..storage.written_folders import CARD, RUN, discard, finish_replacing, outer, place_of, recover, remove_written
from ..tasks import find, with_current_layer
from ..tasks.standalone import warn_of_ignored
from ..training.checkpoints import how_to_continue, saving
from ..training.estimator import Job
from ..training.hardware import choose_device, choose_precision
from ..training.optimizers import FORMER_RATE, SGD_RATE
from ..training.rank_agreement import require_divisible, require_equal
from ..training.reporting import Reporter
from ..training.run_files import (
    begin_run,
    check_out,
    check_place,
    check_space,
    files_read,
    has_begun,
    refuse_overwriting,
    remove_partial_files,
)
from ..training.setup import prepare
from ..training.task import AnyTask
from .elastic_restart import how_to_begin, record_job
from .finishing import choose_reporter, fit, make_estimator
from .identity import read_config
from .run import Run, load
from .simple_baseline import (
    check_automatic_weight,
    check_weight,
)

FIXED = (
    *("task", "tokenizer", "model"),
    *("data.format", "data.unit", "data.text", "data.label", "data.column", "data.spellings", "data.alternatives"),
    *("training.batch_size", "training.sequence_length", "training.accumulate", "training.optimizer"),
    *("training.seed", "training.init", "training.keep"),
)
"""Fields that a resumed training cannot change. The data may have moved, but its content must be the same."""


def train(
    config: ConfigSource,
    *,
    overrides: Mapping[str, object] | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    allow_code: AllowCode = False,
) -> Run:
    """Train a model.

    Args:
        config: a configuration, a dict, or the path of a YAML file; its ``out`` names the folder to write.
        overrides: values by dotted name, applied last.
        overwrite: replace the run in ``out``, as soon as the new one has weights.
        reporter: shows or records the training; see `Reporter`. None shows progress in a notebook and nothing
            elsewhere; ``Reporter()`` shows nothing anywhere.
        allow_code: whether code outside the library may be imported if ``config`` is the file of a run; see `load`.

    Returns:
        The run, with the weights that were best on held-out data; with the last ones if there is no such data or
        ``training.keep`` is ``last``.

    Raises:
        InputError: configuration or data have a problem; nothing is written before.
    """
    refuse_while_importing("seriatim.train")
    resolved = resolve(config, overrides)
    if isinstance(config, str | Path):
        require_recorded_code(Path(config).parent, stacks_of(resolved), allow_code=allow_code)
    task = find(with_current_layer(resolved))
    warn_of_ignored(task, overrides or {})
    reads = (str(config) if isinstance(config, str | Path) else None, *files_read(task.config))
    with _joined(task) as ranks:
        folder = Path(resolved.out or "")
        restarts = int(ranks.gather([ranks.restarts]).max())  # each machine counts its own
        beginning = ranks.on_leader(lambda: how_to_begin(task.config, folder, restarts=restarts))
        if beginning == "resume":
            return _resume(find(read_config(place_of(folder, RUN))), folder, ranks, reporter=reporter)
        return _start(task, ranks, reads=reads, overwrite=overwrite or beginning == "again", reporter=reporter)


@contextmanager
def _joined(task: AnyTask) -> Iterator[Ranks]:
    """Join the ranks that train a task, which is one process if torchrun has not started several."""
    training = task.config.training
    ranks = join_ranks(choose_device(training.device).type, training.rank_timeout)
    with ranks.together():
        yield ranks


def _start(
    task: AnyTask, ranks: Ranks, *, reads: Sequence[str | None], overwrite: bool, reporter: Reporter | None
) -> Run:
    """Train a model from the beginning. ``reads`` are the files it reads; the other arguments are as in `train`."""

    def check() -> None:
        refuse_overwriting(check_place(task.config.out), reads)
        check_weight(task)
        task.require_resources()
        refuse_locked(folder)
        check_out(task.config.out, overwrite=overwrite)

    def begin() -> None:
        check_out(task.config.out, overwrite=overwrite)  # another training may have been faster
        with saving(folder):
            record_job(begin_run(folder, task.config, job.vocabulary))

    folder, device = Path(str(task.config.out)), _device(task, ranks)
    ranks.on_leader(check)
    torch.manual_seed(task.config.training.seed)
    reporter = choose_reporter(reporter, ranks)
    with ranks.one_first(of_machine=True), listening(reporter.reading):
        job = prepare(task, folder)
    check_automatic_weight(task)
    _choose_precision(task, device)
    require_equal(job, ranks)
    require_divisible(job, ranks)
    needed = task.estimator.space_needed(job.model, job.vocabulary, task.config.training)
    ranks.on_leader(lambda: check_space(folder, needed))
    with _locked(folder, ranks), _dropped_unless_begun(job, ranks):
        ranks.on_leader(begin)
        job.folder = place_of(folder, RUN)
        ranks.advice = lambda: how_to_continue(folder)
        _require_visible(job.folder, ranks)
        estimator = make_estimator(job, device, reporter, ranks)
        if estimator.divides or ranks.leads:
            estimator.start()
        return fit(estimator, job)


@contextmanager
def _dropped_unless_begun(job: Job[AnyTask], ranks: Ranks) -> Iterator[None]:
    """Remove the stage of a run that was to replace another if an error leaves nothing there to resume from."""
    try:
        yield
    except BaseException:
        if ranks.leads and job.folder != outer(job.folder) and not has_begun(job.folder):
            discard(job.folder, RUN)
        raise


def resume(
    path: str | Path,
    *,
    overrides: Mapping[str, object] | None = None,
    reporter: Reporter | None = None,
    allow_code: AllowCode = False,
) -> Run:
    """Resume a training that was interrupted or whose budget was raised.

    Args:
        path: the folder of the run.
        overrides: values by dotted name; data, tokenizer, model, seed and the shape of batches cannot change.
        reporter: as in `train`.
        allow_code: whether code outside the library may be imported; see `load`.

    Raises:
        InputError: there is no run or no checkpoint, or a field changed that the checkpoint depends on.
    """
    if not isinstance(path, str | Path):
        raise InputError(f"resume: the run must be the path of a folder; got {shown(path)}")
    folder = outer(Path(path))
    finish_replacing(folder)
    place = place_of(folder, RUN)
    saved = read_config(place if str(path) else path)
    if place != folder:
        kept = f"the run that is there stays until this one has weights (to forget this one, remove {place})"
        warnings.warn(f"{folder}: goes on with the training that is to replace the run there; {kept}", stacklevel=2)
    require_code(place, stacks_of(saved), allow_code=allow_code)
    if find(saved).uses_learning_rate:
        _fill_former_defaults(saved.training)
    task = find(resolve(saved, overrides))
    config = task.config
    for name, spec in task.named_files().items():
        if name not in (overrides or {}):
            check_named_by_run(spec, name, downloads=True)
    for name in FIXED:
        if attrgetter(name)(config) != attrgetter(name)(saved):
            raise InputError(f"{name}: cannot be changed when a run is resumed; train a new one with --out")
    if not task.estimator.resumable:
        if config.data.train is None:
            raise InputError(f"{folder}: imported, not trained; import it again with --overwrite")
        if (place / "summary.json").exists() and (place / "model.safetensors").exists():
            warnings.warn(f"{folder}: {task.estimator.finished}", stacklevel=2)
            return load(folder)
    refuse_overwriting(folder, files_read(config, resuming=True))
    with _joined(task) as ranks:
        if not task.estimator.resumable or not has_begun(place):
            beginning = find(resolve(config, {"out": str(folder)}))
            return _start(beginning, ranks, reads=files_read(config), overwrite=True, reporter=reporter)
        return _resume(task, folder, ranks, reporter=reporter)


def _resume(task: AnyTask, folder: Path, ranks: Ranks, *, reporter: Reporter | None) -> Run:
    """Resume the training in a folder from its last checkpoint, with the configuration of ``task``."""
    config = task.config

    def begin() -> None:
        remove_partial_files(place)
        remove_written(place, RUN, "summary.json", CARD)  # they describe a training that has ended
        write_whole(job.path("config.yaml"), config.to_yaml())
        write_origins(place, stacks_of(config))

    with _locked(folder, ranks):
        ranks.on_leader(lambda: recover(folder))
        place = place_of(folder, RUN)
        vocabulary, device = load_vocabulary(place), _device(task, ranks)
        _choose_precision(task, device)
        reporter = choose_reporter(reporter, ranks)
        with ranks.one_first(of_machine=True), listening(reporter.reading):
            job = prepare(task, place, vocabulary)
        require_equal(job, ranks)
        require_divisible(job, ranks)
        needed = task.estimator.space_needed(job.model, vocabulary, config.training)
        ranks.on_leader(lambda: check_space(folder, needed, written=place))
        estimator = make_estimator(job, device, reporter, ranks)
        ranks.advice = lambda: how_to_continue(folder)
        estimator.resume()
        ranks.on_leader(begin)
        return fit(estimator, job)


def _device(task: AnyTask, ranks: Ranks) -> torch.device:
    """Return the device of this rank."""
    device = choose_device(task.config.training.device, local_index=ranks.local_index if ranks.count > 1 else None)
    if device.type == "cuda" and ranks.count > 1:
        torch.cuda.set_device(device)
    return device


def _locked(folder: Path, ranks: Ranks) -> AbstractContextManager[None]:
    """Return a context in which only this training writes into a folder; the leader holds the lock."""
    return locked(folder) if ranks.leads else nullcontext()


def _require_visible(folder: Path, ranks: Ranks) -> None:
    """Raise InputError on every rank if one does not see the run that the leader has begun."""
    blind = np.flatnonzero(ranks.gather([not (folder / "config.yaml").exists()])[:, 0])
    if len(blind):
        raise InputError(
            f"{folder}: rank {blind[0]} does not see the run that rank 0 has begun; give a folder (--out) on a file "
            "system that all ranks share"
        )


def _fill_former_defaults(training: Training) -> None:
    """Fill in what the configuration of a run of an earlier version leaves open, in place."""
    if training.learning_rate is None:
        training.learning_rate = SGD_RATE if training.optimizer == "sgd" else FORMER_RATE
    if training.average is None:
        training.average = 0.0


def _choose_precision(task: AnyTask, device: torch.device) -> None:
    """Write the precision into the configuration, which the run saves."""
    training = task.config.training
    training.precision = choose_precision(training.precision, device)
