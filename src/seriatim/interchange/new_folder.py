"""The folder of an export, which is written as a whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import InputError
from ..training.run_files import refuse_inside

PREFIX = ".seriatim-export-"


def check_new(out: str) -> Path:
    """Return the path of a folder that does not exist yet; raise InputError if it exists or cannot be written."""
    folder = Path(out)
    if folder.exists() or folder.is_symlink():
        raise InputError(f"--out: {out or 'an empty name'} exists; choose another folder")
    refuse_inside(out)
    if not Path(os.path.realpath(folder)).parent.is_dir():
        raise InputError(f"{out}: cannot be written there; give a folder in one that exists")
    return folder


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write to, which gets the name ``folder`` when it is complete; errors name ``folder``."""
    parent = folder.resolve().parent
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as temporary:
            aside = Path(temporary) / "export"
            aside.mkdir()
            yield aside
            aside.rename(folder)
    except OSError as error:
        if str(error.filename).startswith(str(parent / PREFIX)):
            error.filename = str(folder)
        raise
