"""The two column formats of CoNLL files: how one line becomes a word and its tag.

CoNLL-U (https://universaldependencies.org/format.html) has ten columns between tabs; ids such as ``1-2`` and ``8.1``
are not words. In the columns of CoNLL-2003, between tabs or spaces, the word is first; ``-DOCSTART-`` begins a
document.
"""

import re

from ..core.errors import InputError, nearest, shown
from .spellings import BLANKS as ALL_BLANKS

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAG_COLUMNS = ("form", "lemma", "upos", "xpos", "feats", "deprel")
CASE_SENSITIVE = ("xpos", "feats")
"""Columns whose tags are of a language or a treebank, and may differ in letter case only."""
NEVER_MISSING = ("upos", "xpos", "deprel")
"""Columns in which ``_`` means that there is no tag. In the other columns ``_`` can be a tag."""
MISSING = "_"
DOCUMENT = "-DOCSTART-"
BLANKS = " \t"
ID = re.compile(r"[0-9]+([-.][0-9]+)?")
COLUMN_NUMBER = re.compile("[2-9]|[1-9][0-9]{1,3}")
FIELD = re.compile("[^ ]+")
MAX_TAG = 1000  # the largest number of characters of a tag
SHOWN_DIGITS = 18  # the number of characters of an id that a message shows


class BadLineError(Exception):
    """The problem and the remedy for one line; the caller adds the file and the line number."""


class ConlluFormat:
    """The lines of a CoNLL-U file; the column is given by its name, ``upos`` if None."""

    marks_chunks = False

    def __init__(self, column: str | None, labelled: bool) -> None:
        name = column or "upos"
        if name not in TAG_COLUMNS:
            raise InputError(f"column {name!r}: CoNLL-U has no such tag column; {nearest(name, list(TAG_COLUMNS))}")
        self.column, self.labelled, self.next_id = CONLLU.index(name), labelled, 1
        self.tells_case_apart = name in CASE_SENSITIVE

    def separates(self, line: str) -> bool:
        """Return whether a line is blank."""
        is_blank = not line.strip(BLANKS)
        self.next_id = 1 if is_blank else self.next_id
        return is_blank

    def read(self, line: str) -> tuple[str, str] | None:
        """Return the word and its tag, or None for comments, multiword tokens and empty nodes."""
        if line.startswith("#"):
            return None
        fields = line.split("\t")
        if len(fields) != len(CONLLU):
            spaces = len(fields) < len(CONLLU) <= len(line.split())
            remedy = "put one tab instead of spaces between columns" if spaces else "fix this line"
            raise BadLineError(f"{len(fields)} columns between tabs, CoNLL-U has {len(CONLLU)}; {remedy}")
        word_id, word, tag = fields[0], fields[1], fields[self.column]
        if not ID.fullmatch(word_id):
            remedy = "ids count up from 1, or look like 1-2 or 8.1"
            raise BadLineError(f"{shown(word_id)} is not the id of a word; {remedy}")
        if not word_id.isdigit():
            return None
        if word_id != str(self.next_id):
            remedy = "put a blank line between sentences" if word_id == "1" else "number the words 1, 2, 3, ..."
            raise BadLineError(f"id {word_id[:SHOWN_DIGITS]} where {self.next_id} is expected; {remedy}")
        self.next_id += 1
        if not word:
            raise BadLineError("an empty word; write it into the second column")
        if not tag:
            raise BadLineError(f"an empty column {CONLLU[self.column]}; write a tag, or _ for none")
        _check_tag(tag, self.labelled)
        if tag == MISSING and self.labelled and CONLLU[self.column] in NEVER_MISSING:
            raise BadLineError(f"no tag in column {CONLLU[self.column]}; tag this word, or choose another column")
        return word, tag

    def tidied(self, line: str) -> str | None:
        """Return a line with one tab between its columns; None unless it can be read so in one way."""
        fields = separated(line)
        return "\t".join(fields) if len(fields) == len(CONLLU) else None

    def is_blank(self, line: str) -> bool:
        """Return whether a line holds nothing that is seen."""
        return not line.strip(ALL_BLANKS)


