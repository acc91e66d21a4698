"""Whether a training that torchrun starts again continues the run in its folder.

``torchrun`` starts its ranks again after a failure, and when machines come or go; it counts a restart only in the first
case, and only on the machine of the failure. Therefore a run records the job that has begun it (``--rdzv-id``).
"""

import os
from pathlib import Path
from typing import Literal

from ..config import Config
from ..core.errors import InputError
from ..storage.files import read_text, write_whole
from ..storage.written_folders import RUN, is_run, place_of, record, remove_written
from .identity import read_config
from .run_files import has_begun

JOB = ".torchrun"
"""The file of a run with the name of the job that has begun it."""
MAX_NAME_BYTES = 1 << 16
CHOSEN = (None, "auto")
"""Values for which a training chooses others."""
Beginning = Literal["new", "again", "resume"]
"""Start in an empty folder; start again, as there is no checkpoint; or go on from the last checkpoint."""


def record_job(folder: Path) -> None:
    """Write the name of the present job into a run, if it has one."""
    if name := _present_job():
        record(folder, RUN, JOB)
        write_whole(folder / JOB, name)
    else:
        remove_written(folder, RUN, JOB)


def how_to_begin(config: Config, folder: Path, *, restarts: int) -> Beginning:
    """Return how a training begins that torchrun may have started again.

    The run in the folder is continued only if this job has begun it, as far as is known, with this configuration.
    """
    folder = place_of(folder, RUN)
    if not is_run(folder) or not (restarts or _is_of_this_job(folder)):
        return "new"
    given, saved = (each.model_dump(exclude={"out"}) for each in (config, read_config(folder)))
    if not _agrees(given, saved):
        return "new"
    return "resume" if has_begun(folder) else "again"


def _present_job() -> str:
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else name


def _is_of_this_job(folder: Path) -> bool:
    try:
        name = read_text(folder / JOB, max_bytes=MAX_NAME_BYTES, remedy="remove it")
    except InputError:  # usually there is none
        return False
    return bool(name) and name == _present_job()


def _agrees(given: object, saved: object) -> bool:
    """Return whether what is given is what was saved, where the training did not choose it."""
    if isinstance(given, dict) and isinstance(saved, dict):
        return all(_agrees(value, saved.get(name)) for name, value in given.items())
    return given in CHOSEN or given == saved
