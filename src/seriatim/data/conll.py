"""Sentences in columns: one word on each line, its tag in one of the columns, blank lines between sentences.

Tags of chunks are read as the training data tag most of them (see `tag_sets`), usually in BIO. An ``I-X`` that
continues nothing is read as ``B-X``, as in conlleval and seqeval; a tag that marks no chunk among tags that do is read
as ``O``. Such readings, another spelling of a tag, comments where the format has none, and columns that are separated
irregularly are recorded as repairs.
"""

import functools
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..core.errors import EmptyError, InputError, MalformedError, NotSupportedError, UnknownNameError, nearest, shown
from .conll_lines import (
    BLANKS,
    CASE_SENSITIVE,
    COMMENT,
    CONLLU,
    DOCUMENT,
    FIELD,
    ID,
    SHOWN_DIGITS,
    BadLineError,
    ColumnsFormat,
    ConlluFormat,
    LineFormat,
    separated,
)
from .repairs import DataWarning, Repairs
from .sources import TAGGED_SUFFIXES, plain_name
from .spellings import other_spelling, stripped
from .tag_sets import SCHEMES, TagSet, first_without_chunk
from .text import Source, object_fields, read_items, read_lines

UNTAGGED_FORMATS = ("auto", "conllu", "conll", "text", "jsonl")
LOOKED_AT, WARNED_AFTER = 1000, 20
"""Lines by which columns between spaces are told from a text, and after which a warning says what a text may be."""
UNTAGGED = 10
"""Lines are in columns between spaces if at most one of so many has no tag of the model."""


class Sentence(NamedTuple):
    """A sentence of a file."""

    words: list[str]
    tags: list[str]  # the tag of each word, "_" where there is none
    lines: list[str]  # repaired, without line ends, including comments and the blank lines that follow
    rows: list[int]  # the index of each word in `lines`
    column: int  # the index of the column of the tag; the number of columns if the tag has to be added
    name: str  # the file
    number: int  # the number of the first of `lines` in the file, from 1
    raw_tags: list[str] | None = None  # the tags in the scheme of the file if `tags` are in another one; else None
    further: Sequence[Sequence[str]] = ()  # what each word has in further columns that the tagger reads, if any

    def location(self, word: int) -> str:
        """Return the file and the line of a word, for messages."""
        return f"{self.name}:{self.number + self.rows[word]}"


def untagged(words: Sequence[str], further: Sequence[Sequence[str]] = ()) -> Sentence:
    """Return words, with their further columns, as a sentence without tags."""
    return Sentence(list(words), [], [], [], 0, "", 0, further=further)


def read_sentences(
    sources: Iterable[Source],
    *,
    file_format: str = "auto",
    column: str | None = None,
    further: Sequence[str] = (),
    scheme: str = "bio",
    labelled: bool = True,
    labels: Sequence[str] | None = None,
    exact: bool = False,
    repairs: Repairs | None = None,
) -> Iterator[Sentence]:
    """Read sentences one by one, from the sources of `find_sources`; with tags, the sources are read twice.

    Args:
        sources: the files.
        file_format: ``conllu``, ``conll``, or ``auto`` to choose by the name or else by the first line with a word.
        column: the column of the tags: in CoNLL-U its name (default ``upos``), else its number (default the last).
        further: columns that are read, too, named in the same way, for `Sentence.further`.
        scheme: ``iob1`` if the chunks are tagged in IOB1, whose conversion is then no repair; else ``bio``.
        labelled: whether tags are required. If not, they are ignored, and the last column may be missing.
        labels: the tags of a model, which decide how tags are spelled and in which scheme; if None, the sources decide.
        exact: whether tags are spelled as they are in the file, even if they differ in letter case only.
        repairs: records the repairs; if None, data that needs a repair is refused.

    Raises:
        InputError: a line does not fit the format, a chunk has no type, or a file holds no sentences.

    Chunks that are not counted, because most tags mark none, are noted.

    Warns:
        DataWarning: most tags mark no chunks, but the tags of the model do.
    """
    sources, repairs = list(sources), repairs or Repairs(strict=True)
    if scheme not in ("bio", "iob1"):
        raise UnknownNameError(f"unknown scheme {scheme!r}; {nearest(scheme, ['bio', 'iob1'])}")

    def parsed(repairs: Repairs, is_tag: Callable[[str], bool]) -> Iterator[Sentence]:
        options = file_format, column, further, labelled, is_tag, repairs
        return itertools.chain.from_iterable(_parse(read_lines([one], repairs), one.name, *options) for one in sources)

    if not labelled:
        yield from parsed(repairs, TagSet.known(labels or ()).has)
        return

    # How one tag is read depends on all tags of the data, so the first reading only counts them.
    counts, tag_set = Counter[str](), TagSet.known(labels or (), exact=exact or column in CASE_SENSITIVE)
    first_words = dict[str, tuple[str, int]]()  # of the first word with each tag

    def tags_of(sentences: Iterable[Sentence]) -> Iterator[list[str]]:
        for sentence in sentences:
            for tag in dict.fromkeys(sentence.tags):
                if tag not in first_words:
                    first_words[tag] = sentence.name, sentence.number + sentence.rows[sentence.tags.index(tag)]
            counts.update(sentence.tags)
            yield sentence.tags

    try:
        first_reading = tags_of(parsed(Repairs(), lambda tag: False))
        if labels is None:
            tag_set = TagSet.learned(first_reading, exact=exact or column in CASE_SENSITIVE)
        for _ in first_reading:
            pass
    except InputError:
        if not repairs.strict:
            raise  # if strict, the second reading may name an earlier line

    # Now a tag is known if it occurs anywhere, which tells words from comments.
    tag_set = _with_counted_chunks(tag_set, counts, first_words, repairs)
    sentences = parsed(repairs, counts.__contains__)
    yield from _converted(_spelled(sentences, tag_set, repairs), tag_set, scheme, repairs)


