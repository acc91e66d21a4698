"""Corpora that need no download: ``builtin:python-docs``, and the tasks of `synthetic` as TSV.

The help topics and docstrings of Python are about two million characters of English; of ten modules eight are for
training. In the parts ``train-N``, ``valid-N`` and ``test-N`` of a task every distance is N.
"""

import ast
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import InputError, nearest
from ..storage.disk_cache import cached
from .synthetic import COUNTS, LONGEST, SYNTHETIC_TASKS, generate

FORMAT = 1
TASK_FORMAT = 1
SPLITS = ("train", "valid", "test")
CORPORA = ("python-docs",)
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "__pycache__"}


def builtin_text(spec: str, split: str) -> Path:
    """Return the file of one part of a built-in corpus or task, which is made on first use.

    ``spec`` is ``builtin:NAME`` or ``builtin:NAME:SPLIT``; ``split`` is used if it does not name a part.

    Raises:
        InputError: no such corpus, task or part.
    """
    name, colon, part = spec.removeprefix("builtin:").partition(":")
    known = [*CORPORA, *SYNTHETIC_TASKS]
    if name not in known:
        raise InputError(f"{spec}: no such built-in corpus; {nearest(name, known)}")
    requested = part if colon else split
    if name in SYNTHETIC_TASKS:
        return _task_file(spec, name, requested)
    if requested not in SPLITS:
        raise InputError(f"{spec}: no such part; choose from {', '.join(SPLITS)}")
    folder = cached(f"{name}-{FORMAT}-{platform.python_version()}", _write_python_docs)
    return folder / f"{requested}.txt"


def builtin_format(spec: str) -> str:
    """Return the format of a built-in corpus or task: ``tsv`` or ``text``."""
    return "tsv" if spec.split(":")[1] in SYNTHETIC_TASKS else "text"


def builtin_tokens(spec: str | None) -> str | None:
    """Return the kind of token in which a built-in task counts distances; None for other data."""
    prefix, _, name = (spec or "").partition(":")
    task = SYNTHETIC_TASKS.get(name.partition(":")[0])
    return task.tokens if prefix == "builtin" and task is not None else None


def builtin_task(spec: str | None) -> str | None:
    """Return the task that a built-in task is for, ``classify`` or ``seq2seq``; None for other data."""
    if builtin_tokens(spec) is None:
        return None
    return "classify" if SYNTHETIC_TASKS[str(spec).split(":")[1]].header else "seq2seq"


def _task_file(spec: str, name: str, part: str) -> Path:
    """Return the file of one part of a task; every distance is N if ``part`` ends in ``-N``."""
    task, parsed = SYNTHETIC_TASKS[name], re.fullmatch(rf"({'|'.join(SPLITS)})(?:-([1-9][0-9]{{0,8}}))?", part)
    if not parsed:
        raise InputError(f"{spec}: no such part; choose from {', '.join(SPLITS)}, or add -N for distance N")
    split, distance = parsed[1], int(parsed[2]) if parsed[2] else None
    if distance and not task.shortest <= distance <= LONGEST:
        raise InputError(f"{spec}: no such distance; choose from {task.shortest} to {LONGEST}")

    def write(folder: Path) -> None:
        with (folder / f"{part}.tsv").open("w", encoding="utf-8", newline="\n") as file:
            file.write(task.header)
            file.writelines("\t".join(row) + "\n" for row in generate(name, split, COUNTS[split], distance=distance))

    return cached(f"{name}-{TASK_FORMAT}-{part}", write) / f"{part}.tsv"


def _write_python_docs(folder: Path) -> None:
    split_of: dict[str, str] = {}  # a text that occurs again stays in its first part
    for i, module in enumerate(_modules()):
        for text in module:
            split_of.setdefault(text, {8: "valid", 9: "test"}.get(i % 10, "train"))
    for split in SPLITS:
        texts = [text for text, part in split_of.items() if part == split]
        (folder / f"{split}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def _modules() -> Iterator[list[str]]:
    """Iterate over the help topics, then over the docstrings of each module of the standard library."""
    from pydoc_data import topics

    for _, text in sorted(topics.topics.items()):
        yield [text.strip()]
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(library).parts) and (docstrings := _docstrings(path)):
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
