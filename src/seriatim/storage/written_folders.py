"""Folders of runs and comparisons: what in them Seriatim wrote, and how a new one takes the place of an old one.

Such a folder has a list of what was written there, `.seriatim.files`; everything else belongs to the user and stays.
A copy without hidden files has no list: in it, names and contents tell.

What replaces a run is begun in a folder inside that of the run, the stage, and takes its place once it has weights: the
stage is renamed, which is the moment of decision, and its entries then replace those of the old run one by one. If a
process is killed meanwhile, whoever opens the folder next finishes this.
"""

import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..core.errors import ExistsError, InputError, UnwritableError
from .disk_cache import CHECKSUMS, named_folder
from .files import LOCK, PARTIAL, flush, locked, read_head, read_json, write_whole

LIST = ".seriatim.files"
STAGE, DECIDED = ".seriatim-new", ".seriatim-replacing"
"""The folder in which a run is begun that is to replace another, and its name once it takes the place of that one."""
SESSION = ".seriatim-cluster"
"""A file in the folder of a comparison while workers of a cluster train for it."""
CARD, CARD_MARK = "README.md", "A sequence model trained with Seriatim."
PAGE_MARK = b'<meta name="generator" content="seriatim">'
FORMAT = "seriatim files 1"
MAX_BYTES = 1 << 16  # the largest size of a list
POLL_SECONDS, MAX_SECONDS, ATTEMPTS = 0.02, 10.0, 50
Result = TypeVar("Result")


class Form(NamedTuple):
    """What Seriatim writes into a folder of some kind; names may be patterns.

    Attributes:
        kind: the name of the kind; empty for folders within those that have a list.
        first: the file that is written first, and without which there is nothing to resume.
        files: the names of files, and what stands near their beginning, which tells them from those of others.
        folders: the names of folders, and their forms.
    """

    kind: str
    first: str
    files: dict[str, bytes]
    folders: dict[str, "Form"]


_ANY = Form("", "", {"*": b""}, {})
_ANY.folders["*"] = _ANY
_CHECKPOINT_FILES = (
    *(f"{name}.safetensors" for name in ("model", "optimizer", "average", "state")),
    *("progress.json", "manifest.json", f"*{PARTIAL}"),
)
_STEP = "step-" + 9 * "[0-9]"
_STEPS = (_STEP, f"{_STEP}.[0-9]*", f"{_STEP}*.damaged*", f"{_STEP}*{PARTIAL}")
"""Names of the checkpoints of a step; see `training.checkpoints`."""
RUN = Form(
    "run",
    "config.yaml",
    {
        "config.yaml": b"task:",
        "code.json": b"seriatim code",
        **dict.fromkeys(("tokenizer.json", "target.json", "characters.json", "columns.json"), b'"seriatim"'),
        "labels.json": b"[",
        "decisions.json": b'"decisions"',
        "model.safetensors": b"seriatim",
        "metrics.jsonl": b'"kind"',
        "summary.json": b'"task"',
        CARD: CARD_MARK.encode(),
        ".torchrun": b"",
        "inspect.html": PAGE_MARK,
    },
    {
        "checkpoints": Form("", "", {}, dict.fromkeys(_STEPS, Form("", "", dict.fromkeys(_CHECKPOINT_FILES, b""), {}))),
        "tensorboard": Form("", "", {"events.out.tfevents.*": b""}, {}),
        f"model.safetensors.shards{PARTIAL}": _ANY,
    },
)
RUN.folders["baseline"] = RUN
_RUNS = Form("", "", {}, {"*": RUN})
COMPARISON = Form(
    "comparison",
    "comparison.yaml",
    {
        **dict.fromkeys(("comparison.yaml", "results.json"), b"seriatim comparison"),
        **dict.fromkeys(("report.html", "inspect.html"), PAGE_MARK),
    },
    {
        "runs": _RUNS,
        "trials": _RUNS._replace(files={"*.json": b'"learning_rate"', f"*{PARTIAL}": b""}),
        "rows": Form("", "", {"*.json": b'"parameters"', "*.safetensors": b'"sha256"', f"*{PARTIAL}": b""}, {}),
    },
)
VOCABULARY: dict[str, tuple[bytes, ...]] = {
    "target.json": (b"seq2seq",),
    **dict.fromkeys(("labels.json", "characters.json", "columns.json"), (b"classify", b"tag")),
}
"""Files of the vocabulary that not every run has, and the tasks of the library whose runs may have them."""
KNOWN_TASKS = (b"lm", b"mlm", b"classify", b"tag", b"seq2seq")
OWN = (LIST, LOCK, SESSION, STAGE, DECIDED)
"""Names that nobody else uses."""
MARKERS = frozenset((LIST, RUN.first, COMPARISON.first, CHECKSUMS))
"""Files of which every run, every comparison and every entry of a cache has one."""
for _form in (RUN, COMPARISON):
    _form.folders.update(dict.fromkeys((STAGE, DECIDED), _form))
    _form.files.update({f"{name}.*{PARTIAL}": b"" for name in (LIST, *_form.files)})


