"""The sources that the name of some data stands for: files, folders, globs, pipes, built-in corpora and the hub.

What Seriatim writes is not data: runs, comparisons and caches within a folder, or found by the wildcards of a glob, are
left out. A file that is named itself, or in whose folder a glob begins, is read wherever it lies.

Anybody may have written a run, and the user has not typed the names of the files in its configuration. Therefore it may
name only regular files, and folders and globs of a bounded size. A user may also name a pipe.

``builtin:python-docs`` needs no download: the help topics and docstrings of Python are about two million characters of
English; of ten modules eight are for training. The tasks of `synthetic` are built in as TSV; in their splits
``train-N``, ``valid-N`` and ``test-N`` every distance is N.

``hf:NAME``, ``hf:NAME:CONFIG``, ``hf:NAME:CONFIG:PART`` and ``hf:FOLDER`` are data sets of the ``datasets`` package.
NAME is the name of a data set on the Hugging Face hub; FOLDER is a folder that ``load_dataset`` reads or
``save_to_disk`` wrote. CONFIG may be empty. PART is a split of the data set; without it the split is chosen by purpose.
"""

import ast
import functools
import glob
import gzip
import itertools
import json
import os
import platform
import re
import shlex
import stat
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

from ..core.errors import (
    AmbiguousError,
    EmptyError,
    ExistsError,
    ForbiddenError,
    MissingError,
    RangeError,
    RequiredError,
    UnavailableError,
    UnknownNameError,
    UnreadableError,
    nearest,
    printable,
    shown,
)
from ..storage.disk_cache import cached
from ..storage.written_folders import of_others, written_kind
from .pipes import arrived, spool
from .synthetic import COUNTS, LONGEST, SYNTHETIC_TASKS, generate
from .text import Source, TextFile

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson")
TAGGED_SUFFIXES = (".conllu", ".conll")
LABELLED_SUFFIXES = (".tsv", ".csv", ".jsonl", ".ndjson", ".txt", ".text")
PAIRED_SUFFIXES = (".tsv", ".jsonl", ".ndjson", ".txt", ".text")
JSONL_SUFFIXES = (".jsonl", ".ndjson")


def find_sources(
    source: str, *, file_format: str = "auto", split: str = "train", suffixes: Sequence[str] = TEXT_SUFFIXES
) -> list[Source]:
    """Find the files that ``source`` names.

    Args:
        source: a path, a folder, a glob, ``-``, ``builtin:NAME[:SPLIT]`` or ``hf:NAME``.
        file_format: ``text``, ``jsonl``, or ``auto`` to choose by the name.
        split: the split of a built-in corpus or a hub data set, if ``source`` does not name one.
        suffixes: the files of a folder that are read, compressed (``.gz``) or not; hidden files are skipped.

    Raises:
        InputError: no file is found.
    """
    if not source:
        raise RequiredError("the name of the text is empty; give a file, a folder, a glob, - or builtin:python-docs")
    if source.startswith("builtin:"):
        file_format = "tsv" if source.split(":")[1] in SYNTHETIC_TASKS else "text"
        return [Source(source, lambda: builtin_text(source, split).open("rb"), file_format)]
    if source.startswith("hf:"):
        return [Source(source, functools.partial(hub_source, source, split), "jsonl")]
    sources = []
    for name, path in find_paths(source, suffixes).items():
        named = "jsonl" if plain_name(name).endswith(JSONL_SUFFIXES) else "text"
        chosen = named if file_format == "auto" else file_format
        sources.append(Source(name, functools.partial(_open, path), chosen, (str(path.absolute()),)))
    return sources


def standard_input(file_format: str = "text") -> Source:
    """Return standard input, which is answered while it is being written.

    It can be read as often as a file if all of it has arrived, and once otherwise.
    """
    beginning = arrived()
    return Source("<stdin>", beginning.open, file_format, is_input=True, is_live=not beginning.is_all)


def is_compressed(path: Path) -> bool:
    """Return whether a file is decompressed while it is read."""
    return path.suffix.lower() == ".gz"


