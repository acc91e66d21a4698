"""Training a run from the beginning, or resuming it from its last checkpoint."""

import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch

from ..config import Config, ConfigSource, Training, resolve
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.holding_out import share_of
from ..data.paths import check_named_by_run
from ..data.reading_progress import listening
from ..data.vocabulary import load_vocabulary
from ..distributed.ranks import ONE_RANK, Ranks, join_ranks
from ..evaluation.intervals import Metrics
from ..layers.origins import AllowCode, require_code, require_recorded_code, stacks_of, write_origins
from ..layers.outside_code import refuse_while_importing
from ..models.linear.minimization import TIME_SPENT
from ..storage.atomic_files import remove, to_json, write_whole
from ..storage.lock import locked, refuse_locked
from ..tasks import find, with_current_layer
from ..tasks.standalone import warn_of_ignored
from ..training.checkpoints import how_to_continue, saving
from ..training.estimator import Estimator, Job
from ..training.hardware import choose_device, choose_precision
from ..training.optimizers import FORMER_RATE, SGD_RATE
from ..training.rank_agreement import require_divisible, require_equal
from ..training.reporting import Record, Reporter, default_reporter
from ..training.run_files import begin_run, check_out, check_space, has_begun, remove_partial_files
from ..training.setup import prepare
from ..training.task import AnyTask, Task
from ..version import __version__
from .elastic_restart import how_to_begin, record_job
from .identity import identity, read_config
from .model_card import model_card
from .run import BASELINE, Run, load
from .simple_baseline import (
    KEY,
    MINUTES,
    baseline_task,
    beside_baseline,
    check_automatic_weight,
    check_weight,
    refuse_long,
)