def _with_counted_chunks(
    tag_set: TagSet, counts: Counter[str], first_words: Mapping[str, tuple[str, int]], repairs: Repairs
) -> TagSet:
    """Return how the tags of some data are read, and tell if chunks of these or of the model are not counted.

    ``first_words`` has the file and the line of the first word with each tag, in their order.
    """
    odd = next(filter(tag_set.is_odd, first_words), None)
    if odd is not None and not tag_set.fits(counts):
        where = ":".join(map(str, first_words[odd]))
        problem = "most tags mark no chunks as those of the model do, so that no chunks are counted"
        warnings.warn(f"{where}: {problem}; check the column of the tags", DataWarning, stacklevel=3)
        return replace(tag_set, style="")
    if not tag_set.style and (alone := first_without_chunk(counts)) is not None:
        problem = f"{shown(alone)} marks no chunk, nor do most other tags, so that no chunks are counted"
        remedy = "write O outside chunks, and B-X and I-X in them, or check the column of the tags"
        repairs.note("chunks beside other tags", *first_words[alone], problem=problem, remedy=remedy)
    return tag_set


def read_untagged(
    sources: Iterable[Source],
    *,
    file_format: str | None = None,
    column: str | None = None,
    further: Sequence[str] = (),
    labels: Sequence[str] = (),
    repairs: Repairs | None = None,
) -> Iterator[Sentence | str]:
    """Read what a tagger is to tag: sentences in columns, or lines of text with spaces between the words.

    With ``file_format`` None or ``auto`` a file is in columns if its name ends in ``.conllu`` or ``.conll``, if its
    first line of content has a tab or begins with ``-DOCSTART-``, or if all lines have the same number of columns
    between spaces and nearly all (see `UNTAGGED`) a tag of the model in the column of the tags; standard input is not,
    as it is answered line by line. With ``further``, every file is. Other arguments are those of `read_sentences`.

    Warns:
        UserWarning: most lines of a text have a tag of the model in the column of the tags.

    Raises:
        InputError: another format than ``conllu``, ``conll``, ``text`` and ``jsonl``, or a line that does not fit it.
    """
    requested, repairs = file_format or "auto", repairs or Repairs(strict=True)
    if requested not in UNTAGGED_FORMATS:
        raise NotSupportedError(f"format {requested!r}: sentences are not read from it; give conllu, conll or text")
    tags = TagSet.known(labels)
    for source in sources:
        # The name, or the format that was asked for, decides before the content does.
        name = plain_name(source.name)
        named = next((suffix[1:] for suffix in TAGGED_SUFFIXES if name.endswith(suffix)), "")
        if source.format == "jsonl" or requested in ("text", "jsonl"):
            yield from read_items([source], repairs)
            continue

        # Without either, a tab or the beginning of a document shows that the file is in columns. Columns between spaces
        # look like a text, so they must also hold tags of the model.
        lines = read_lines([source], repairs)
        if requested == "auto" and not named and not further:
            first, lines = _first_content(lines)
            if "\t" not in first and not first.startswith(DOCUMENT):
                if "text" in object_fields(first):
                    hint = "looks like JSONL, but is read as text; use --format jsonl for JSONL"
                    warnings.warn(f"{source.name}:1: {hint}", stacklevel=2)
                sample = [] if source.is_input else list(itertools.islice(lines, LOOKED_AT))
                lines = itertools.chain(sample, lines)
                if not _in_columns(sample, column, tags):
                    for number, line in enumerate(_suspected(lines, source.name, column, tags), start=1):
                        yield repairs.text(line, source.name, number)
                    continue
        yield from _parse(lines, source.name, named or requested, column, further, False, tags.has, repairs)


