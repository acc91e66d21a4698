"""Which files a user means: a path, a folder or a glob; and which a run's own configuration may name.

A run may come from anybody. What its configuration names is read without the user having typed it, so that only regular
files, and folders and globs of a bounded size, are accepted there. What the user names may also be a pipe.
"""

import glob
import os
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError, printable
from .pipes import spool

NAMED = 3
"""Skipped files that a warning names."""
MAX_ENTRIES, MAX_SECONDS = 100_000, 5.0
"""What is walked at most for a run's own configuration."""
KERNEL = ("proc", "sys")
"""Top folders whose files are not on any disk, and may have no end."""


class Listing(NamedTuple):
    """The files of a folder, those of its folders included.

    Attributes:
        read: files with the wanted suffixes, in order.
        skipped: other files, and hidden files with the wanted suffixes. Hidden folders are not looked into.
    """

    read: list[Path]
    skipped: list[Path]


def plain_name(name: str) -> str:
    """A file's name as its suffix is looked for: in lower case, without ``.gz``."""
    return name.lower().removesuffix(".gz")


def list_folder(folder: Path, suffixes: Sequence[str]) -> Listing:
    """Sorts out the files of a folder.

    Args:
        folder: the folder.
        suffixes: of the files to read, in lower case; files may have them in any case, and be packed (``.gz``).

    Raises:
        InputError: a folder in it cannot be read.
    """
    found = Listing([], [])
    for path in _walk(folder):
        wanted = plain_name(path.name).endswith(tuple(suffixes))
        if path.name.startswith("."):
            found.skipped.extend([path] if wanted else [])
        elif path.is_file():
            (found.read if wanted else found.skipped).append(path)
    return Listing(sorted(found.read), sorted(found.skipped))


def skipped_files(spec: str, suffixes: Sequence[str]) -> list[str]:
    """The files of the folder ``spec`` that are not read; none where it is no folder."""
    folder = Path(spec)
    return [str(path.relative_to(folder)) for path in list_folder(folder, suffixes).skipped] if _is_dir(spec) else []


def find_paths(spec: str, suffixes: Sequence[str]) -> list[Path]:
    """The files that ``spec`` names; pipes are copied to a file. Warns of files of a folder that are not read.

    Raises:
        InputError: there are none, or the name is that of a device.
    """
    if _is_dir(spec):
        return _of_folder(spec, suffixes)
    path = Path(spec)
    if path.exists():
        return [path if path.is_file() else spool(spec)]
    found = sorted(Path(match) for match in glob.glob(spec, recursive=True) if Path(match).is_file())
    if not found:
        what = "no file matches" if glob.has_magic(spec) else "no such file"
        raise InputError(f"{spec}: {what}; give a file, a folder, a glob, - or builtin:python-docs")
    return found


def _is_dir(spec: str) -> bool:
    try:
        os.stat(spec)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        if glob.has_magic(spec):
            return False
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{spec[:80]}: cannot be a file ({reason}); check the name") from None
    return Path(spec).is_dir()


def _of_folder(spec: str, suffixes: Sequence[str]) -> list[Path]:
    read, skipped = list_folder(Path(spec), suffixes)
    if not read:
        raise InputError(
            f"{spec}: no files to read in this folder (looked for {' '.join(suffixes)}, also .gz); "
            f"name the files by a glob such as '{spec.rstrip('/')}/*'"
        )
    if skipped:
        names = ", ".join(str(path.relative_to(spec)) for path in skipped[:NAMED])
        more = f" and {len(skipped) - NAMED:,} more" if len(skipped) > NAMED else ""
        files = "1 file was" if len(skipped) == 1 else f"{len(skipped):,} files were"
        warnings.warn(
            f"{spec}: {files} not read (hidden, or not named {' '.join(suffixes)}): {printable(names)}{more}; "
            "a glob names files of any kind",
            stacklevel=2,
        )
    return read


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder but for those in hidden folders; links to folders are not followed."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files)


def check_named_by_run(spec: str, key: str, *, downloads: bool = False) -> None:
    """Refuses what a run's own configuration must not name; its files are then safe to open.

    Args:
        spec: what the configuration names.
        key: the field of the configuration, for the message.
        downloads: whether ``hf:NAME`` may be named, as where the user resumes a training on it.

    Raises:
        InputError: it is neither a regular file, nor a folder or glob of a bounded size, nor built in.
    """
    if spec == "-" or spec.startswith("builtin:") or (downloads and spec.startswith("hf:")):
        return
    remedy = "if you trust it, name the data on the command line"
    if spec.startswith("hf:"):
        raise InputError(f"{key}: the run's configuration names {spec}, which would be downloaded; {remedy}")
    names = [spec] if os.path.exists(spec) else dict.fromkeys((spec, *spec.split(",")))  # a glob may hold a comma
    for name in names:
        reason = _irregular(name)
        if reason:
            raise InputError(f"{key}: the run's configuration names {name[:80]}, {reason}; {remedy}")


def _irregular(name: str) -> str:
    """Why a run's configuration must not name this; empty where it may."""
    base = _base(name)
    try:
        mode = os.stat(base).st_mode
        real = base.resolve().parts
    except (OSError, ValueError, RuntimeError):
        return ""  # whoever opens it says that it is not there
    if len(real) > 1 and real[1] in KERNEL:
        return "which is not on any disk"
    if stat.S_ISREG(mode):
        return ""
    if not stat.S_ISDIR(mode):
        return "which is a device or a pipe"
    below = Path(name).parts[len(base.parts) :]
    if ".." in below:
        return "a glob that leads out of the folder it begins in"
    depth = len(below)
    bounded = not os.path.isdir(name) and "**" not in name
    return _too_large(base, depth if bounded else None)


def _base(name: str) -> Path:
    """The name itself, or of a glob the folder that it begins in."""
    path = Path(name)
    if os.path.lexists(name) or not glob.has_magic(name):
        return path
    return next(parent for parent in path.parents if not glob.has_magic(str(parent)))


def _too_large(base: Path, depth: int | None) -> str:
    """Whether more lies below a folder than is walked; ``depth`` None is without a bound."""
    started, entries, top = time.monotonic(), 0, len(base.parts)
    for place, folders, files in os.walk(base, followlinks=True):
        entries += len(folders) + len(files)
        if entries > MAX_ENTRIES or time.monotonic() - started > MAX_SECONDS:
            return f"below which there are more than {MAX_ENTRIES:,} files, or more than can be listed at once"
        if depth is not None and len(Path(place).parts) - top >= depth - 1:
            folders.clear()
    return ""
