"""The two column formats of CoNLL files: how one line becomes a word and its tag.

CoNLL-U (https://universaldependencies.org/format.html) has ten columns between tabs; ids such as ``1-2`` and ``8.1``
are not words, and lines that begin with ``#`` are comments. In the columns of CoNLL-2003, between tabs or spaces, the
word is first; ``-DOCSTART-`` begins a document. That format has no comments, but real files have them.
"""

import re
from collections.abc import Callable

from ..core.errors import RangeError, UnknownNameError, nearest, shown
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
COMMENT = "#"
ID = re.compile(r"[0-9]+([-.][0-9]+)?")
COLUMN_NUMBER = re.compile("[2-9]|[1-9][0-9]{1,3}")
FIELD = re.compile("[^ ]+")
MAX_TAG = 1000  # the largest number of characters of a tag
SHOWN_DIGITS = 18  # the number of characters of an id that a message shows


class BadLineError(Exception):
    """The problem and the remedy for one line; the caller adds the file and the line number."""


class ConlluFormat:
    """The lines of a CoNLL-U file; columns are given by their names, ``upos`` if None for that of the tags."""

    has_comments = True

    def __init__(self, column: str | None, *further: str, labelled: bool) -> None:
        names = column or "upos", *further
        for name in names:
            if name not in TAG_COLUMNS:
                raise UnknownNameError(f"column {name!r}: CoNLL-U has no such column; {nearest(name, TAG_COLUMNS)}")
        (self.column, *self.further), self.labelled, self.next_id = map(CONLLU.index, names), labelled, 1
        self.needed, self.needed_by = 0, ""  # the last word that a range or an empty node names, and its id
        self.last_range = 0, ""  # the last word of the range before, and its id

    def separates(self, line: str) -> bool:
        """Return whether a line is blank."""
        return not line.strip(BLANKS)

    def is_comment(self, line: str, *, begins: bool) -> bool:
        """Return whether a line is a comment."""
        return line.startswith(COMMENT)

    def end(self) -> tuple[str, int] | None:
        """End a sentence; return the id of a range or an empty node and the word that it names, if that is missing."""
        missing = (self.needed_by, self.needed) if self.needed >= self.next_id else None
        self.next_id, self.needed, self.needed_by, self.last_range = 1, 0, "", (0, "")
        return missing

    def read(self, line: str) -> tuple[str, ...] | None:
        """Return the word, its tag and its further columns, or None for multiword tokens and empty nodes."""
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
            self._note_needed(word_id)
            return None

        # A wrong number shows where two sentences ran together, or where a line is lost.
        if word_id != str(self.next_id):
            remedy = "put a blank line between sentences" if word_id == "1" else "number the words 1, 2, 3, ..."
            raise BadLineError(f"id {word_id[:SHOWN_DIGITS]} where {self.next_id} is expected; {remedy}")
        self.next_id += 1

        # The format writes _ for what is missing, so that an empty column is a mistake.
        if not word:
            raise BadLineError("an empty word; write it into the second column")
        if not tag:
            raise BadLineError(f"an empty column {CONLLU[self.column]}; write a tag, or _ for none")
        _check_tag(tag, self.labelled)
        if tag == MISSING and self.labelled and CONLLU[self.column] in NEVER_MISSING:
            raise BadLineError(f"no tag in column {CONLLU[self.column]}; tag this word, or choose another column")
        return word, tag, *(fields[at] or MISSING for at in self.further)

    def tidied(self, line: str) -> str | None:
        """Return a line with one tab between its columns; None unless it can be read so in one way."""
        fields = separated(line)
        return "\t".join(fields) if len(fields) == len(CONLLU) else None

    def is_blank(self, line: str) -> bool:
        """Return whether a line holds nothing that is seen."""
        return not line.strip(ALL_BLANKS)

    def _note_needed(self, word_id: str) -> None:
        """Note that a range such as ``2-3`` needs the word 3, and an empty node such as ``8.1`` the word 8."""
        first, hyphen, last = word_id.partition("-")
        named = (last if hyphen else word_id.partition(".")[0])[: SHOWN_DIGITS + 1]
        if hyphen and (int(first[: SHOWN_DIGITS + 1]) > int(named) or not int(first)):
            raise BadLineError(f"{word_id[:SHOWN_DIGITS]} is no range of words; write the first and the last one")
        if hyphen:
            start, (before, before_id) = int(first[: SHOWN_DIGITS + 1]), self.last_range
            if start <= before:
                raise BadLineError(f"{word_id[:SHOWN_DIGITS]} overlaps {before_id[:SHOWN_DIGITS]}; correct one of them")
            if start != self.next_id:
                problem = f"{word_id[:SHOWN_DIGITS]} where the word {self.next_id} is expected"
                raise BadLineError(f"{problem}; write a range before its first word")
            self.last_range = int(named), word_id
        if int(named) > self.needed:
            self.needed, self.needed_by = int(named), word_id


