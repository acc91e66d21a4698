"""Training a run from the beginning, or resuming it, as Python and the command line call it."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from ..config import Config, ConfigSource, resolve
from ..core.errors import FixedError, NotSupportedError, RangeError, shown
from ..data.sources import check_named_by_run
from ..layers.outside_code import AllowCode, refuse_while_importing, require_code, require_recorded_code, stacks_of
from ..storage.written_folders import RUN, finish_replacing, outer, place_of
from ..tasks import kind_of, open_task, with_current_layer
from ..training.reporting import Reporter
from ..training.run_files import files_read, has_begun, read_config, refuse_overwriting
from ..training.train import run_training
from .run import Run, load

FIXED = (
    *("task", "tokenizer", "model"),
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
    given = with_current_layer(given)
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
    begun = place_of(folder, RUN)
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
