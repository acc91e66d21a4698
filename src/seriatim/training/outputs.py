"""Names for what a command writes: they can be given to other commands, and destroy no run and no user's file."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError
from ..data.vocabulary import FILES
from ..layers.origins import CODE
from ..storage.lock import LOCK
from ..storage.safe_files import is_text, open_regular

RUN_FILES = ("config.yaml", CODE, *FILES, "model.safetensors", "metrics.jsonl", "summary.json", "README.md")
RUN_FOLDERS = ("checkpoints", "tensorboard")
RUN_MARKS = ("config.yaml", "tokenizer.json")
"""Files by which the folder of a run is known."""
COMPARISON = ("runs", "trials", "rows", "results.json", "comparison.yaml")
"""What a comparison needs to go on; its report can be written again."""
HEAD = 4096
"""Bytes at the beginning of a file by which its kind is recognized."""


class Kind(NamedTuple):
    """A kind of file that a command writes, and may therefore replace.

    Attributes:
        name: the kind, for messages.
        mark: bytes near the beginning of every such file, packed (gzip) or not.
        suffixes: of names that no other kind of file has.
    """

    name: str
    mark: bytes
    suffixes: tuple[str, ...] = ()


PAGE = Kind("a page that Seriatim wrote", b'<meta name="generator" content="seriatim">')
ARPA = Kind("an ARPA file", b"\\data\\\n", (".arpa", ".arpa.gz"))


def check_name(out: str) -> None:
    """Raises InputError for the name of a folder that other commands could not be given.

    Commands take several runs with commas between them, and files of weights need names in UTF-8.
    """
    if not is_text(out):
        raise InputError(f"{out}: the name is not UTF-8; choose another --out")
    if not out.isprintable():
        raise InputError(f"{out}: the name holds a line end or another control character; choose another --out")
    if "," in out:
        raise InputError(f"{out}: a comma separates runs on the command line; choose an --out without one")
    if out.startswith("-"):
        raise InputError(f"{out}: a name that begins with - is read as an option; choose another --out, or ./{out}")


def check_file(out: str | Path, kind: Kind, inputs: Iterable[str | None] = ()) -> None:
    """Refuses a file to write that belongs to a run or to a comparison, that is read, or that is of another kind.

    Args:
        out: the file.
        kind: what is written. An existing file is replaced only if it is of this kind, or empty.
        inputs: what is read, as ``data.train`` of a configuration names it.

    Raises:
        InputError: it would be destroyed, or its name is not UTF-8.
    """
    if not is_text(str(out)):
        raise InputError(f"{out}: the name is not UTF-8; choose another --out")
    path = Path(out).resolve()
    for folder in path.parents:
        part = path.relative_to(folder).parts[0]
        if part in (*RUN_FILES, *RUN_FOLDERS, LOCK) and all((folder / name).is_file() for name in RUN_MARKS):
            raise InputError(f"--out: {out} is part of the run {folder}; choose another file")
        if part in COMPARISON and (folder / COMPARISON[-1]).is_file():
            raise InputError(f"--out: {out} is part of the comparison {folder}; choose another file")
    read = [one for spec in inputs if spec for one in (spec, *spec.split(","))]
    if any(Path(one).exists() and Path(one).resolve() == path for one in read):
        raise InputError(f"--out: {out} is one of the files that are read; choose another file")
    if path.exists() and not path.is_dir() and not _replaceable(path, kind):
        raise InputError(f"--out: {out} exists and is not {kind.name}; remove it, or choose another file")


def _replaceable(path: Path, kind: Kind) -> bool:
    """Whether nothing of the user's is lost when a file of this kind takes the place of ``path``."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(HEAD)
    except (OSError, ValueError):  # unreadable, or a pipe or a device
        return False
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD)
        except zlib.error:
            return False
    return not head or path.name.lower().endswith(kind.suffixes) or kind.mark in head
