"""The files that a name stands for: a path, a folder or a glob; and the files that a run's configuration may name.

What Seriatim writes is not data: runs, comparisons and caches within a folder, or found by the wildcards of a glob, are
left out. A file that is named itself, or in whose folder a glob begins, is read wherever it lies.

Anybody may have written a run, and the user has not typed the names of the files in its configuration. Therefore it may
name only regular files, and folders and globs of a bounded size. A user may also name a pipe.
"""

import glob
import itertools
import os
import shlex
import stat
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError, printable
from ..storage.written_folders import of_others, written_kind
from .pipes import spool

SHOWN_FILES = 3  # the number of skipped files that a warning names
MAX_ENTRIES, MAX_SECONDS = 100_000, 5.0  # the limits for walking a folder that a run's configuration names
KERNEL = ("proc", "sys")  # top-level folders whose files are not on a disk and may have no end


def plain_name(name: str) -> str:
    """Return a file name in lower case and without ``.gz``, for a comparison of its suffix."""
    return name.lower().removesuffix(".gz")


class FolderFiles(NamedTuple):
    """The sorted files of a folder and its subfolders: those to read, and what is not read."""

    readable: list[Path]
    skipped: list[Path]  # hidden files, pipes, links that lead nowhere, and files whose names have other endings
    written: list[Path]  # folders that Seriatim wrote, whose files are not listed


def list_folder(folder: Path, suffixes: Sequence[str]) -> FolderFiles:
    """Return the files of a folder and its subfolders.

    Those to read have one of the ``suffixes`` (in any case, also with ``.gz``). Hidden folders and links to folders are
    ignored. If the folder itself is that of a run or a comparison, the files of that are left out. An InputError names
    a subfolder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None

    readable: list[Path] = []
    skipped: list[Path] = []
    written: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        # A run below the folder is skipped as a whole. The folder itself was named by the user: what others have put
        # into it is read.
        kind, is_inside = written_kind(Path(place), files), Path(place) != folder
        if kind and (is_inside or kind != "cache"):
            written.append(Path(place))
            folders[:], files = ([], []) if is_inside else (of_others(names, kind) for names in (folders, files))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in files):
            matches = plain_name(path.name).endswith(tuple(suffixes))
            if path.name.startswith(".") or not path.is_file():
                skipped.extend([path] if matches else [])
            else:
                (readable if matches else skipped).append(path)
    return FolderFiles(sorted(readable), sorted(skipped), sorted(written))


def skipped_files(spec: str, suffixes: Sequence[str]) -> list[str]:
    """Return the files of the folder ``spec`` that are not read; an empty list if ``spec`` is not a folder."""
    folder = Path(spec)
    return [str(path.relative_to(folder)) for path in list_folder(folder, suffixes).skipped] if _is_dir(spec) else []


def find_paths(spec: str, suffixes: Sequence[str]) -> dict[str, Path]:
    """Find the files that ``spec`` names, each by its name in messages. Standard input or a pipe is copied to a file.

    It warns of the files of a folder or a glob that are not read.

    Raises:
        InputError: there are no such files, ``spec`` is a device, or the output of this process goes to such a file.
    """
    if spec == "-":
        return {"<stdin>": spool(spec)}
    path = Path(spec)
    if _is_dir(spec):
        paths = _paths_of_folder(spec, suffixes)
    elif path.exists():
        if not path.is_file():
            return {spec: spool(spec)}
        paths = [path]
    else:
        paths = _paths_of_glob(spec)
    for path in paths:
        if _is_output(path):
            raise InputError(f"{path}: is read, and the output of this command goes there; send the output elsewhere")
    return {str(path): path for path in paths}


def _is_output(path: Path) -> bool:
    """Return whether standard output or standard error of this process goes to a file."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return True
    return False