def has_mark(path: Path, mark: bytes) -> bool:
    """Return whether a file is empty, or has some bytes near its beginning; gzip is decompressed."""
    head = read_head(path)
    return head is not None and (not head or mark in head)


def written_kind(folder: Path, names: Collection[str] | None = None) -> str:
    """Return ``run``, ``comparison`` or ``cache`` for a folder that Seriatim wrote; else an empty string.

    ``names`` are the files in it, if they are known, so that other folders are not looked into.
    """
    if names is None or not MARKERS.isdisjoint(names):
        for form in (RUN, COMPARISON):
            if _listed(folder, form) is not None or (_has_first(folder, form) and (form is not RUN or is_run(folder))):
                return form.kind
        with suppress(InputError):
            sums = read_json(folder / CHECKSUMS, max_bytes=MAX_BYTES, remedy="")
            if isinstance(sums, dict) and all(isinstance(value, int) for value in sums.values()):
                return "cache"
    cache = named_folder()
    with suppress(OSError):
        if cache is not None and os.path.samefile(folder, cache):
            return "cache"
    return ""


def is_run(folder: Path) -> bool:
    """Return whether a folder holds the files that every run has."""
    return (folder / "config.yaml").is_file() and (folder / "tokenizer.json").is_file()


def of_others(names: Collection[str], kind: str) -> list[str]:
    """Return the names in a folder that are not those of the files of a run or a comparison, as its kind says."""
    forms = [form for form in (RUN, COMPARISON) if form.kind == kind]
    return [name for name in names if not any(name in OWN or _is_used(form, name) for form in forms)]


def record(folder: Path, form: Form, *names: str) -> None:
    """Add to the list of a folder what is written there next; call it before, so that a killed process has listed it.

    A file of the user that already has the name of one of them is renamed, with a warning.
    """
    before, listed = _listed(folder, form), _names(folder, form)
    if before is None:  # a new folder, or a copy without hidden files
        listed = {path.name for path in _entries(folder) if path.name not in OWN and _is_ours(path, form, listed)}
    assert listed is not None
    for name in names:
        if os.path.lexists(folder / name) and not _is_ours(folder / name, form, listed):
            _set_aside(folder / name)
    if before is None or not listed.issuperset(names):
        fields = {"format": FORMAT, "kind": form.kind, "files": sorted(listed.union(names))}
        write_whole(folder / LIST, json.dumps(fields, indent=1) + "\n")


def remove_written(folder: Path, form: Form, *names: str) -> None:
    """Remove files of a folder that Seriatim wrote, as far as they are there."""
    listed = _names(folder, form)
    for path in (folder / name for name in names):
        if _is_ours(path, form, listed):
            path.unlink(missing_ok=True)


def strangers(folder: Path, form: Form) -> Iterator[Path]:
    """Yield what in a folder of some form, or under its names, Seriatim did not write."""
    names = _names(folder, form)
    for path in _entries(folder):
        inner = _find(form.folders, path.name)
        if not _is_ours(path, form, names):
            yield path
        elif inner is not None and _is_folder(path):
            yield from strangers(path, inner)


def refuse_strangers(folder: Path, form: Form) -> None:
    """Raise InputError if something in a folder that is to be replaced is not ours.

    Beside what a list names, everything is allowed whose name the new run or comparison will not use.
    """
    listed = _listed(folder, form) is not None
    for path in strangers(folder, form):
        name = path.relative_to(folder).as_posix()
        if not listed or _is_used(form, name.partition("/")[0]):
            if written_kind(folder) == form.kind:
                reason = f"its {name} was not written by Seriatim and would be lost"
                raise ExistsError(f"{folder}: {reason}; move it elsewhere, or choose another --out")
            raise ExistsError(f"{folder}: not a {form.kind}, and its {name} would be lost; choose another --out")