class ColumnsFormat:
    """The lines of a file in the columns of CoNLL-2003; columns are given by their numbers from 2.

    The column of the tags is by default the last. It may be missing unless tags are required; it is then the last
    one that is not a further column. The columns of the file are those of ``first``, a line that is no comment.
    ``is_tag`` says of the content of the column of the tags whether it is a known tag.
    """

    has_comments = False

    def __init__(
        self, column: str | None, *further: str, labelled: bool, first: str, is_tag: Callable[[str], bool]
    ) -> None:
        for name in (column or "2", *further):
            if not COLUMN_NUMBER.fullmatch(name):
                raise RangeError(f"column {name!r}: the columns of this file are numbered; give a number from 2 on")
        self.requested, self.labelled, self.first, self.is_tag = column, labelled, first, is_tag
        self.further = [int(name) - 1 for name in further]
        self.column, self.count, self.tabs = 0, 0, False
        self.ends_empty = False  # whether the last column is empty, for the tags that are to come
        self.seen: set[str] = set()  # what the column of the tags holds

    def separates(self, line: str) -> bool:
        """Return whether a line is blank or begins a document."""
        if line.startswith(DOCUMENT):
            return line[len(DOCUMENT) : len(DOCUMENT) + 1] in ("", *BLANKS)
        return not line.strip(BLANKS)

    def is_comment(self, line: str, *, begins: bool) -> bool:
        """Return whether a line is a comment: it begins with ``#`` before the first word of a sentence, and is no word.

        A line with the columns of the file is a word (``#tag O``), and so is one with a known tag, if a blank follows
        the ``#`` (``# O``, but not ``# newdoc``) or its columns are separated irregularly.
        """
        if not begins or not line.startswith(COMMENT):
            return False
        try:
            regular = self._fields(line)
        except BadLineError:  # of the first word, which is still to come
            return True
        if len(regular) == self.count and not line.startswith(f"{COMMENT} "):
            return False
        fields = separated(line)
        if len(fields) != self.count or self.column >= self.count:
            return True
        return fields[self.column] not in self.seen and not self.is_tag(fields[self.column])

    def end(self) -> None:
        """End a sentence."""

    def read(self, line: str) -> tuple[str, ...]:
        """Return the word, its tag and its further columns; ``_`` stands for what is missing."""
        fields = self._fields(line)
        if line.startswith("\t" if self.tabs else " "):
            raise BadLineError("an empty word; write it into the first column")
        if len(fields) != self.count or (not self.tabs and "\t" in line):
            separator = "tabs" if self.tabs else "spaces"
            problem = f"{len(fields)} columns between {separator}, but the first word of the file has {self.count}"
            if len(fields) == self.count:
                problem = "a tab, but the columns of the first word of the file are between spaces"
            raise BadLineError(f"{problem}; give every line the same columns")

        # A file that is to be tagged may have no column of tags. If it has one, its entries need not be tags.
        tag = fields[self.column] if self.column < self.count else MISSING
        self.seen.add(tag)
        _check_tag(tag, self.labelled)
        if not tag and self.labelled:
            raise BadLineError("an empty tag; write one, such as O")
        if " " in tag and self.labelled:
            raise BadLineError(f"{shown(tag)} is a text, not a tag; write one word and its tag on each line")
        return fields[0], tag or MISSING, *(fields[at] or MISSING for at in self.further)

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

    def _fields(self, line: str) -> list[str]:
        """Return the columns of a line as the first word of the file separates them."""
        if not self.count:
            self._read_layout(self.first)
        return line.split("\t") if self.tabs else FIELD.findall(line)

    def _read_layout(self, line: str) -> None:
        """Set the separator and the number of columns from the first word of a file."""
        line = line.rstrip(ALL_BLANKS) if self.labelled else line
        tabs = "\t" in line
        count = len(line.split("\t")) if tabs else len(FIELD.findall(line))
        columns = f"{count} column{'s'[: count > 1]}"
        if missing := [at + 1 for at in self.further if at >= count]:
            raise BadLineError(f"{columns}, but the tagger also reads column {missing[0]}; give a file that has it")
        others = (at for at in range(1, count) if self.labelled or at not in self.further)
        column = max(others, default=count) if self.requested is None else int(self.requested) - 1
        if column in self.further:
            raise BadLineError(f"column {column + 1} has the tags; leave it out of data.features, or give more columns")
        if column > count - self.labelled:
            raise BadLineError(f"{columns}, but column {column + 1} should have the tags; choose another column")
        self.tabs, self.count, self.column, self.ends_empty = tabs, count, column, line.endswith("\t")
        if not line.startswith(COMMENT):
            self.seen.update(separated(line)[column : column + 1])


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
