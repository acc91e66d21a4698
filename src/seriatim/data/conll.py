"""Sentences in columns: one word on each line, its tag in one of the columns, blank lines between sentences.

Chunks are tagged in BIO: ``B-X`` begins a chunk of type X, ``I-X`` continues it, and ``O`` is outside. An ``I-X`` that
continues nothing is read as ``B-X``, as in conlleval and seqeval, and recorded as a repair.
"""

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..core.errors import InputError, nearest, shown
from .conll_lines import BLANKS, CONLLU, DOCUMENT, FIELD, ID, BadLineError, ColumnsFormat, ConlluFormat, LineFormat
from .paths import plain_name
from .readers import TAGGED_SUFFIXES, Source, object_fields, read_items, read_lines
from .repairs import Repairs

CHUNK_TAG = re.compile("[BI]-.")
UNTAGGED_FORMATS = ("auto", "conllu", "conll", "text", "jsonl")


class Sentence(NamedTuple):
    """A sentence of a file."""

    words: list[str]
    tags: list[str]  # the tag of each word, "_" where there is none
    lines: list[str]  # without line ends, including comments and the blank lines that follow
    rows: list[int]  # the index of each word in `lines`
    column: int  # the index of the column of the tag; the number of columns if the tag has to be added
    name: str  # the file
    number: int  # the number of the first of `lines` in the file, from 1
    raw_tags: list[str] | None = None  # the tags of the file if some of `tags` are repaired; else None

    def place(self, word: int) -> str:
        """Return the file and the line of a word, for messages."""
        return f"{self.name}:{self.number + self.rows[word]}"


