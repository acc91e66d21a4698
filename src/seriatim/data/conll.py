"""Sentences in columns: a word a line, its tag in one of the columns, blank lines between sentences.

CoNLL-U (https://universaldependencies.org/format.html) has ten columns between tabs; a line that begins with ``#`` is
a comment, and ids such as ``1-2`` (a range of words written as one) and ``8.1`` (a word that is not written) are no
words. What CoNLL-2003 handed out has the word first and the tag last, between tabs or spaces; ``-DOCSTART-`` begins a
document. Chunks are tagged BIO: ``B-X`` begins a chunk of type X, ``I-X`` continues it, ``O`` is outside. An ``I-X``
that continues nothing begins a chunk, as in conlleval and seqeval; it is read as ``B-X`` and recorded as a repair.

A sentence keeps its lines, so that `write` gives them back with other tags and nothing else changed.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..core.errors import InputError, nearest, shown
from .paths import plain_name
from .readers import Source, read_lines
from .repairs import Repairs

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAG_COLUMNS = ("form", "lemma", "upos", "xpos", "feats", "deprel")
NEVER_MISSING = ("upos", "xpos", "deprel")
"""Columns where ``_`` says that there is no tag; in the others it can be one."""
MISSING = "_"
DOCUMENT = "-DOCSTART-"
BLANKS = " \t"
ID = re.compile(r"[0-9]+([-.][0-9]+)?")
NUMBER = re.compile("[2-9]|[1-9][0-9]{1,3}")
FIELD = re.compile("[^ ]+")
TYPED = re.compile("[BI]-.")
DIGITS = 18
"""Of an id that a message shows."""


class Sentence(NamedTuple):
    """A sentence as it stands in a file.

    Attributes:
        words: each word.
        tags: each word's tag; ``_`` where there is none.
        lines: every line from the first to the last blank one behind it, comments included, without line ends.
        rows: which of ``lines`` hold the words.
        column: where in a line the tag stands, from 0; the number of columns where it is yet to be added.
        name: the file.
        number: line of the file, from 1, of the first of ``lines``.
        raw_tags: the tags as they are in the file, where some of ``tags`` are repaired; else None.
    """

    words: list[str]
    tags: list[str]
    lines: list[str]
    rows: list[int]
    column: int
    name: str
    number: int
    raw_tags: list[str] | None = None


def read_sentences(
    sources: Iterable[Source],
    *,
    file_format: str = "auto",
    column: str | None = None,
    scheme: str = "bio",
    labelled: bool = True,
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """Reads sentences one by one.

    Args:
        sources: from `find_sources`.
        file_format: ``conllu``, ``conll``, or ``auto`` to go by the name, else by the first line that holds a word.
        column: which holds the tags: in CoNLL-U its name (``upos`` where None), else its number, from 2 on (the last
            where None).
        scheme: how chunks are tagged: ``bio``, or ``iob1``, which is made BIO. Tags of CoNLL-U are no chunks.
        labelled: whether there must be tags. Without, they are not looked at, and the last column may be missing.
        repairs: where repairs are recorded; None to refuse what needs one.

    Raises:
        InputError: a line that is not what the format asks for, tags that are not BIO, or a file without sentences.
    """
    for source in sources:
        yield from parse(
            read_lines([source]),
            source.name,
            file_format=file_format,
            column=column,
            scheme=scheme,
            labelled=labelled,
            repairs=repairs,
        )


def parse(
    lines: Iterator[str],
    name: str,
    *,
    file_format: str = "auto",
    column: str | None = None,
    scheme: str = "bio",
    labelled: bool = True,
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """As `read_sentences`, of the lines of one file called ``name``."""
    for value, known, what in (
        (file_format, ["auto", "conllu", "conll"], "format"),
        (scheme, ["bio", "iob1"], "scheme"),
    ):
        if value not in known:
            raise InputError(f"{what} {value!r}: not known; {nearest(value, known)}")
    found = file_format
    if found == "auto":
        found, lines = _guess(name, lines)
    kind = _CoNLLU if found == "conllu" else _Columns
    sentences = _sentences(lines, name, kind(column, labelled))
    if found == "conll" and labelled:
        sentences = _as_bio(sentences, scheme, repairs or Repairs(strict=True))
    yield from sentences


def write(sentence: Sentence, tags: Sequence[str]) -> str:
    """The sentence's lines with other tags and nothing else changed; every line ends in LF.

    Raises:
        ValueError: not one tag a word.
    """
    lines = sentence.lines.copy()
    for row, tag in zip(sentence.rows, tags, strict=True):
        lines[row] = _retagged(lines[row], sentence.column, tag)
    return "\n".join([*lines, ""])


def to_bio(tags: Sequence[str]) -> list[str]:
    """IOB1, where ``B-`` only parts a chunk from one of its type right before, made BIO; BIO stays as it is."""
    previous = ["O", *tags]
    return [f"B{tag[1:]}" if _begins(tag, before) else tag for before, tag in zip(previous, tags, strict=False)]


def _begins(tag: str, before: str) -> bool:
    """Whether an ``I-X`` does not go on with what is before it."""
    return tag.startswith("I-") and before not in (tag, f"B{tag[1:]}")


def _retagged(line: str, column: int, tag: str) -> str:
    if "\t" in line:
        fields = line.split("\t", column + 1)
        fields[column : column + 1] = [tag]
        return "\t".join(fields)
    places = list(FIELD.finditer(line))
    if column < len(places):
        return line[: places[column].start()] + tag + line[places[column].end() :]
    return line + ("" if line.endswith(" ") else " " if len(places) > 1 else "\t") + tag


def _guess(name: str, lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The format, and all lines, those looked at included."""
    held = []
    for line in lines:
        held.append(line)
        if line.strip(BLANKS) and not line.startswith("#"):
            break
    fields = held[-1].split() if held else []
    named = plain_name(name).endswith(".conllu")
    like = len(fields) == len(CONLLU) and ID.fullmatch(fields[0])
    return "conllu" if named or like else "conll", itertools.chain(held, lines)