def clear(folder: Path, form: Form, keep: Collection[str] = ()) -> None:
    """Remove what Seriatim wrote into a folder, but for its lock, and for what its links lead to."""
    names = _names(folder, form)
    last = (form.first, LIST)  # by which the rest is known
    for path in sorted(_entries(folder), key=lambda path: last.index(path.name) if path.name in last else -1):
        if path.name in (LOCK, SESSION, *keep) or not _is_ours(path, form, names):
            continue
        inner = _find(form.folders, path.name)
        if inner is not None and _is_folder(path):
            discard(path, inner)
        else:
            path.unlink(missing_ok=True)


def discard(folder: Path, form: Form) -> None:
    """Remove a folder that Seriatim wrote; if the user put something into it, that and the folder stay."""
    if folder.is_symlink():
        folder.unlink()
        return
    clear(folder, form)
    with suppress(OSError):
        if [path.name for path in _entries(folder)] == [LOCK]:
            (folder / LOCK).unlink()
        folder.rmdir()


def outer(folder: Path) -> Path:
    """Return the folder that the user named: of the stage the one around it."""
    return folder.parent if folder.name == STAGE else folder


def latest_folder(folder: Path, form: Form) -> Path:
    """Return the folder of the run or comparison that was begun last in a folder: that folder, or its stage."""
    stage = folder / STAGE
    return stage if (stage / form.first).is_file() and not stage.is_symlink() else folder


def begin(folder: Path, form: Form, is_kept: Callable[[Path], bool]) -> Path:
    """Return where to write a new run or comparison in a folder that this process has locked.

    That is the stage if what is there is kept until `settle` is called; else the folder, after its files are removed.
    """
    recover(folder)
    new = folder / STAGE if is_kept(folder) else folder
    for path in (folder / STAGE, folder / DECIDED):
        if not _is_folder(path):  # a link or a file, which is not ours
            path.unlink(missing_ok=True)
    new.mkdir(exist_ok=True)
    clear(new, form)
    record(new, form)
    return new


def settle(written: Path) -> Path:
    """Let what was written into a stage take the place of what is around it, and return its new folder.

    The folder around it is locked. A folder that is no stage is returned as it is.
    """
    folder = outer(written)
    if folder != written:
        flush(written)
        written.rename(folder / DECIDED)
        flush(folder)
        _replace(folder)
    return folder


def recover(folder: Path) -> None:
    """Finish what a process was killed at that replaced what is in a folder, which this process has locked."""
    if _is_folder(folder / DECIDED):
        _replace(folder)


def finish_replacing(folder: Path) -> None:
    """Recover a folder that is not locked; wait while another process replaces what is in it.

    Raises:
        InputError: this process cannot write there.
    """
    deadline = time.monotonic() + MAX_SECONDS
    while _is_folder(folder / DECIDED):
        try:
            with locked(folder):
                recover(folder)
        except (InputError, OSError) as error:
            if time.monotonic() > deadline:
                reason = "a process ended while it replaced this folder, and this one cannot finish that"
                raise UnwritableError(f"{folder}: {reason} ({error}); make the folder writable") from None
            time.sleep(POLL_SECONDS)


def steadily(folder: Path, read: Callable[[], Result]) -> Result:
    """Return what ``read`` returns; if the run in a folder is replaced meanwhile, it reads again.

    So nobody reads some files of an old run and some of a new one.
    """
    for _ in range(ATTEMPTS):
        finish_replacing(folder)
        before = file_state(folder / RUN.first)
        try:
            result = read()
        except Exception:  # files of two runs do not fit one another, in one way or another
            if file_state(folder / RUN.first) == before and not _is_folder(folder / DECIDED):
                raise
        else:
            if file_state(folder / RUN.first) == before and not _is_folder(folder / DECIDED):
                return result
    return read()