def _in_columns(lines: Iterable[str], column: str | None, tags: TagSet) -> bool:
    """Return whether all lines but comments have equally many columns between spaces, and nearly all of them a tag."""
    sizes, tagged, begins = set[int](), list[bool](), True
    for line in lines:
        is_content = bool(line.strip(BLANKS)) and not line.startswith(DOCUMENT)
        is_tagged = _is_tagged(line, column, tags)
        if is_content and (is_tagged or not begins or not line.startswith(COMMENT)):
            sizes.add(len(separated(line)))
            tagged.append(is_tagged)
        begins = not is_content or (begins and line.startswith(COMMENT))
    return len(tagged) > 1 and len(sizes) == 1 and UNTAGGED * tagged.count(False) <= len(tagged)


def _is_tagged(line: str, column: str | None, tags: TagSet) -> bool:
    """Return whether a line has a word and a tag that a model with these tags may know, between spaces."""
    fields = separated(line)
    if len(fields) == len(CONLLU) and ID.fullmatch(fields[0]):
        at = CONLLU.index(column or "upos") if column is None or column in CONLLU else 0
    else:
        at = len(fields) - 1 if column is None else int(column) - 1 if column.isdigit() else 0
    return 0 < at < len(fields) and tags.has(fields[at])


def _suspected(lines: Iterable[str], name: str, column: str | None, tags: TagSet) -> Iterator[str]:
    """Yield the lines of a text, and warn once if most of the first ones look like a word and its tag."""
    seen = tagged = 0
    for line in lines:
        yield line
        if seen < WARNED_AFTER and line.strip(BLANKS):
            seen, tagged = seen + 1, tagged + _is_tagged(line, column, tags)
            if seen == WARNED_AFTER:
                _warn_of_columns(name, seen, tagged)
    if seen < WARNED_AFTER:
        _warn_of_columns(name, seen, tagged)


def _warn_of_columns(name: str, seen: int, tagged: int) -> None:
    if tagged > max(1, seen / 2):
        hint = f"{tagged} of the first {seen} lines look like a word and its tag, but every line is read as a text"
        warnings.warn(f"{name}:1: {hint}; use --format conll to read columns", stacklevel=2)


def write(sentence: Sentence, tags: Sequence[str]) -> str:
    """Return the lines of a sentence with other tags, one for each word, and no other change; every line ends in LF."""
    lines = sentence.lines.copy()
    for row, tag in zip(sentence.rows, tags, strict=True):
        lines[row] = _with_tag(lines[row], sentence.column, tag)
    return "\n".join([*lines, ""])


def _parse(
    lines: Iterator[str],
    name: str,
    file_format: str,
    column: str | None,
    further: Sequence[str],
    labelled: bool,
    is_tag: Callable[[str], bool],
    repairs: Repairs,
) -> Iterator[Sentence]:
    """Yield the sentences of a file called ``name``.

    ``is_tag`` says what is known as a tag; the other arguments are those of `read_sentences`.
    """
    if file_format not in (known := ["auto", "conllu", "conll"]):
        raise UnknownNameError(f"unknown format {file_format!r}; {nearest(file_format, known)}")
    first, lines = _first_content(lines, skip_documents=True)
    if file_format == "auto":
        fields = first.split()
        is_conllu = len(fields) == len(CONLLU) and ID.fullmatch(fields[0])
        file_format = "conllu" if is_conllu or plain_name(name).endswith(".conllu") else "conll"
    line_format: LineFormat
    if file_format == "conllu":
        line_format = ConlluFormat(column, *further, labelled=labelled)
    else:
        line_format = ColumnsFormat(column, *further, labelled=labelled, first=first, is_tag=is_tag)
    for sentence in _SentenceReader(name, line_format, labelled, repairs).sentences(lines):
        repairs.examine(" ".join(sentence.words), sentence.name, sentence.number + sum(sentence.rows[:1]))
        yield sentence