def read_sentences(
    sources: Iterable[Source],
    *,
    file_format: str = "auto",
    column: str | None = None,
    scheme: str = "bio",
    labelled: bool = True,
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """Read sentences one by one, from the sources of `find_sources`.

    Args:
        sources: the files.
        file_format: ``conllu``, ``conll``, or ``auto`` to choose by the name or else by the first line with a word.
        column: the column of the tags: in CoNLL-U its name (default ``upos``), else its number (default the last).
        scheme: of the chunks: ``bio``, or ``iob1``, which is converted. Tags of CoNLL-U are not chunks.
        labelled: whether tags are required. If not, they are ignored, and the last column may be missing.
        repairs: records the repairs; if None, data that needs a repair is refused.

    Raises:
        InputError: a line does not fit the format, a tag is not BIO, or a file holds no sentences.
    """
    for source in sources:
        yield from _parse(read_lines([source]), source.name, file_format, column, scheme, labelled, repairs)


def read_untagged(
    sources: Iterable[Source], *, file_format: str | None = None, column: str | None = None
) -> Iterator[Sentence | str]:
    """Read what a tagger is to tag: sentences in columns, or lines of text with spaces between the words.

    With ``file_format`` None or ``auto`` a file is in columns if its name ends in ``.conllu`` or ``.conll``, or if its
    first line of content has a tab or begins with ``-DOCSTART-``. Other arguments are those of `read_sentences`.

    Raises:
        InputError: another format than ``conllu``, ``conll``, ``text`` and ``jsonl``, or a line that does not fit it.
    """
    requested = file_format or "auto"
    if requested not in UNTAGGED_FORMATS:
        raise InputError(f"format {requested!r}: sentences are not read from it; give conllu, conll or text")
    for source in sources:
        name = plain_name(source.name)
        named = next((suffix[1:] for suffix in TAGGED_SUFFIXES if name.endswith(suffix)), "")
        if source.format == "jsonl" or requested in ("text", "jsonl"):
            yield from read_items([source])
            continue
        lines = read_lines([source])
        if requested == "auto" and not named:
            first, lines = _first_content(lines)
            if "\t" not in first and not first.startswith(DOCUMENT):
                if "text" in object_fields(first):
                    hint = "looks like JSONL, but is read as text; use --format jsonl for JSONL"
                    warnings.warn(f"{source.name}:1: {hint}", stacklevel=2)
                yield from lines
                continue
        yield from _parse(lines, source.name, named or requested, column, "bio", False, None)


def write(sentence: Sentence, tags: Sequence[str]) -> str:
    """Return the lines of a sentence with other tags, one for each word, and no other change; every line ends in LF."""
    lines = sentence.lines.copy()
    for row, tag in zip(sentence.rows, tags, strict=True):
        lines[row] = _with_tag(lines[row], sentence.column, tag)
    return "\n".join([*lines, ""])


def to_bio(tags: Sequence[str]) -> list[str]:
    """Convert IOB1, in which ``B-`` only separates adjacent chunks of the same type, to BIO. BIO is unchanged."""
    previous = ["O", *tags]
    return [
        f"B{tag[1:]}" if tag.startswith("I-") and before not in (tag, f"B{tag[1:]}") else tag
        for before, tag in zip(previous, tags, strict=False)
    ]


def _parse(
    lines: Iterator[str],
    name: str,
    file_format: str,
    column: str | None,
    scheme: str,
    labelled: bool,
    repairs: Repairs | None,
) -> Iterator[Sentence]:
    """Read the sentences of one file called ``name``; the arguments are those of `read_sentences`."""
    choices = {"format": (file_format, ["auto", "conllu", "conll"]), "scheme": (scheme, ["bio", "iob1"])}
    for what, (value, known) in choices.items():
        if value not in known:
            raise InputError(f"unknown {what} {value!r}; {nearest(value, known)}")
    if file_format == "auto":
        first, lines = _first_content(lines)
        fields = first.split()
        is_conllu = len(fields) == len(CONLLU) and ID.fullmatch(fields[0])
        file_format = "conllu" if is_conllu or plain_name(name).endswith(".conllu") else "conll"
    line_format = ConlluFormat(column, labelled) if file_format == "conllu" else ColumnsFormat(column, labelled)
    sentences = _sentences(lines, name, line_format)
    if file_format == "conll" and labelled:
        sentences = _with_bio_tags(sentences, scheme, repairs or Repairs(strict=True))
    yield from sentences


def _first_content(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line that is neither blank nor a comment, and an iterator over all lines."""
    read: list[str] = []
    for line in lines:
        read.append(line)
        if line.strip(BLANKS) and not line.startswith("#"):
            return line, itertools.chain(read, lines)
    return "", iter(read)


def _with_tag(line: str, column: int, tag: str) -> str:
    """Return a line with another tag in a column."""
    if "\t" in line:
        fields = line.split("\t", column + 1)
        fields[column : column + 1] = [tag]
        return "\t".join(fields)
    places = list(FIELD.finditer(line))
    if column < len(places):
        return line[: places[column].start()] + tag + line[places[column].end() :]
    return line + ("" if line.endswith(" ") else " " if len(places) > 1 else "\t") + tag


def _sentences(lines: Iterable[str], name: str, line_format: LineFormat) -> Iterator[Sentence]:
    """Split a file before the first line of content after each separator."""
    sentence = Sentence([], [], [], [], 0, name, 1)
    first_line = 0  # of the content of the sentence; 0: none yet
    complete = False
    for number, line in enumerate(lines, start=1):
        if line_format.separates(line):
            _refuse_wordless(sentence, first_line)
            complete = bool(sentence.rows)
        else:
            if complete:
                yield sentence._replace(column=line_format.column)
                sentence, first_line, complete = Sentence([], [], [], [], 0, name, number), 0, False
            first_line = first_line or number
            try:
                word_and_tag = line_format.read(line)
            except BadLineError as reason:
                raise InputError(f"{name}:{number}: {reason}") from None
            if word_and_tag:
                sentence.rows.append(len(sentence.lines))
                sentence.words.append(word_and_tag[0])
                sentence.tags.append(word_and_tag[1])
        sentence.lines.append(line)
    _refuse_wordless(sentence, first_line)
    if not sentence.rows:
        raise InputError(f"{name}: no sentences; give a file with one word on each line and blank lines between them")
    yield sentence._replace(column=line_format.column)


def _refuse_wordless(sentence: Sentence, first_line: int) -> None:
    if first_line and not sentence.rows:
        raise InputError(
            f"{sentence.name}:{first_line}: comments without a word; delete them, or the blank line after them"
        )


def _with_bio_tags(sentences: Iterable[Sentence], scheme: str, repairs: Repairs) -> Iterator[Sentence]:
    """Convert all chunks to BIO. Tags count as chunks from the first ``O``, ``B-X`` or ``I-X`` of the file on."""
    chunks = False
    for sentence in sentences:
        chunks = chunks or any(tag == "O" or CHUNK_TAG.match(tag) for tag in sentence.tags)
        if not chunks:
            yield sentence
            continue
        for i, tag in enumerate(sentence.tags):
            if tag in ("B-", "I-"):
                raise InputError(f"{sentence.place(i)}: {tag} names no type; write {tag}X, where X is the type")
        tags = to_bio(sentence.tags)
        if scheme == "iob1" or tags == sentence.tags:
            yield sentence._replace(tags=tags)
            continue
        for row, before, after in zip(sentence.rows, sentence.tags, tags, strict=True):
            if before != after:
                stray = shown(before)[1:-1]  # without quotes
                repairs.add(
                    "stray I- tag",
                    sentence.name,
                    sentence.number + row,
                    problem=f"{stray} begins a chunk, where BIO has B{stray[1:]}",
                    reading=f"read as B{stray[1:]}, as conlleval does",
                    remedy="correct the tag; if the file is IOB1, set model.options.scheme to iob1",
                )
        yield sentence._replace(tags=tags, raw_tags=sentence.tags)