FIXED = (
    *("task", "tokenizer", "model"),
    *("data.format", "data.unit", "data.text", "data.label", "data.column"),
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
        overwrite: replace the run in ``out``.
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
    with _joined(task) as ranks:
        folder = Path(resolved.out or "")
        restarts = int(ranks.gather([ranks.restarts]).max())  # each machine counts its own
        beginning = ranks.on_leader(lambda: how_to_begin(task.config, folder, restarts=restarts))
        if beginning == "resume":
            return _resume(find(read_config(folder)), folder, ranks, reporter=reporter)
        return _start(task, ranks, overwrite=overwrite or beginning == "again", reporter=reporter)


@contextmanager
def _joined(task: AnyTask) -> Iterator[Ranks]:
    """Join the ranks that train a task, which is one process if torchrun has not started several."""
    training = task.config.training
    ranks = join_ranks(choose_device(training.device).type, training.rank_timeout)
    with ranks.together():
        yield ranks


def _start(task: AnyTask, ranks: Ranks, *, overwrite: bool, reporter: Reporter | None) -> Run:
    """Train a model from the beginning. The arguments are as in `train`."""

    def check() -> None:
        folder = check_out(task.config.out, overwrite=overwrite)
        check_weight(task)
        refuse_locked(folder)

    def begin() -> None:
        check_out(task.config.out, overwrite=overwrite)  # another training may have been faster
        with saving(folder):
            begin_run(folder, task.config, job.vocabulary)
            record_job(folder)

    ranks.on_leader(check)
    folder, device = Path(str(task.config.out)), _device(task, ranks)
    torch.manual_seed(task.config.training.seed)
    reporter = _reporter(reporter, ranks)
    with ranks.one_first(of_machine=True), listening(reporter.reading):
        job = prepare(task, folder)
    check_automatic_weight(task)
    _choose_precision(task, device)
    require_equal(job, ranks)
    require_divisible(job, ranks)
    needed = task.estimator.space_needed(job.model, job.vocabulary, task.config.training)
    ranks.on_leader(lambda: check_space(folder, needed))
    with _locked(folder, ranks):
        ranks.on_leader(begin)
        ranks.advice = lambda: how_to_continue(folder)
        _require_visible(folder, ranks)
        estimator = _estimator(job, device, reporter, ranks)
        if estimator.divides or ranks.leads:
            estimator.start()
        return _fit(estimator, job)


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
    saved, folder = read_config(path), Path(path)
    require_code(folder, stacks_of(saved), allow_code=allow_code)
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
        if (folder / "summary.json").exists() and (folder / "model.safetensors").exists():
            warnings.warn(f"{folder}: {task.estimator.finished}", stacklevel=2)
            return load(folder)
    with _joined(task) as ranks:
        if not task.estimator.resumable or not has_begun(folder):
            beginning = find(resolve(config, {"out": str(folder)}))
            return _start(beginning, ranks, overwrite=True, reporter=reporter)
        return _resume(task, folder, ranks, reporter=reporter)


def _resume(task: AnyTask, folder: Path, ranks: Ranks, *, reporter: Reporter | None) -> Run:
    """Resume the training in a folder from its last checkpoint, with the configuration of ``task``."""
    config = task.config

    def begin() -> None:
        remove_partial_files(folder)
        for name in ("summary.json", "README.md"):  # they describe a training that has ended
            remove(folder / name)
        write_whole(folder / "config.yaml", config.to_yaml())
        write_origins(folder, stacks_of(config))

    with _locked(folder, ranks):
        vocabulary, device = load_vocabulary(folder), _device(task, ranks)
        _choose_precision(task, device)
        reporter = _reporter(reporter, ranks)
        with ranks.one_first(of_machine=True), listening(reporter.reading):
            job = prepare(task, folder, vocabulary)
        require_equal(job, ranks)
        require_divisible(job, ranks)
        needed = task.estimator.space_needed(job.model, vocabulary, config.training)
        ranks.on_leader(lambda: check_space(folder, needed))
        estimator = _estimator(job, device, reporter, ranks)
        ranks.advice = lambda: how_to_continue(folder)
        estimator.resume()
        ranks.on_leader(begin)
        return _fit(estimator, job)


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


def _reporter(reporter: Reporter | None, ranks: Ranks) -> Reporter:
    """Return what hears of the training on this rank: only the leader reports."""
    return (reporter or default_reporter()) if ranks.leads else Reporter()


def _estimator(job: Job[AnyTask], device: torch.device, reporter: Reporter, ranks: Ranks = ONE_RANK) -> Estimator:
    metadata = identity(job.task.config, job.vocabulary)
    return job.task.estimator(job, device, reporter, metadata, ranks)


def _fit(estimator: Estimator, job: Job[AnyTask], *, part_of: Path | None = None) -> Run:
    """Train, then write `summary.json` and the model card; ``part_of`` is the run that a baseline belongs to."""
    finished: list[Run] = []
    if estimator.divides or estimator.ranks.leads:
        _report_beginning(estimator, job)
        with freed_memory_kept():
            estimator.fit()
    estimator.ranks.on_leader(lambda: finished.append(_finish(estimator, job, part_of)))
    return finished[0] if finished else load(job.folder)


def _describe(estimator: Estimator, job: Job[AnyTask]) -> Record:
    """Return what both the first and the last report say."""
    return {
        "parameters": sum(parameter.numel() for parameter in estimator.model.parameters()),
        "vocabulary_size": job.vocabulary.tokenizer.vocabulary_size,
        "precision": job.task.config.training.precision,
        "device": str(estimator.device),
        "ranks": estimator.ranks.count,
    }


def _report_beginning(estimator: Estimator, job: Job[AnyTask]) -> None:
    """Report what is trained on what."""
    task, config = job.task, job.task.config
    beginning = {
        **_describe(estimator, job),
        "train": task.describe(job.train),
        "tokenizer_sample": task.tokenizer_sample(job.train),
        "valid": None if job.valid is None else task.describe(job.valid),
        "held_out_share": task.validation_name() if share_of(task.validation_spec()) else "",
        "ceiling": _ceiling(config.training),
        "initial": _initial(config),
        "figures": task.figures,
        "step": estimator.progress.step,
        "nothing_left": estimator.nothing_left(),
        "work_unit": estimator.work_unit,
    }
    estimator.report("begin", beginning)


def _finish(estimator: Estimator, job: Job[AnyTask], part_of: Path | None) -> Run:
    """Train the simple baseline, and write `summary.json` and the model card."""
    task, config, progress = job.task, job.task.config, estimator.progress
    simple = _train_baseline(job)
    if simple is None and config.training.baseline_weight:
        _set_weight(job, 0.0)
    run = load(job.folder)
    run.summary = {
        "task": config.task,
        "layer": config.model.layer,
        **_describe(estimator, job),
        "tokens_per_second": progress.tokens / max(progress.training_seconds, 1e-9),
        "seconds": progress.seconds,
        "steps": progress.step,
        "epochs": progress.epoch,
        "ended": estimator.ended,
        "tokens": progress.tokens,
        **task.training_statistics(job.train),
        "skipped_steps": progress.skipped,
        "best_valid": progress.best_valid,
        "threads": torch.get_num_threads(),
        "versions": {"seriatim": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }
    if simple is not None:
        _blend(run, simple, job)
    if job.valid is not None:
        baseline = {"name": task.baseline_name, **task.baseline(job.train, job.valid, job.vocabulary)}
        if simple is not None:
            run.summary["valid"], baseline[KEY], network = beside_baseline(run, simple, job.valid)
            run.summary |= {"network": network} if network else {}
        else:
            run.summary["valid"] = _metrics(run, job, estimator)
        run.summary["baseline"] = baseline
    with saving(part_of or job.folder):
        write_whole(job.folder / "README.md", model_card(run))
        write_whole(job.folder / "summary.json", to_json(run.summary, indent=2) + "\n")  # last: the run is complete
    estimator.report("end", run.summary)
    return run


def _metrics(run: Run, job: Job[AnyTask], estimator: Estimator) -> Metrics:
    """Return the held-out metrics of a run, from its last validation if that measured all of them on its weights."""
    partial = type(job.task).validate is not Task.validate
    return (None if partial else estimator.metrics) or job.task.evaluate(run.model, job.valid)


def _blend(run: Run, simple: Run, job: Job[AnyTask]) -> None:
    """Blend the answers of a run with its simple baseline, if its configuration says so."""
    task, weight = job.task, job.task.config.training.baseline_weight
    if weight is None:
        without = task.usual_weight
        weight = "auto" if without and job.valid is not None else without
    if weight == "auto":
        weight = task.best_weight(run.model, simple.model, job.valid)
    _set_weight(job, weight)
    run.config.training.baseline_weight = weight
    if weight:
        run.blend(simple, weight)
        run.summary["baseline_weight"] = weight


def _set_weight(job: Job[AnyTask], weight: float) -> None:
    """Write the weight of the simple baseline into the configuration of a run."""
    job.task.config.training.baseline_weight = weight
    with saving(job.folder):
        write_whole(job.folder / "config.yaml", job.task.config.to_yaml())


def _train_baseline(job: Job[AnyTask]) -> Run | None:
    """Train the simple baseline of a run in a folder of its own; None if it has none.

    Warns:
        UserWarning: it cannot be trained on this data.
    """
    task, folder = baseline_task(job.task), job.folder / BASELINE
    remove(folder)
    if task is None:
        return None
    try:
        refuse_long(task, job.train)
        task.check(job.train, job.valid)
        inner = Job(task, folder, job.vocabulary, task.make_model(job.vocabulary), job.batches, job.train, job.valid)
        estimator = _estimator(inner, torch.device("cpu"), Reporter())
        with saving(job.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on its options, which nobody has set
            folder.mkdir()
            begin_run(folder, task.config, job.vocabulary)
            estimator.start()
            simple = _fit(estimator, inner, part_of=job.folder)
    except InputError as error:
        remove(folder)
        warnings.warn(f"{job.folder}: the simple baseline was not trained: {error}", stacklevel=2)
        return None
    if simple.summary["ended"].startswith(TIME_SPENT):
        advice = f"train it longer with --layer {task.config.model.layer}"
        warnings.warn(
            f"{job.folder}: the simple baseline had not converged after {MINUTES:g} minutes; {advice}", stacklevel=2
        )
    return simple


def _choose_precision(task: AnyTask, device: torch.device) -> None:
    """Write the precision into the configuration, which the run saves."""
    training = task.config.training
    training.precision = choose_precision(training.precision, device)


def _ceiling(training: Training) -> str:
    """Return in words when a training ends that has a limit of minutes; an empty string if it is the only budget."""
    if training.minutes is None:
        return ""
    longest = f"for {training.minutes:g} minutes at most"
    if training.patience is not None:
        why = f"until {training.patience} validations in a row bring no improvement"
        return f"trains {why}, {longest} (--patience, --minutes)"
    for unit in ("epochs", "steps", "tokens"):
        if (number := getattr(training, unit)) is not None:
            return f"trains for {number:,} {unit}, {longest} (--{unit}, --minutes)"
    return ""


def _initial(config: Config) -> str:
    """Return in words which run a training starts from; an empty string for new weights."""
    if config.training.init is None:
        return ""
    sees_all = config.model.bidirectional or not config.model.options.get("causal", True)
    one_way = "" if sees_all else ", which reads in one direction"
    parts = f"the tokenizer, the embedding and the layer {config.model.layer}{one_way}"
    return f"starts from {parts}, of {config.training.init}, and from its output layer if its task is the same"
