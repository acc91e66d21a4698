"""Files that commands write: the folder of a run, and single files that must not replace anything of the user."""

import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..config import Config
from ..core.errors import InputError, TrainingError
from ..data.vocabulary import FILES, Vocabulary
from ..layers.origins import CODE, stacks_of, write_origins
from ..storage.atomic_files import PARTIAL, remove, write_whole
from ..storage.lock import LOCK
from ..storage.safe_files import is_text, open_regular

RUN_FILES = ("config.yaml", CODE, *FILES, "model.safetensors", "metrics.jsonl", "summary.json", "README.md")
RUN_FOLDERS = ("checkpoints", "tensorboard", "baseline")
COMPARISON = ("runs", "trials", "rows", "results.json", "comparison.yaml")
"""Files that a comparison needs to resume."""
HEAD_BYTES = 4096
"""Number of bytes at the beginning of a file that identify its kind."""


class Kind(NamedTuple):
    """A kind of file that a command writes, and may therefore replace."""

    name: str  # for messages
    mark: bytes  # near the beginning of every such file, compressed (gzip) or not


PAGE = Kind("a page that Seriatim wrote", b'<meta name="generator" content="seriatim">')
ARPA_MARK = "# written by Seriatim"
ARPA = Kind("an ARPA file that Seriatim wrote", ARPA_MARK.encode())


def check_name(out: str) -> None:
    """Raise InputError for the name of a folder that cannot be passed to other commands.

    Commands accept several runs with commas between them, and files of weights need names in UTF-8.
    """
    _check_text(out)
    if not out.isprintable():
        raise InputError(f"{out}: the name holds a line end or another control character; choose another --out")
    if "," in out:
        raise InputError(f"{out}: a comma separates runs on the command line; choose an --out without one")
    if out.startswith("-"):
        raise InputError(f"{out}: a name that begins with - is read as an option; choose another --out, or ./{out}")


def _check_text(out: str) -> None:
    if not is_text(out):
        raise InputError(f"{out}: the name is not UTF-8; choose another --out")


def check_file(out: str | Path, kind: Kind, inputs: Iterable[str | None] = (), *, of_run: Path | None = None) -> None:
    """Check that a file can be written without loss.

    Args:
        out: the file.
        kind: the kind of file to write. An existing file is replaced only if it is of this kind, or empty.
        inputs: the data that is read, named as in ``data.train``.
        of_run: a run whose folder the file may lie in, even if the run is part of a comparison.

    Raises:
        InputError: the file is part of a run or a comparison, is read, or is of another kind; or its name is not UTF-8.
    """
    _check_text(str(out))
    path = Path(out).resolve()
    for folder in path.parents:
        part = path.relative_to(folder).parts[0]
        if part in (*RUN_FILES, *RUN_FOLDERS, LOCK) and is_run(folder):
            raise InputError(f"--out: {out} is part of the run {folder}; choose another file")
        is_own = of_run is not None and path.parent == of_run.resolve()
        if part in COMPARISON and not is_own and (folder / COMPARISON[-1]).is_file():
            raise InputError(f"--out: {out} is part of the comparison {folder}; choose another file")
    names = [name for spec in inputs if spec for name in (spec, *spec.split(","))]
    if any(Path(name).exists() and Path(name).resolve() == path for name in names):
        raise InputError(f"--out: {out} is one of the files that are read; choose another file")
    if path.exists() and not path.is_dir() and not _replaceable(path, kind):
        raise InputError(f"--out: {out} exists and is not {kind.name}; remove it, or choose another file")


def _replaceable(path: Path, kind: Kind) -> bool:
    """Return whether a file is empty or of this kind."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError):  # unreadable, or a pipe or a device
        return False
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
        except zlib.error:
            return False
    return not head or kind.mark in head


def is_run(folder: Path) -> bool:
    """Return whether a folder holds the files that every run has."""
    return (folder / "config.yaml").is_file() and (folder / "tokenizer.json").is_file()


def check_place(out: str) -> Path:
    """Return a folder that can be written, or created; raise InputError if it cannot."""
    check_name(out)
    folder = Path(out)
    try:
        existing = nearest_existing(folder)
    except OSError as error:
        raise InputError(f"{out[:80]}: cannot be a folder ({error.strerror}); choose another --out") from None
    if existing == folder and not folder.is_dir():
        raise InputError(f"{folder}: is a file, not a folder; choose another --out")
    if not existing.is_dir():
        raise InputError(f"{folder}: {existing} is a file, not a folder; choose another --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written (no permission in {existing}); choose another --out")
    return folder


def check_out(out: str | None, *, overwrite: bool) -> Path:
    """Return the folder to write a run into; raise InputError if it is not empty or cannot be written."""
    if not out:
        raise InputError("out: no folder for the run; give one, for instance --out runs/first")
    folder = check_place(out)
    interrupted = (folder / LOCK).exists()  # by a training that may have left nothing else
    if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()) and not overwrite:
        raise InputError(f"{folder}: not empty; choose another --out, or replace the run there with --overwrite")
    others = [name for name in (*RUN_FILES, *RUN_FOLDERS) if (folder / name).exists()]
    if others and not interrupted and not is_run(folder):
        raise InputError(f"{folder}: not a run, and its {others[0]} would be lost; choose another --out")
    return folder


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or the nearest one around it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_space(folder: Path, needed: int) -> None:
    """Raise TrainingError if fewer than ``needed`` bytes are free; the files that a run replaces count as free."""
    parts = [folder / name for name in (*RUN_FILES, *RUN_FOLDERS)]
    files = [file for path in parts for file in (path, *path.rglob("*")) if file.is_file()]
    free = shutil.disk_usage(nearest_existing(folder)).free + sum(file.stat().st_size for file in files)
    if needed > free:
        raise TrainingError(
            f"{folder}: {needed / 1e6:,.1f} MB are needed for the run, {free / 1e6:,.1f} MB are free; "
            "make room, or train elsewhere (--out)"
        )


def begin_run(folder: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Turn a folder into that of a new run: remove the files of a run, and nothing else.

    The configuration is written first; from then on a training that is killed can resume.
    """
    try:
        for name in (*RUN_FILES, *RUN_FOLDERS):
            remove(folder / name)
        remove_partial_files(folder)
        write_whole(folder / "config.yaml", config.to_yaml())
        write_origins(folder, stacks_of(config))
        vocabulary.save(folder)
    except PermissionError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None


def remove_partial_files(folder: Path) -> None:
    """Remove files of a run that a process was killed while writing."""
    for name in RUN_FILES:
        for partial in folder.glob(f"{name}.*{PARTIAL}"):
            remove(partial)


def has_begun(folder: Path) -> bool:
    """Return whether a run has weights, checkpoints or metrics, which a new training would lose."""
    metrics = folder / "metrics.jsonl"
    measured = (folder / "summary.json").exists() or (metrics.exists() and metrics.stat().st_size > 0)
    saved = any(path.suffix != PARTIAL for path in folder.glob("checkpoints/step-*"))
    return measured or saved or (folder / "model.safetensors").exists()