def _open(path: Path) -> BinaryIO:
    open_file = gzip.open if is_compressed(path) else open
    return cast(BinaryIO, TextFile(cast(BinaryIO, open_file(path, "rb"))))


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
        raise UnreadableError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None

    readable: list[Path] = []
    skipped: list[Path] = []
    written: list[Path] = []
    for directory, folders, files in os.walk(folder, onerror=refuse):
        # A run below the folder is skipped as a whole. The folder itself was named by the user: what others have put
        # into it is read.
        kind, is_inside = written_kind(Path(directory), files), Path(directory) != folder
        if kind and (is_inside or kind != "cache"):
            written.append(Path(directory))
            folders[:], files = ([], []) if is_inside else (of_others(names, kind) for names in (folders, files))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(directory, name) for name in files):
            matches = plain_name(path.name).endswith(tuple(suffixes))
            if path.name.startswith(".") or not path.is_file():
                skipped.extend([path] if matches else [])
            else:
                (readable if matches else skipped).append(path)
    return FolderFiles(sorted(readable), sorted(skipped), sorted(written))


def skipped_files(source: str, suffixes: Sequence[str]) -> list[str]:
    """Return the files of the folder ``source`` that are not read; an empty list if ``source`` is not a folder."""
    folder = Path(source)
    return [str(path.relative_to(folder)) for path in list_folder(folder, suffixes).skipped] if _is_dir(source) else []


def find_paths(source: str, suffixes: Sequence[str]) -> dict[str, Path]:
    """Find the files that ``source`` names, each by its name in messages. Standard input or a pipe is copied to a file.

    It warns of the files of a folder or a glob that are not read.

    Raises:
        InputError: there are no such files, ``source`` is a device, or the output of this process goes to such a file.
    """
    if source == "-":
        return {"<stdin>": spool(source)}
    path = Path(source)
    if _is_dir(source):
        paths = _paths_of_folder(source, suffixes)
    elif path.exists():
        if not path.is_file():
            return {source: spool(source)}
        paths = [path]
    else:
        paths = _paths_of_glob(source)

    # A file that grows while it is read would never end.
    for path in paths:
        if _is_output(path):
            raise ExistsError(
                f"{path}: it is read, and the output of this command goes there; send the output elsewhere"
            )
    return {str(path): path for path in paths}


