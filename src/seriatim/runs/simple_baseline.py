"""The simple baseline of an opened run, and measuring both on the same data."""

import os
import warnings

from ..config.arguments import data_name
from ..core.allocator import freed_memory_kept
from ..core.errors import InputError
from ..models.probabilities import naming
from ..storage.written_folders import file_state
from ..tasks.beside_baseline import BesideBaseline, beside_baseline
from ..training.run_files import BASELINE
from .run import Run, load


def open_baseline(run: Run) -> Run | None:
    """Open the baseline of a run; None if it has none. One that cannot be opened is left out with a warning."""
    name, folder = run.task.kind.reference_model, run.path / BASELINE
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
    test = run.task.reader.read(data_name(data), "test", run.vocabulary, file_format=file_format)
    with freed_memory_kept(), naming(run.place):
        return beside_baseline(run.measured, baseline.measured, test, **settings)
