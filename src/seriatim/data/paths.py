"""The files that a name stands for: a path, a folder or a glob; and the files that a run's configuration may name.

Anybody may have written a run. The files that its configuration names are read without the user having typed their
names. Therefore a configuration may name only regular files, and folders and globs of a bounded size. A user may also
name a pipe.
"""

import glob
import os
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.errors import InputError, printable
from .pipes import spool

SHOWN_FILES = 3
"""The number of skipped files that a warning names."""
MAX_ENTRIES, MAX_SECONDS = 100_000, 5.0
"""The limits for walking a folder that a run's configuration names."""
KERNEL = ("proc", "sys")
"""Top-level folders whose files are not on a disk and may have no end."""


def plain_name(name: str) -> str:
    """Return a file name in lower case and without ``.gz``, for a comparison of its suffix."""
    return name.lower().removesuffix(".gz")


def list_folder(folder: Path, suffixes: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """List the files of a folder and its subfolders; hidden folders are skipped.

    Args:
        folder: the folder.
        suffixes: the suffixes of the files to read, in lower case. Files may have them in any case, with ``.gz``.

    Returns:
        The files to read and the skipped files, both sorted. Skipped files have another suffix, or are hidden.

    Raises:
        InputError: a subfolder cannot be read.
    """
    readable: list[Path] = []
    skipped: list[Path] = []
    for path in _walk(folder):
        matches = plain_name(path.name).endswith(tuple(suffixes))
        if path.name.startswith("."):
            skipped.extend([path] if matches else [])
        elif path.is_file():
            (readable if matches else skipped).append(path)
    return sorted(readable), sorted(skipped)


def skipped_files(spec: str, suffixes: Sequence[str]) -> list[str]:
    """Return the files of the folder ``spec`` that are not read; an empty list if ``spec`` is not a folder."""
    folder = Path(spec)
    return [str(path.relative_to(folder)) for path in list_folder(folder, suffixes)[1]] if _is_dir(spec) else []


def find_paths(spec: str, suffixes: Sequence[str]) -> list[Path]:
    """Find the files that ``spec`` names. A pipe is copied to a file.

    Raises:
        InputError: there are no such files, or ``spec`` is a device.

    Warns:
        UserWarning: some files of a folder are not read.
    """
    if _is_dir(spec):
        return _paths_of_folder(spec, suffixes)
    path = Path(spec)
    if path.exists():
        return [path if path.is_file() else spool(spec)]
    matches = sorted(Path(match) for match in glob.glob(spec, recursive=True) if Path(match).is_file())
    if not matches:
        problem = "no file matches" if glob.has_magic(spec) else "no such file"
        raise InputError(f"{spec}: {problem}; give a file, a folder, a glob, - or builtin:python-docs")
    return matches


def _is_dir(spec: str) -> bool:
    try:
        os.stat(spec)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        if glob.has_magic(spec):
            return False
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{spec[:80]}: not the name of a file ({reason}); check the name") from None
    return Path(spec).is_dir()


def _paths_of_folder(spec: str, suffixes: Sequence[str]) -> list[Path]:
    readable, skipped = list_folder(Path(spec), suffixes)
    if not readable:
        raise InputError(
            f"{spec}: no files to read in this folder (looked for {' '.join(suffixes)}, also .gz); "
            f"name the files by a glob such as '{spec.rstrip('/')}/*'"
        )
    if skipped:
        names = ", ".join(str(path.relative_to(spec)) for path in skipped[:SHOWN_FILES])
        more = f" and {len(skipped) - SHOWN_FILES:,} more" if len(skipped) > SHOWN_FILES else ""
        files = "1 file was" if len(skipped) == 1 else f"{len(skipped):,} files were"
        warnings.warn(
            f"{spec}: {files} not read (hidden, or not named {' '.join(suffixes)}): {printable(names)}{more}; "
            "use a glob to name files of any kind",
            stacklevel=2,
        )
    return readable


def _walk(folder: Path) -> Iterator[Path]:
    """Iterate over the files below a folder, without hidden folders and without following links to folders."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files)


def check_named_by_run(spec: str, key: str, *, downloads: bool = False) -> None:
    """Refuse files that a run's configuration must not name. All other files are safe to open.

    Args:
        spec: what the configuration names.
        key: the field of the configuration, for the message.
        downloads: whether ``hf:NAME`` is allowed, for instance when the user resumes a training on it.

    Raises:
        InputError: ``spec`` is neither a regular file, nor a folder or glob of a bounded size, nor built in.
    """
    if spec == "-" or spec.startswith("builtin:") or (downloads and spec.startswith("hf:")):
        return
    remedy = "if you trust it, name the data on the command line"
    if spec.startswith("hf:"):
        raise InputError(f"{key}: the run's configuration names {spec}, which would be downloaded; {remedy}")
    names = [spec] if os.path.exists(spec) else dict.fromkeys((spec, *spec.split(",")))  # a glob may contain a comma
    for name in names:
        reason = _problem(name)
        if reason:
            raise InputError(f"{key}: the run's configuration names {name[:80]}, {reason}; {remedy}")


def _problem(name: str) -> str:
    """Return why a run's configuration must not name a file; an empty string if it may."""
    base = _base(name)
    try:
        mode = os.stat(base).st_mode
        real = base.resolve().parts
    except (OSError, ValueError, RuntimeError):
        return ""  # the code that opens the file reports that it is missing
    if len(real) > 1 and real[1] in KERNEL:
        return "which is not on any disk"
    if stat.S_ISREG(mode):
        return ""
    if not stat.S_ISDIR(mode):
        return "which is a device or a pipe"
    below = Path(name).parts[len(base.parts) :]
    if ".." in below:
        return "a glob that leaves the folder it begins in"
    bounded = not os.path.isdir(name) and "**" not in name
    return _size_problem(base, len(below) if bounded else None)


def _base(name: str) -> Path:
    """Return the path itself; for a glob, the folder in which it begins."""
    path = Path(name)
    if os.path.lexists(name) or not glob.has_magic(name):
        return path
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


def _size_problem(base: Path, depth: int | None) -> str:
    """Return a problem if there are too many files below a folder, to the given depth (None: any depth)."""
    started, entries, top = time.monotonic(), 0, len(base.parts)
    for place, folders, files in os.walk(base, followlinks=True):
        entries += len(folders) + len(files)
        if entries > MAX_ENTRIES or time.monotonic() - started > MAX_SECONDS:
            return f"which contains more than {MAX_ENTRIES:,} files, or more than can be listed in {MAX_SECONDS:g} s"
        if depth is not None and len(Path(place).parts) - top >= depth - 1:
            folders.clear()
    return ""