def _is_output(path: Path) -> bool:
    """Return whether standard output or standard error of this process goes to a file."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return True
    return False


def _paths_of_glob(source: str) -> list[Path]:
    matches = sorted(Path(match) for match in glob.glob(source, recursive=True) if Path(match).is_file())
    base = _base_of_glob(source)
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
        problem = "no file matches" if glob.has_magic(source) else "no such file"
        found = f" ({_left_out(list(written))})" if written else ""
        raise MissingError(f"{source}: {problem}{found}; give a file, a folder, a glob, - or builtin:python-docs")
    if written:
        _warn_of_written(source, list(written))
    return paths


def _base_of_glob(source: str) -> Path:
    """Return the folder in which a glob begins, whose name has no wildcards."""
    return next(parent for parent in Path(source).parents if not glob.has_magic(str(parent)))


def _warn_of_written(source: str, folders: Sequence[Path]) -> None:
    warnings.warn(f"{source}: {_left_out(folders)}; to read a file there, name it", stacklevel=4)


def _left_out(folders: Sequence[Path]) -> str:
    """Return in words which folders are left out because Seriatim wrote them."""
    first = printable(str(folders[0]))
    if len(folders) == 1:
        return f"the files of 1 run, comparison or cache were left out: {first}"
    more = f"{len(folders) - 1:,} more"
    return f"the files of {len(folders):,} runs, comparisons or caches were left out: {first} and {more}"


def _is_dir(source: str) -> bool:
    try:
        os.stat(source)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        if glob.has_magic(source):
            return False
        reason = getattr(error, "strerror", None) or error
        raise MissingError(f"{source[:80]}: not the name of a file ({reason}); check the name") from None
    return Path(source).is_dir()


def _paths_of_folder(source: str, suffixes: Sequence[str]) -> list[Path]:
    readable, skipped, written = list_folder(Path(source), suffixes)

    # An empty result is most often a folder of files with other names, or one that Seriatim wrote.
    if not readable:
        problem = f"no files to read in this folder (looked for {' '.join(suffixes)}, also .gz)"
        remedy = f"name the files by a glob such as {shlex.quote(source.rstrip('/') + '/*')}"
        if written:
            remedy = f"{_left_out(written)}; to read a file there, name it"
        raise MissingError(f"{source}: {problem}; {remedy}")
    if written:
        _warn_of_written(source, written)
    if skipped:
        names = ", ".join(str(path.relative_to(source)) for path in skipped[:SHOWN_FILES])
        more = f" and {len(skipped) - SHOWN_FILES:,} more" if len(skipped) > SHOWN_FILES else ""
        files = "1 file was" if len(skipped) == 1 else f"{len(skipped):,} files were"
        reason = f"hidden, no regular file, or not named {' '.join(suffixes)}"
        warnings.warn(
            f"{source}: {files} not read ({reason}): {printable(names)}{more}; use a glob to name files of any kind",
            stacklevel=2,
        )
    return readable


def check_named_by_run(source: str, key: str, *, downloads: bool = False) -> None:
    """Refuse files that a run's configuration must not name. All other files are safe to open.

    ``key`` is the field that names ``source``. ``hf:NAME`` is only allowed with ``downloads``, such as when the user
    resumes a training on it.

    Raises:
        InputError: ``source`` is neither a regular file, nor a folder or glob of a bounded size, nor built in.
    """
    if source == "-" or source.startswith("builtin:") or (downloads and source.startswith("hf:")):
        return
    remedy = "if you trust it, name the data on the command line"
    if source.startswith("hf:"):
        raise ForbiddenError(f"{key}: the run's configuration names {source}, which would be downloaded; {remedy}")
    # A glob may hold commas.
    names = [source] if os.path.exists(source) else dict.fromkeys((source, *source.split(",")))
    for name in names:
        reason = _problem(name)
        if reason:
            raise ForbiddenError(f"{key}: the run's configuration names {name[:80]}, {reason}; {remedy}")


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
    for directory, folders, files in os.walk(base, followlinks=True):
        entries += len(folders) + len(files)
        if entries > MAX_ENTRIES or time.monotonic() - started > MAX_SECONDS:
            return f"which contains more than {MAX_ENTRIES:,} files, or more than can be listed in {MAX_SECONDS:g} s"
        if bounded and len(Path(directory).parts) - len(base.parts) >= len(below) - 1:
            folders.clear()
    return ""


DOCS_FORMAT = 1
TASK_FORMAT = 1
SPLITS = ("train", "valid", "test")
CORPORA = ("python-docs",)
SKIPPED_MODULES = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "__pycache__"}


def builtin_text(source: str, split: str) -> Path:
    """Return the file of one split of a built-in corpus or task, which is made on first use.

    ``source`` is ``builtin:NAME`` or ``builtin:NAME:SPLIT``; ``split`` is used if it does not name one.

    Raises:
        InputError: no such corpus, task or split.
    """
    name, colon, named = source.removeprefix("builtin:").partition(":")
    known = [*CORPORA, *SYNTHETIC_TASKS]
    if name not in known:
        raise UnknownNameError(f"{source}: no such built-in corpus; {nearest(name, known)}")
    requested = named if colon else split
    if name in SYNTHETIC_TASKS:
        return _task_file(source, name, requested)
    if requested not in SPLITS:
        raise UnknownNameError(f"{source}: no such part; choose from {', '.join(SPLITS)}")
    folder = cached(f"{name}-{DOCS_FORMAT}-{platform.python_version()}", _write_python_docs)
    return folder / f"{requested}.txt"


def builtin_tokens(source: str | None) -> str | None:
    """Return the kind of token in which a built-in task counts distances; None for other data."""
    prefix, _, name = (source or "").partition(":")
    task = SYNTHETIC_TASKS.get(name.partition(":")[0])
    return task.tokens if prefix == "builtin" and task is not None else None


def builtin_task(source: str | None) -> str | None:
    """Return the task that a built-in task is for, ``classify`` or ``seq2seq``; None for other data."""
    if builtin_tokens(source) is None:
        return None
    return "classify" if SYNTHETIC_TASKS[str(source).split(":")[1]].header else "seq2seq"


def _task_file(source: str, name: str, requested: str) -> Path:
    """Return the file of one split of a task; every distance is N if ``requested`` ends in ``-N``."""
    task, parsed = SYNTHETIC_TASKS[name], re.fullmatch(rf"({'|'.join(SPLITS)})(?:-([1-9][0-9]{{0,8}}))?", requested)
    if not parsed:
        raise UnknownNameError(f"{source}: no such part; choose from {', '.join(SPLITS)}, or add -N for distance N")
    split, distance = parsed[1], int(parsed[2]) if parsed[2] else None
    if distance and not task.shortest <= distance <= LONGEST:
        raise RangeError(f"{source}: no such distance; choose from {task.shortest} to {LONGEST}")

    def write(folder: Path) -> None:
        with (folder / f"{requested}.tsv").open("w", encoding="utf-8", newline="\n") as file:
            file.write(task.header)
            file.writelines("\t".join(row) + "\n" for row in generate(name, split, COUNTS[split], distance=distance))

    return cached(f"{name}-{TASK_FORMAT}-{requested}", write) / f"{requested}.tsv"


def _write_python_docs(folder: Path) -> None:
    split_of: dict[str, str] = {}  # a text that occurs again stays in its first split
    for i, module in enumerate(_modules()):
        for text in module:
            split_of.setdefault(text, {8: "valid", 9: "test"}.get(i % 10, "train"))
    for split in SPLITS:
        texts = [text for text, chosen in split_of.items() if chosen == split]
        (folder / f"{split}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def _modules() -> Iterator[list[str]]:
    """Iterate over the help topics, then over the docstrings of each module of the standard library."""
    from pydoc_data import topics

    for _, text in sorted(topics.topics.items()):
        yield [text.strip()]
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if SKIPPED_MODULES.isdisjoint(path.relative_to(library).parts) and (docstrings := _docstrings(path)):
            yield docstrings


def _docstrings(path: Path) -> list[str]:
    """Return every docstring of a module from its source, which is not executed."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates that are not valid Python
        return []
    docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return [text.strip() for text in docstrings if text and text.strip() and "\0" not in text]


SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
COLUMN_TYPES = re.compile("(large_)?string|u?int|bool")  # the types of the columns that are read
SAVED_FILES = ("dataset_dict.json", "dataset_info.json")  # the files that `save_to_disk` writes into a folder


class HubSplit(Protocol):
    """A split of a data set: the interface of ``datasets.Dataset`` that is used."""

    column_names: list[str]

    def __getitem__(self, column: str) -> Sequence[object]: ...


def hub_source(source: str, split: str) -> BinaryIO:
    """Return one split of a data set as JSONL in a temporary file.

    Columns of text, integers and truth values become fields; the numbers of classes become their names.

    Raises:
        InputError: the package, the data set or its split is missing, or a class has no name.
    """
    name, _, rest = source.removeprefix("hf:").partition(":")
    config, _, named = rest.partition(":")
    splits = _load_data_set(source, name, config)
    accepted = (named,) if named else SPLIT_NAMES[split]
    chosen = next((name for name in accepted if name in splits), None)
    if chosen is None:
        problem = f"no part {shown(named or split)} (it has {', '.join(splits)})"
        raise AmbiguousError(f"{source}: {problem}; name one as hf:{name}:{config}:PART")

    # The rows are written as JSONL, so that one reader serves data sets and files alike.
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        file.writelines(json.dumps(record).encode() + b"\n" for record in _records_of(source, splits[chosen]))
        if not file.tell():
            raise EmptyError(f"{source}: part {chosen!r} has no rows with text; name another part")
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _load_data_set(source: str, name: str, config: str) -> Mapping[str, HubSplit]:
    """Return the splits of a data set by name."""
    try:
        import datasets
    except ImportError:
        raise UnavailableError(f"{source}: needs the datasets package; pip install 'seriatim[hub]'") from None
    try:
        if any((Path(name) / file).is_file() for file in SAVED_FILES):
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name, config or None)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnavailableError(f"{source}: the datasets package cannot load it ({reason}); check the name") from None
    return loaded if hasattr(loaded, "keys") else {"train": loaded}


def _records_of(source: str, split: HubSplit) -> Iterator[dict[str, object]]:
    """Iterate over the fields of each row; columns of other types are left out."""
    features = getattr(split, "features", None) or {}
    names = [name for name in split.column_names if COLUMN_TYPES.match(getattr(features.get(name), "dtype", "string"))]
    for number, values in enumerate(zip(*(split[name] for name in names), strict=True), start=1):
        record = {}
        for name, value in zip(names, values, strict=True):
            classes = getattr(features.get(name), "int2str", None)
            record[name] = value if classes is None else _class_name(f"{source}:{number}", name, value, classes)
        yield record


def _class_name(where: str, column: str, value: object, name_of: Callable[[object], object]) -> str:
    try:
        return str(name_of(value))
    except ValueError:
        problem = f"{value} in column {shown(column)} is not one of its classes (a part may have no labels)"
        raise UnknownNameError(f"{where}: {problem}; choose another part") from None