def _first_content(lines: Iterator[str], *, skip_documents: bool = False) -> tuple[str, Iterator[str]]:
    """Return the first line that is neither blank nor a comment, and an iterator over all lines.

    If every line of content begins with ``#``, it is the first of those that are most like a word.
    """
    read, likely = list[str](), ""
    for line in lines:
        read.append(line)
        if not line.strip(BLANKS) or (skip_documents and line.startswith(DOCUMENT)):
            continue
        if not line.startswith(COMMENT):
            return line, itertools.chain(read, lines)
        if not likely or (likely.startswith(f"{COMMENT} ") and not line.startswith(f"{COMMENT} ")):
            likely = line
    return likely, iter(read)


def _with_tag(line: str, column: int, tag: str) -> str:
    """Return a line with another tag in a column."""
    if "\t" in line:
        fields = line.split("\t", column + 1)
        fields[column : column + 1] = [tag]
        return "\t".join(fields)
    columns = list(FIELD.finditer(line))
    if column < len(columns):
        return line[: columns[column].start()] + tag + line[columns[column].end() :]
    return line + ("" if line.endswith(" ") else " " if len(columns) > 1 else "\t") + tag


class _SentenceReader:
    """Reads the sentences of a file, each from the first line of content after a separator.

    Comments after the last sentence, unless tags are required, make a sentence without words.
    """

    def __init__(self, name: str, line_format: LineFormat, labelled: bool, repairs: Repairs) -> None:
        self.name, self.format, self.labelled, self.repairs = name, line_format, labelled, repairs
        self.number = 0  # of the line that is read

    def sentences(self, lines: Iterable[str]) -> Iterator[Sentence]:
        """Iterate over the sentences; raise InputError for a file without any."""
        sentence, found, is_complete = self._begun(1), False, False
        first_line = 0  # the number of the first line of content since the last separator; 0: none yet
        for self.number, line in enumerate(lines, start=1):
            # Blank lines after a sentence belong to it: the next sentence begins with the next line of content.
            if self.format.separates(line) or self._looks_blank(line):
                self._end(sentence, first_line)
                is_complete, first_line = bool(sentence.rows), 0
            else:
                if is_complete:
                    yield sentence._replace(column=self.format.column)
                    sentence, is_complete, found = self._begun(self.number), False, True
                first_line = first_line or self.number
                line = self._add(sentence, line)
            sentence.lines.append(line)

        # A file may end without a separator, or with comments.
        self._end(sentence, first_line)
        if not sentence.rows and not found:
            remedy = "give a file with one word on each line and blank lines between them"
            raise EmptyError(f"{self.name}:1: no sentences; {remedy}")
        if sentence.rows or not self.labelled:
            yield sentence._replace(column=self.format.column)

    def _begun(self, number: int) -> Sentence:
        return Sentence([], [], [], [], 0, self.name, number, further=[])

    def _repair(self, kind: str, problem: str, reading: str, remedy: str) -> None:
        """Record a repair of the line that is read."""
        self.repairs.add(kind, self.name, self.number, problem=problem, reading=reading, remedy=remedy)

    def _looks_blank(self, line: str) -> bool:
        """Return whether a line holds only blanks that editors do not show, and record it."""
        if not self.format.is_blank(line):
            return False
        problem = "a blank line that holds non-breaking or zero-width blanks"
        self._repair("invisible blanks", problem, "read as a blank line", "delete them")
        return True

    def _end(self, sentence: Sentence, first_line: int) -> None:
        """End a sentence at a separator: refuse missing words; comments without a word belong to the next sentence.

        ``first_line`` is the number of its first line since the separator before; 0 if there is none.
        """
        if missing := self.format.end():
            word_id, needed = missing
            row = next(i for i, line in enumerate(sentence.lines) if line.startswith(f"{word_id}\t"))
            problem = f"the range {word_id[:SHOWN_DIGITS]} has no line for its word {needed}"
            raise MalformedError(f"{self.name}:{sentence.number + row}: {problem}; add it, or delete this line")
        if first_line and not sentence.rows and self.format.has_comments:
            problem, remedy = "comments without a word", "delete them, or the blank line after them"
            reading = "read as comments of the next sentence"
            self.repairs.add(problem, self.name, first_line, problem=problem, reading=reading, remedy=remedy)

    def _add(self, sentence: Sentence, line: str) -> str:
        """Add the word of a line of content to a sentence, unless the line is a comment; return the repaired line."""
        if self.format.is_comment(line, begins=not sentence.rows):
            if not self.format.has_comments:
                problem = "a line that begins with # and is no word"
                reading = "kept as a comment, which columns do not have"
                self._repair("comments", problem, reading, "delete it")
            return line

        # A line that has one meaning only is read, although its columns are separated irregularly.
        try:
            read = self.format.read(line)
        except BadLineError as reason:
            tidied = None if self.repairs.strict else self.format.tidied(line)
            try:
                if tidied is None:
                    raise
                line, read = tidied, self.format.read(tidied)
            except BadLineError:
                raise MalformedError(f"{self.name}:{self.number}: {reason}") from None
            reading = "read with any blanks between columns, and without empty ones"
            self._repair("irregular columns", str(reason).partition("; ")[0], reading, "")
        if read is None:
            return line

        # With blanks that nobody sees, a word or a tag would be another one.
        word, tag, *further = map(stripped, read)
        if changed := [before for before, after in zip(read, (word, tag, *further), strict=True) if before != after]:
            problem = f"blanks at the end of {shown(changed[0])}"
            self._repair("invisible blanks", problem, "read without", "delete them")
        assert isinstance(sentence.further, list)
        sentence.further.append(further)
        sentence.rows.append(len(sentence.lines))
        sentence.words.append(word)
        sentence.tags.append(tag)
        return line