class _BadLineError(Exception):
    """What is wrong with a line, and what to do."""


class _Format(Protocol):
    """How the lines of one file are read; it remembers those before."""

    column: int

    def parts(self, line: str) -> bool:
        """Whether a line stands between sentences."""

    def read(self, line: str) -> tuple[str, str] | None:
        """A word and its tag, or None where the line holds no word."""


class _CoNLLU:
    def __init__(self, column: str | None, labelled: bool) -> None:
        name = column or "upos"
        if name not in TAG_COLUMNS:
            raise InputError(f"column {name!r}: CoNLL-U has no such tags; {nearest(name, list(TAG_COLUMNS))}")
        self.column, self.due = CONLLU.index(name), 1
        self.labelled = labelled
        self.required = name if labelled and name in NEVER_MISSING else None

    def parts(self, line: str) -> bool:
        if line.strip(BLANKS):
            return False
        self.due = 1
        return True

    def read(self, line: str) -> tuple[str, str] | None:
        if line.startswith("#"):
            return None
        fields = line.split("\t")
        if len(fields) != len(CONLLU):
            spaces = len(fields) < len(CONLLU) <= len(line.split())
            hint = "spaces where tabs are meant; put one tab between columns" if spaces else "mend this line"
            raise _BadLineError(f"{len(fields)} columns between tabs, CoNLL-U has {len(CONLLU)}; {hint}")
        place, word, tag = fields[0], fields[1], fields[self.column]
        if not ID.fullmatch(place):
            raise _BadLineError(f"{shown(place)} is not the id of a word; ids count up from 1, or are like 1-2 or 8.1")
        if not place.isdigit():
            return None
        if place != str(self.due):
            hint = "put a blank line between sentences" if place == "1" else "number the words 1, 2, 3, ..."
            raise _BadLineError(f"id {place[:DIGITS]} where {self.due} is due; {hint}")
        self.due += 1
        if not word:
            raise _BadLineError("an empty word; write it into the second column")
        if not tag:
            raise _BadLineError(f"an empty column {CONLLU[self.column]}; write a tag, or _ for none")
        _refuse_line_end(tag, self.labelled)
        if tag == MISSING and self.required:
            raise _BadLineError(f"no tag in column {self.required}; tag this word, or choose another column")
        return word, tag


