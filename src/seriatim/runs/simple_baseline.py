"""The simple baseline of a run: a standalone model that is trained on the same data, and stored in the run's folder.

A model that is worse than it is not worth its cost, whatever its architecture. The baseline of a task is named by
`Task.simple_baseline`; ``training.baseline`` ``none`` leaves it out.
"""

import os
import shlex
import warnings

from ..config import Config, Model, Training
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..data.arguments import data_name
from ..models.probabilities import naming
from ..storage.written_folders import file_state
from ..tasks import find, shared_options
from ..training.task import AnyTask, Task
from .beside_baseline import BesideBaseline, beside_baseline
from .run import BASELINE, Run, load

KEY = "simple"
"""The key of its figures among those of the simplest model in a summary."""
MINUTES = 3.0
"""Limit of the time in which the weights of a baseline are fitted; one that is reached is reported."""
MAX_TOKENS = 1 << 24
"""Largest number of tokens of a running text whose n-grams are counted for a baseline, which takes about a minute."""


def baseline_task(task: AnyTask) -> AnyTask | None:
    """Return the task of a run's baseline; None if there is none, or the configuration leaves it out."""
    config, name = task.config, task.simple_baseline
    if name is None or config.training.baseline == "none":
        return None
    options = shared_options(config.task, name, config.model.options)
    return find(
        Config(
            task=config.task,
            data=config.data,
            tokenizer=config.tokenizer,
            model=Model(layer=name, options=options),
            training=Training(minutes=MINUTES, seed=config.training.seed, device="cpu", baseline="none"),
        )
    )


def check_weight(task: AnyTask) -> None:
    """Raise InputError if the configuration blends a model with a baseline that it cannot have."""
    weight = task.config.training.baseline_weight
    if not weight:
        return
    reason = ""
    if type(task).blend is Task.blend:
        reason = f"not supported for {task.config.task}"
    elif baseline_task(task) is None:
        reason = "there is no simple baseline to answer with"
    if reason:
        raise InputError(f"training.baseline_weight: {reason}; leave it out")


def check_automatic_weight(task: AnyTask) -> None:
    """Raise InputError if a weight is to be chosen on held-out data and there are none; call `hold_out` before."""
    if task.config.training.baseline_weight == "auto" and task.validation_spec() is None:
        reason = "auto chooses the weight on held-out data, and there are none; give --valid, or a weight"
        raise InputError(f"training.baseline_weight: {reason}")


def refuse_long(task: AnyTask, train: object) -> None:
    """Raise InputError if a running text is so long that a baseline would take more than about a minute."""
    if len(getattr(train, "ids", ())) > MAX_TOKENS:
        layer = shlex.quote(task.config.model.layer)
        raise InputError(f"the training text has more than {MAX_TOKENS:,} tokens; train it with --layer {layer}")


def open_baseline(run: Run) -> Run | None:
    """Open the baseline of a run; None if it has none. One that cannot be opened is left out with a warning."""
    name, folder = run.task.simple_baseline, run.path / BASELINE
    if name is None or run.config.training.baseline == "none" or not (folder / "summary.json").is_file():
        return None
    try:
        baseline = load(folder, device="cpu")
        if run.file_state not in (None, file_state(run.path / "model.safetensors")):
            raise InputError(f"{run.path}: the run was replaced after it was opened; open it again")
        if (baseline.config.task, baseline.config.model.layer) != (run.config.task, name):
            raise InputError(f"{folder}: not the baseline {name} of the run; restore it, or remove the folder")
        if baseline.vocabulary.fingerprint() != run.vocabulary.fingerprint():
            raise InputError(f"{folder}: of another vocabulary than the run; restore it, or remove the folder")
    except InputError as error:
        warnings.warn(f"the simple baseline is left out: {error}", stacklevel=2)
        return None
    return baseline


def evaluate_beside_baseline(
    run: Run, data: str | os.PathLike[str], *, file_format: str | None = None, **settings: object
) -> BesideBaseline | None:
    """Measure a run and its baseline on some data; the arguments are those of `Run.evaluate`.

    Returns:
        The results of `beside_baseline`; None if the run has no baseline.
    """
    baseline = open_baseline(run)
    if baseline is None:
        return None
    test = run.task.read(data_name(data), "test", run.vocabulary, file_format=file_format)
    with freed_memory_kept(), naming(run.place):
        return beside_baseline(run, baseline, test, **settings)
