"""What is to be tagged: sentences in columns, or plain text, a sentence a line with spaces between its words."""

import itertools
from collections.abc import Iterable, Iterator

from ..core.errors import InputError
from .conll import DOCUMENT, Sentence, parse
from .paths import plain_name
from .readers import TAGGED_SUFFIXES, Source, read_items

COLUMNS, PLAIN = ("conllu", "conll"), ("text", "jsonl")


def read_untagged(
    sources: Iterable[Source], *, file_format: str | None = None, column: str | None = None
) -> Iterator[Sentence | str]:
    """Reads sentences of files in columns and lines of plain text, one by one.

    Args:
        sources: from `find_sources`.
        file_format: ``conllu``, ``conll`` or ``text``; None or ``auto`` to take for columns what is called so
            (``.conllu``, ``.conll``), and what has a tab, or ``-DOCSTART-``, in its first line that is neither blank
            nor begins with ``#``.
        column: as for `read_sentences`.

    Raises:
        InputError: another format, or columns that are not as they must be.
    """
    wanted = file_format or "auto"
    if wanted not in ("auto", *COLUMNS, *PLAIN):
        raise InputError(f"format {wanted!r}: not of sentences; give conllu, conll or text")
    for source in sources:
        lines, found = read_items([source]), wanted
        if wanted == "auto" and source.format != "jsonl":
            columns, lines = _in_columns(source, lines)
            found = "auto" if columns else "text"
        if found in PLAIN or source.format == "jsonl":
            yield from lines
        else:
            yield from parse(lines, source.name, file_format=_named(source) or found, column=column, labelled=False)


def _named(source: Source) -> str:
    """The format that the file's name says, if any."""
    name = plain_name(source.name)
    return next((suffix[1:] for suffix in TAGGED_SUFFIXES if name.endswith(suffix)), "")


def _in_columns(source: Source, lines: Iterator[str]) -> tuple[bool, Iterator[str]]:
    """Whether a file is in columns, and all its lines, those looked at included."""
    if _named(source):
        return True, lines
    held: list[str] = []
    first = ""
    for line in lines:
        held.append(line)
        if line.strip() and not line.startswith("#"):
            first = line
            break
    return "\t" in first or first.startswith(DOCUMENT), itertools.chain(held, lines)