class ColumnsFormat:
    """The lines of a file in the columns of CoNLL-2003; the column is given by its number from 2, the last if None.

    The column may be missing unless tags are required.
    """

    marks_chunks, tells_case_apart = True, False

    def __init__(self, column: str | None, labelled: bool) -> None:
        if column is not None and not COLUMN_NUMBER.fullmatch(column):
            raise InputError(f"column {column!r}: the columns have no names; give the number of a column, from 2")
        self.requested, self.labelled = column, labelled
        self.column, self.count, self.tabs = 0, 0, False
        self.ends_empty = False  # whether the last column is empty, for the tags that are to come

    def separates(self, line: str) -> bool:
        """Return whether a line is blank or begins a document."""
        if line.startswith(DOCUMENT):
            return line[len(DOCUMENT) : len(DOCUMENT) + 1] in ("", *BLANKS)
        return not line.strip(BLANKS)

    def read(self, line: str) -> tuple[str, str]:
        """Return the word and its tag; ``_`` stands for a missing tag."""
        if not self.count:
            self._read_layout(line)
        fields = line.split("\t") if self.tabs else line.split(" ")
        if not fields[0]:
            raise BadLineError("an empty word; write it into the first column")
        if not self.tabs:
            fields = [field for field in fields if field]
        if len(fields) != self.count or (not self.tabs and "\t" in line):
            separator = "tabs" if self.tabs else "spaces"
            problem = f"{len(fields)} columns between {separator}, but the first word of the file has {self.count}"
            if len(fields) == self.count:
                problem = "a tab, but the columns of the first word of the file are between spaces"
            raise BadLineError(f"{problem}; give every line the same columns")
        tag = fields[self.column] if self.column < self.count else MISSING
        _check_tag(tag, self.labelled)
        if not tag and self.labelled:
            raise BadLineError("an empty tag; write one, such as O")
        if " " in tag and self.labelled:
            raise BadLineError(f"{shown(tag)} is a text, not a tag; write one word and its tag on each line")
        return fields[0], tag or MISSING

    def tidied(self, line: str) -> str | None:
        """Return a line with its columns separated as in the first line; None unless it can be read so in one way."""
        fields = separated(line)
        if self.ends_empty and len(fields) == self.count - 1:
            fields.append("")
        if len(fields) != self.count or (not self.tabs and any(" " in field for field in fields)):
            return None
        return ("\t" if self.tabs else " ").join(fields)

    def is_blank(self, line: str) -> bool:
        """Return whether a line holds nothing that is seen; in a single column, that may be a word."""
        return not line.strip(ALL_BLANKS) and (self.labelled or self.count > 1)

    def _read_layout(self, line: str) -> None:
        """Set the separator and the number of columns from the first word of a file."""
        line = line.rstrip(ALL_BLANKS) if self.labelled else line
        tabs = "\t" in line
        count = len(line.split("\t")) if tabs else len(FIELD.findall(line))
        column = max(1, count - 1) if self.requested is None else int(self.requested) - 1
        if column > count - self.labelled:
            columns = f"{count} column{'s'[: count > 1]}"
            problem = f"{columns}, but the tags are expected in column {column + 1}"
            raise BadLineError(f"{problem}; write them there, or choose another column")
        self.tabs, self.count, self.column, self.ends_empty = tabs, count, column, line.endswith("\t")


LineFormat = ConlluFormat | ColumnsFormat


def separated(line: str) -> list[str]:
    """Return the columns of a line without the blanks around them, whatever number of tabs or spaces is between them.

    If there is a tab, only tabs separate: a word may contain spaces.
    """
    line = line.strip(ALL_BLANKS)
    fields = line.split("\t") if "\t" in line else FIELD.findall(line)
    return [field.strip(ALL_BLANKS) for field in fields if field.strip(ALL_BLANKS)]


def _check_tag(tag: str, labelled: bool) -> None:
    """Raise BadLineError for a tag that is too long to be a tag."""
    if labelled and len(tag) > MAX_TAG:
        raise BadLineError(f"a tag of {len(tag):,} characters; check that the column holds tags")
