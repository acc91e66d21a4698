"""A training, from top to bottom: `train` or `resume`, which users call; then settle, prepare, loop, finish.

`run_training` is all of the last four, for a new run and for one that resumes, in one process and on several ranks.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..config import Config, ConfigSource, Training, resolve
from ..core.errors import FixedError, MissingError, NotSupportedError, RangeError, shown
from ..data.source_content import listening
from ..data.sources import check_named_by_run
from ..data.vocabulary import load_vocabulary
from ..layers.outside_code import (
    AllowCode,
    refuse_while_importing,
    require_code,
    require_recorded_code,
    stacks_of,
    write_origins,
)
from ..processes.ranks import Ranks, join_ranks
from ..storage.files import locked, refuse_locked, write_whole
from ..storage.weights import no_larger_than
from ..storage.written_folders import (
    CARD,
    RUN,
    discard,
    finish_replacing,
    latest_folder,
    outer,
    recover,
    remove_written,
)
from ..tasks import kind_of, new_task, open_task, with_defaults, with_imported_layers
from ..tasks.model_size import build_model
from ..training.checkpoints import (
    Progress,
    RunWriter,
    checkpoint_weights,
    how_to_continue,
    saving,
    space_of_fitting,
    space_of_training,
)
from ..training.direct_fit import DirectFit
from ..training.finish import finish
from ..training.hardware import choose_device, freed_memory_kept, waiting_threads_asleep
from ..training.loop import Trainer
from ..training.parallel import how_to_begin, record_job, require_divisible, require_equal
from ..training.reporting import Reporter, SafeReporter, beginning, default_reporter, describe_model
from ..training.run_files import (
    DECISIONS,
    begin_run,
    check_folder,
    check_out,
    check_space,
    files_read,
    has_begun,
    identity,
    read_config,
    refuse_overwriting,
    remove_partial_files,
)
from ..training.settle import Settled, check_weight, settle, settle_again
from .run import Run, load

FIXED = (
    *("task", "tokenizer", "model", "data.features"),
    *("data.format", "data.unit", "data.text", "data.label", "data.column", "data.spellings", "data.alternatives"),
    *("training.batch_size", "training.sequence_length", "training.accumulate", "training.optimizer"),
    *("training.seed", "training.init", "training.keep"),
)
"""Fields that a resumed training cannot change. The data may have moved, but its content must be the same."""
STEPS_ONLY = {
    *(f"training.{name}" for name in ("epochs", "steps", "tokens", "batch_size", "optimizer", "learning_rate")),
    *(f"training.{name}" for name in ("schedule", "warmup_steps", "weight_decay", "clip", "patience", "accumulate")),
    *(f"model.{name}" for name in ("embedding_size", "hidden_size", "num_layers", "dropout", "bidirectional")),
}
"""Fields that mean nothing for models that are fitted directly."""


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
    given = resolve(config, overrides)
    file = config if isinstance(config, str | Path) else None
    if file is not None:
        require_recorded_code(Path(file).parent, stacks_of(given), allow_code=allow_code)
    given = with_imported_layers(given)
    _warn_of_ignored(given, overrides or {})
    reads = (None if file is None else str(file), *files_read(given))
    return load(run_training(given, reporter=reporter, overwrite=overwrite, reads=reads))


def _warn_of_ignored(config: Config, given: Mapping[str, object]) -> None:
    """Warn of given fields that mean nothing for a model that takes no steps."""
    ignored = [name for name in given if name in STEPS_ONLY]
    if ignored and kind_of(config).layer is not None:
        layer = config.model.layer
        warnings.warn(f"{', '.join(ignored)}: no effect on {layer}, which takes no steps; leave it out", stacklevel=3)


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
        raise RangeError(f"resume: {shown(path)} is not the path of a folder; give that of a run")
    folder = outer(Path(path))
    finish_replacing(folder)
    begun = latest_folder(folder, RUN)
    saved = read_config(begun if str(path) else path)
    if begun != folder:
        kept = f"the run that is there stays until this one has weights (to forget this one, remove {begun})"
        warnings.warn(f"{folder}: goes on with the training that is to replace the run there; {kept}", stacklevel=2)

    # The file of a run is not trusted more than its sender: what it names is checked before it is imported or read.
    require_code(begun, stacks_of(saved), allow_code=allow_code)
    config = resolve(saved, {**(overrides or {}), "out": str(folder)})
    task = open_task(config)
    for name, source in task.files.named().items():
        if name not in (overrides or {}):
            check_named_by_run(source, name, downloads=True)
    _refuse_changes(saved, config)

    # A model that is fitted directly has no checkpoints: it is there, or it is fitted again.
    if task.objective is None:
        if config.data.train is None:
            raise NotSupportedError(f"{folder}: imported, not trained; import it again with --overwrite")
        if (begun / "summary.json").exists() and (begun / "model.safetensors").exists():
            done = "trained until its loss no longer fell, nothing is left to do; train again"
            if task.kind.fitting == "counted":
                done = "counted in one pass, nothing is left to do; count again"
            warnings.warn(f"{folder}: {done} with --overwrite", stacklevel=2)
            return load(folder)
    refuse_overwriting(folder, files_read(config, resuming=True))
    if task.objective is None or not has_begun(begun):
        return load(run_training(config, reporter=reporter, overwrite=True, reads=files_read(config), begun=begun))
    return load(run_training(config, reporter=reporter, resume=True))


def _refuse_changes(saved: Config, config: Config) -> None:
    """Raise InputError for a field that the checkpoint depends on and that differs from that of the run."""
    before, now = saved.model_dump(), config.model_dump()
    for name in FIXED:
        section, _, key = name.partition(".")
        if (before[section][key] if key else before[section]) != (now[section][key] if key else now[section]):
            raise FixedError(f"{name}: cannot be changed when a run is resumed; train a new one with --out")


# Settle, prepare, loop, finish


def run_training(
    config: Config,
    *,
    reporter: Reporter | None = None,
    resume: bool = False,
    overwrite: bool = False,
    reads: Sequence[str | None] = (),
    begun: Path | None = None,
) -> Path:
    """Train a model, and write it into the folder ``out`` of the configuration.

    Args:
        config: the configuration as the user gave it; to resume, that of the run with what the user changes.
        reporter: shows or records the training; None shows progress in a notebook and nothing elsewhere.
        resume: go on from the last checkpoint in the folder.
        overwrite: replace the run in the folder, as soon as the new one has weights.
        reads: the files that the command reads, over which nothing is written.
        begun: the folder of the same training, if it was killed before its first checkpoint.

    Returns:
        The folder.

    Raises:
        InputError: configuration or data have a problem; nothing is written before.
        TrainingError: the training failed.
        Interrupted: a signal came; a checkpoint is written.
    """
    with waiting_threads_asleep(), _joined(config.training) as ranks:
        folder = Path(config.out or "")
        reporter = (reporter or default_reporter()) if ranks.is_rank_zero else Reporter()
        if not resume:
            # torchrun starts a training again after a failure; then it goes on with the run that it has begun.
            restarts = int(ranks.gather([ranks.restarts]).max())  # each machine counts its own
            beginning = ranks.on_rank_zero(lambda: how_to_begin(with_defaults(config), folder, restarts=restarts))
            overwrite = overwrite or beginning == "again"
            if beginning == "resume":
                config, resume = read_config(latest_folder(folder, RUN)), True
        device = _device(config.training, ranks)
        if resume:
            return _resume(config, folder, device, ranks, reporter)
        return _begin(config, folder, device, ranks, reporter, overwrite=overwrite, reads=reads, begun=begun)


def _begin(
    config: Config,
    folder: Path,
    device: torch.device,
    ranks: Ranks,
    reporter: Reporter,
    *,
    overwrite: bool,
    reads: Sequence[str | None],
    begun: Path | None,
) -> Path:
    """Train a new model."""

    def check() -> None:
        refuse_overwriting(check_folder(config.out), reads)
        check_weight(with_defaults(config))
        if (fitter := new_task(config).fitter) is not None:
            fitter.require_resources()
        refuse_locked(folder)
        check_out(config.out, overwrite=overwrite)

    def begin() -> None:
        check_out(config.out, overwrite=overwrite)  # another training may have been faster
        with saving(folder):
            record_job(begin_run(folder, settled.config, settled.vocabulary, settled.to_json()))

    safe = SafeReporter(reporter)

    # Settle: every open value is decided, by the data and the machine, before anything is written. The first rank of a
    # machine encodes the data into its cache; the others read them from there.
    ranks.on_rank_zero(check)
    torch.manual_seed(config.training.seed)
    with ranks.rank_zero_first(of_machine=True), listening(reporter.reading):
        settled = settle(config, device, begun and begun / DECISIONS)
        model = build_model(settled.task.builder, settled.vocabulary)
        settled.initialise(model)
    check_weight(settled.config, has_validation=settled.valid is not None)
    require_equal(settled, ranks)
    require_divisible(settled, model, ranks)
    needed = _space_needed(settled, model)
    ranks.on_rank_zero(lambda: check_space(folder, needed))

    with _locked(folder, ranks):
        # Prepare: from here on the run exists, and a training that is killed can resume.
        ranks.on_rank_zero(begin)
        stage = latest_folder(folder, RUN)
        writer = RunWriter(stage, identity(settled.config, settled.vocabulary))
        with _dropped_unless_begun(writer, ranks):
            ranks.advice = lambda: how_to_continue(folder)
            _require_visible(stage, ranks)
            if settled.task.objective is not None:
                trainer: Trainer | DirectFit = Trainer(settled, model, device, writer, safe, ranks)
            else:
                trainer = DirectFit(settled, writer, safe, model, Progress(data=settled.train.key))
            if isinstance(trainer, Trainer) or ranks.is_rank_zero:
                trainer.start()
            return _loop_and_finish(settled, trainer, writer, safe, ranks)


def _resume(config: Config, folder: Path, device: torch.device, ranks: Ranks, reporter: Reporter) -> Path:
    """Go on with the training in a folder from its last checkpoint."""

    def begin() -> None:
        remove_partial_files(stage)
        remove_written(stage, RUN, "summary.json", CARD)  # they describe a training that has ended
        write_whole(writer.path("config.yaml"), settled.config.to_yaml())
        write_whole(writer.path(DECISIONS), settled.to_json())
        write_origins(stage, stacks_of(settled.config))

    safe = SafeReporter(reporter)
    with _locked(folder, ranks):
        # Settle: only the data are read again; their keys, and the configuration, must be those of the checkpoint.
        ranks.on_rank_zero(lambda: recover(folder))
        stage = latest_folder(folder, RUN)
        with ranks.rank_zero_first(of_machine=True), listening(reporter.reading):
            vocabulary = load_vocabulary(stage)
            with no_larger_than(*checkpoint_weights(stage / "checkpoints")):
                model = open_task(config).builder.build(vocabulary)
            settled = settle_again(config, vocabulary, device, stage / DECISIONS)
        require_equal(settled, ranks)
        require_divisible(settled, model, ranks)
        needed = _space_needed(settled, model)
        ranks.on_rank_zero(lambda: check_space(folder, needed, written=stage))

        # Prepare: nothing of the run is changed before the checkpoint is known to be complete, and its own.
        writer = RunWriter(stage, identity(settled.config, settled.vocabulary))
        trainer = Trainer(settled, model, device, writer, safe, ranks)
        ranks.advice = lambda: how_to_continue(folder)
        trainer.resume()
        ranks.on_rank_zero(begin)
        return _loop_and_finish(settled, trainer, writer, safe, ranks)


def _loop_and_finish(
    settled: Settled, trainer: Trainer | DirectFit, writer: RunWriter, reporter: SafeReporter, ranks: Ranks
) -> Path:
    """Train until the budget is spent or nothing improves, then measure the run and describe it."""
    facts = {}

    # Loop: all ranks take steps together; a model that is fitted directly is fitted by rank 0 alone.
    if isinstance(trainer, Trainer) or ranks.is_rank_zero:
        facts = describe_model(settled, trainer.model, trainer.device, ranks.count)
        record = beginning(settled, facts, step=trainer.progress.step, nothing_left=trainer.nothing_left())
        reporter.tell("begin", record)
        with freed_memory_kept():
            trainer.fit()

    # Finish: rank 0 alone fits the simple baseline, measures both, and writes what describes the run.
    ranks.on_rank_zero(lambda: finish(settled, trainer, writer, reporter, facts))
    return outer(writer.folder)


@contextmanager
def _joined(training: Training) -> Iterator[Ranks]:
    """Join the ranks of a training, which is one process if torchrun has not started several."""
    ranks = join_ranks(choose_device(training.device).type, training.rank_timeout)
    with ranks.barrier_on_error():
        yield ranks


def _device(training: Training, ranks: Ranks) -> torch.device:
    """Return the device of this rank."""
    device = choose_device(training.device, local_index=ranks.local_index if ranks.count > 1 else None)
    if device.type == "cuda" and ranks.count > 1:
        torch.cuda.set_device(device)
    return device


def _locked(folder: Path, ranks: Ranks) -> AbstractContextManager[None]:
    """Return a context in which only this training writes into a folder; rank 0 holds the lock."""
    return locked(folder) if ranks.is_rank_zero else nullcontext()


def _space_needed(settled: Settled, model: nn.Module) -> int:
    """Return the disk space that a run needs, in bytes."""
    if settled.task.objective is None:
        return space_of_fitting(settled.vocabulary.tokenizer.vocabulary_size)
    return space_of_training(model, settled.config.training)


@contextmanager
def _dropped_unless_begun(writer: RunWriter, ranks: Ranks) -> Iterator[None]:
    """Remove the stage of a run that was to replace another if an error leaves nothing there to resume from."""
    try:
        yield
    except BaseException:
        if ranks.is_rank_zero and writer.folder != outer(writer.folder) and not has_begun(writer.folder):
            discard(writer.folder, RUN)
        raise


def _require_visible(folder: Path, ranks: Ranks) -> None:
    """Raise InputError on every rank if one does not see the run that rank 0 has begun."""
    blind = np.flatnonzero(ranks.gather([not (folder / "config.yaml").exists()])[:, 0])
    if len(blind):
        raise MissingError(
            f"{folder}: rank {blind[0]} does not see the run that rank 0 has begun; give a folder (--out) on a file "
            "system that all ranks share"
        )