def _paths_of_glob(spec: str) -> list[Path]:
    matches = sorted(Path(match) for match in glob.glob(spec, recursive=True) if Path(match).is_file())
    base = _base_of_glob(spec)
    kinds: dict[Path, str] = {}  # of the folders between that in which the glob begins and the files
    written: dict[Path, None] = {}
    paths = []

    # A folder between the beginning of the glob and a file was not named by the user, and may be a run.
    for path in matches:
        between = list(itertools.takewhile(lambda folder: folder != base, path.parents))
        for folder in between:
            if folder not in kinds:
                kinds[folder] = written_kind(folder)
        outermost = next((folder for folder in reversed(between) if kinds[folder]), None)
        if outermost is None:
            paths.append(path)
        else:
            written[outermost] = None
    if not paths:
        problem = "no file matches" if glob.has_magic(spec) else "no such file"
        found = f" ({_left_out(list(written))})" if written else ""
        raise InputError(f"{spec}: {problem}{found}; give a file, a folder, a glob, - or builtin:python-docs")
    if written:
        _warn_of_written(spec, list(written))
    return paths


def _base_of_glob(spec: str) -> Path:
    """Return the folder in which a glob begins, whose name has no wildcards."""
    return next(parent for parent in Path(spec).parents if not glob.has_magic(str(parent)))


def _warn_of_written(spec: str, folders: Sequence[Path]) -> None:
    warnings.warn(f"{spec}: {_left_out(folders)}; to read a file there, name it", stacklevel=4)


def _left_out(folders: Sequence[Path]) -> str:
    """Return in words which folders are left out because Seriatim wrote them."""
    first = printable(str(folders[0]))
    if len(folders) == 1:
        return f"the files of 1 run, comparison or cache were left out: {first}"
    more = f"{len(folders) - 1:,} more"
    return f"the files of {len(folders):,} runs, comparisons or caches were left out: {first} and {more}"


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
    readable, skipped, written = list_folder(Path(spec), suffixes)
    if not readable:
        problem = f"no files to read in this folder (looked for {' '.join(suffixes)}, also .gz)"
        remedy = f"name the files by a glob such as {shlex.quote(spec.rstrip('/') + '/*')}"
        if written:
            remedy = f"{_left_out(written)}; to read a file there, name it"
        raise InputError(f"{spec}: {problem}; {remedy}")
    if written:
        _warn_of_written(spec, written)
    if skipped:
        names = ", ".join(str(path.relative_to(spec)) for path in skipped[:SHOWN_FILES])
        more = f" and {len(skipped) - SHOWN_FILES:,} more" if len(skipped) > SHOWN_FILES else ""
        files = "1 file was" if len(skipped) == 1 else f"{len(skipped):,} files were"
        reason = f"hidden, no regular file, or not named {' '.join(suffixes)}"
        warnings.warn(
            f"{spec}: {files} not read ({reason}): {printable(names)}{more}; use a glob to name files of any kind",
            stacklevel=2,
        )
    return readable


def check_named_by_run(spec: str, key: str, *, downloads: bool = False) -> None:
    """Refuse files that a run's configuration must not name. All other files are safe to open.

    ``key`` is the field that names ``spec``. ``hf:NAME`` is only allowed with ``downloads``, for instance when the user
    resumes a training on it.

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
    base = Path(name)
    if glob.has_magic(name) and not os.path.lexists(name):  # the folder in which the glob begins
        base = _base_of_glob(name)
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

    # A folder or a glob is walked, because opening it later would list all of it: it may lead anywhere by links.
    below = Path(name).parts[len(base.parts) :]
    if ".." in below:
        return "a glob that leaves the folder it begins in"
    bounded = not os.path.isdir(name) and "**" not in name
    started, entries = time.monotonic(), 0
    for place, folders, files in os.walk(base, followlinks=True):
        entries += len(folders) + len(files)
        if entries > MAX_ENTRIES or time.monotonic() - started > MAX_SECONDS:
            return f"which contains more than {MAX_ENTRIES:,} files, or more than can be listed in {MAX_SECONDS:g} s"
        if bounded and len(Path(place).parts) - len(base.parts) >= len(below) - 1:
            folders.clear()
    return ""