def file_state(path: Path) -> object:
    """Return what changes when a file is replaced; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _replace(folder: Path) -> None:
    """Move the entries of a stage that was renamed to their places; begun again at any point, it ends the same."""
    new = folder / DECIDED
    for form in (RUN, COMPARISON):
        if (names := _listed(new, form)) is None:
            continue
        clear(folder, form, keep=(LIST, DECIDED, *names))  # of the new names, some may have their places already
        old = _names(folder, form)
        for path in sorted(_entries(new), key=lambda path: path.name == LIST):  # at last the list
            if path.name not in (LOCK, SESSION):
                _move(path, folder / path.name, form, old)
    shutil.rmtree(new)
    flush(folder)


def _move(source: Path, target: Path, form: Form, names: set[str] | None) -> None:
    inner = _find(form.folders, target.name)
    if os.path.lexists(target) and not _is_ours(target, form, names):
        _set_aside(target)
    elif inner is not None and _is_folder(target):
        discard(target, inner)
        if _is_folder(target):  # with something of the user, added after the last check
            for path in _entries(source):
                _move(path, target / path.name, inner, None)
            return
    if target.is_symlink():  # which a folder cannot replace
        target.unlink()
    source.replace(target)


def _set_aside(path: Path) -> None:
    """Give a file or folder of the user another name."""
    number, aside = 1, path.with_name(f"{path.name}.kept")
    while os.path.lexists(aside):
        number, aside = number + 1, path.with_name(f"{path.name}.kept.{number}")
    path.rename(aside)
    warnings.warn(f"{path}: was not written by Seriatim, and is now {aside.name}", stacklevel=3)


def _is_ours(path: Path, form: Form, names: set[str] | None) -> bool:
    """Return whether Seriatim wrote an entry of a folder; ``names`` are those that `_names` returns for it.

    Links to files and folders of a run or a comparison are ours, too: to remove one loses nothing.
    """
    name = path.name
    inner, mark = _find(form.folders, name), _find(form.files, name)
    if name in OWN:
        return True
    if inner is None and mark is None:
        return False
    if path.is_symlink():
        return names is None or bool(names)
    is_page = name.endswith(".html")  # which is written while another process may hold the lock, and the list
    if names is not None and name not in names and not is_page and not name.endswith(PARTIAL):
        return False
    if path.is_dir() or mark is None:
        return inner is not None and path.is_dir()
    if names is None and not _has_task_for(path):
        return False
    # A listed file is ours whatever damaged it, but for those that people write, too.
    return has_mark(path, mark if names is None or is_page or name == CARD else b"")


def _has_task_for(path: Path) -> bool:
    """Return whether the task of a run may write one of its files; those of other packages may write all of them."""
    tasks = VOCABULARY.get(path.name)
    found = re.search(rb"^task: *[\"']?(\w+)", read_head(path.parent / RUN.first) or b"", re.MULTILINE)
    return tasks is None or found is None or found[1] in tasks or found[1] not in KNOWN_TASKS


def _is_folder(path: Path) -> bool:
    """Return whether a path is that of a folder, and not of a link to one, in which nothing may be removed."""
    return path.is_dir() and not path.is_symlink()


def _is_used(form: Form, name: str) -> bool:
    """Return whether a name is one of a form."""
    return _find({**form.files, **form.folders}, name) is not None


def _find(table: Mapping[str, Result], name: str) -> Result | None:
    return next((value for pattern, value in table.items() if fnmatchcase(name, pattern)), None)


def _names(folder: Path, form: Form) -> set[str] | None:
    """Return the names in a folder that are ours; None if it has no list, and the form of each entry decides.

    Without a list, nothing is ours in a folder where not even the first file is that of a run or a comparison.
    """
    listed = _listed(folder, form)
    return set() if listed is None and form.kind and not _has_first(folder, form) else listed


def _has_first(folder: Path, form: Form) -> bool:
    return form.files[form.first] in (read_head(folder / form.first) or b"")


def _listed(folder: Path, form: Form) -> set[str] | None:
    """Return the names in the list of a folder; None if it has none, or that of another kind of folder."""
    if not form.kind:
        return None
    try:
        fields = read_json(folder / LIST, max_bytes=MAX_BYTES, remedy="")
        if (fields["format"], fields["kind"]) == (FORMAT, form.kind):
            return {str(name) for name in fields["files"]}
    except (InputError, KeyError, TypeError):
        pass
    return None


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing if there is no folder, which another process may have removed."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