def _spelled(sentences: Iterable[Sentence], tag_set: TagSet, repairs: Repairs) -> Iterator[Sentence]:
    """Replace each tag by the spelling that stands for it, and one that marks no chunk among others that do by O."""
    spelling = functools.cache(tag_set.spelled)
    for sentence in sentences:
        tags = [spelling(tag) for tag in sentence.tags]
        if tags == sentence.tags:
            yield sentence
            continue
        for row, before, after in zip(sentence.rows, sentence.tags, tags, strict=True):
            if before == after:
                continue

            # An odd tag is more than another spelling: a chunk may be lost with it.
            kind, problem = "spelling of a tag", f"the tag {other_spelling(before, after)}"
            remedy = f"write {shown(after)}"
            if tag_set.is_odd(before):
                kind = "tag that marks no chunk"
                problem = f"the tag {shown(before)} does not mark chunks as most tags do"
                remedy = "correct it, or write O"
            where = sentence.name, sentence.number + row
            repairs.add(kind, *where, problem=problem, reading=f"read as {shown(after)}", remedy=remedy)
        yield sentence._replace(tags=tags)


def _converted(sentences: Iterable[Sentence], tag_set: TagSet, scheme: str, repairs: Repairs) -> Iterator[Sentence]:
    """Convert all chunks to the scheme of the tag set; ``scheme`` is that of the file."""
    for sentence in sentences:
        for i, tag in enumerate(sentence.tags):
            if tag_set.lacks_type(tag):
                raise MalformedError(f"{sentence.location(i)}: {tag} has no type; write {tag}X, where X is the type")

        # Most sentences are unchanged: a repair is recorded for each word whose tag is not.
        tags = tag_set.converted(sentence.tags) if any(tag != "O" for tag in sentence.tags) else sentence.tags
        if tags == sentence.tags:
            yield sentence
            continue
        for row, before, after in zip(sentence.rows, sentence.tags, tags, strict=True):
            is_iob1 = before[0] == "I" and after[0] == "B"
            if before == after or (scheme == "iob1" and is_iob1):
                continue
            raw, read = shown(before)[1:-1], shown(after)[1:-1]  # without quotes
            name = SCHEMES[tag_set.scheme]
            does = "begins a chunk" if is_iob1 else "is a tag of another scheme"
            advice = "; if the file is IOB1, set model.options.scheme to iob1" if is_iob1 else ""
            repairs.add(
                "stray I- tag" if is_iob1 else "tag of another scheme",
                *(sentence.name, sentence.number + row),
                problem=f"{raw} {does}, where {name} has {read}",
                reading=f"read as {read}, as conlleval does",
                remedy=f"correct the tag{advice}",
            )
        yield sentence._replace(tags=tags, raw_tags=None if scheme == "iob1" else sentence.tags)