class _Columns:
    def __init__(self, column: str | None, labelled: bool) -> None:
        if column is not None and not NUMBER.fullmatch(column):
            raise InputError(f"column {column!r}: columns without names are chosen by number; give one from 2 on")
        self.wanted, self.labelled = column, labelled
        self.column, self.count, self.tabs = 0, 0, False

    def parts(self, line: str) -> bool:
        return not line.strip(BLANKS) or re.split(r"[ \t]", line, maxsplit=1)[0] == DOCUMENT

    def read(self, line: str) -> tuple[str, str]:
        if not self.count:
            self._begin(line)
        fields = line.split("\t") if self.tabs else line.split(" ")
        if not fields[0]:
            raise _BadLineError("an empty word; write it into the first column")
        if not self.tabs:
            fields = [field for field in fields if field]
        if len(fields) != self.count or (not self.tabs and "\t" in line):
            between = "tabs" if self.tabs else "spaces"
            raise _BadLineError(
                f"{len(fields)} columns between {between}, where the first word of the file has {self.count}; "
                "give every line the same columns"
            )
        tag = fields[self.column] if self.column < self.count else MISSING
        _refuse_line_end(tag, self.labelled)
        if not tag and self.labelled:
            raise _BadLineError("an empty tag; write one, such as O")
        if " " in tag and self.labelled:
            raise _BadLineError(
                f"{shown(tag)} is no tag but a text; is this a file of columns? a word and its tag a line"
            )
        return fields[0], tag or MISSING

    def _begin(self, line: str) -> None:
        """The first word of a file says how many columns there are, and what is between them."""
        self.tabs = "\t" in line
        self.count = len(line.split("\t")) if self.tabs else len(FIELD.findall(line))
        self.column = max(1, self.count - 1) if self.wanted is None else int(self.wanted) - 1
        most = self.count - self.labelled
        if self.column > most:
            raise _BadLineError(
                f"{self.count} column{'s'[: self.count > 1]}, and tags should stand in column {self.column + 1}; "
                "write them there, or choose another column"
            )


def _refuse_line_end(tag: str, labelled: bool) -> None:
    """Raises where an answer that holds this tag would end a line within it."""
    if labelled and "\r" in tag:
        raise _BadLineError(f"a lone CR in the tag {shown(tag)}; line ends are LF or CRLF, take it out")


def _sentences(lines: Iterable[str], name: str, form: _Format) -> Iterator[Sentence]:
    """Cuts a file before each first line that is neither blank nor part of the sentence before."""
    now = _start(name, 1)
    begun = ended = 0
    for number, line in enumerate(lines, start=1):
        if form.parts(line):
            _refuse_wordless(now, begun)
            ended = len(now.rows)
        else:
            if ended:
                yield now._replace(column=form.column)
                now, begun, ended = _start(name, number), 0, 0
            begun = begun or number
            try:
                found = form.read(line)
            except _BadLineError as reason:
                raise InputError(f"{name}:{number}: {reason}") from None
            if found:
                now.rows.append(len(now.lines))
                now.words.append(found[0])
                now.tags.append(found[1])
        now.lines.append(line)
    _refuse_wordless(now, begun)
    if not now.rows:
        raise InputError(f"{name}: no sentences; give a file with a word a line and blank lines between sentences")
    yield now._replace(column=form.column)


def _start(name: str, number: int) -> Sentence:
    return Sentence([], [], [], [], 0, name, number)


def _refuse_wordless(sentence: Sentence, begun: int) -> None:
    if begun and not sentence.rows:
        raise InputError(f"{sentence.name}:{begun}: comments without a word; delete them, or the blank line after them")


def _as_bio(sentences: Iterable[Sentence], scheme: str, repairs: Repairs) -> Iterator[Sentence]:
    """Makes all chunks BIO. Tags are taken for chunks from the first ``O``, ``B-X`` or ``I-X`` on."""
    chunks = False
    for sentence in sentences:
        chunks = chunks or any(tag == "O" or TYPED.match(tag) for tag in sentence.tags)
        if not chunks:
            yield sentence
            continue
        for row, tag in zip(sentence.rows, sentence.tags, strict=True):
            if tag in ("B-", "I-"):
                line = sentence.number + row
                raise InputError(f"{sentence.name}:{line}: {tag} names no type; write {tag}X, where X is the type")
        tags = to_bio(sentence.tags)
        if scheme == "iob1" or tags == sentence.tags:
            yield sentence._replace(tags=tags)
            continue
        for row, before, tag in zip(sentence.rows, sentence.tags, tags, strict=True):
            if before != tag:
                _record_stray(repairs, sentence.name, sentence.number + row, before)
        yield sentence._replace(tags=tags, raw_tags=sentence.tags)


def _record_stray(repairs: Repairs, name: str, line: int, tag: str) -> None:
    """Records an ``I-X`` that begins a chunk."""
    tag = shown(tag)[1:-1]  # without quotes
    repairs.add(
        "stray I- tag",
        name,
        line,
        problem=f"{tag} begins a chunk, where BIO has B{tag[1:]}",
        reading=f"read as B{tag[1:]}, as conlleval does",
        remedy="correct the tag; if the file is IOB1, set model.options.scheme to iob1",
    )
