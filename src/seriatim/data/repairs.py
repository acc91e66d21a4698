"""A record of what readers repaired: defects of real files that can be read in one way only.

The user is told of each kind of repair. With ``data.strict`` the data is refused instead. A defect with which the data
are read as they are written is noted: the user is told of it, and it is never refused.

Boundary markers are symbols such as ``<s>`` and ``</s>`` that other tools write around every line of a text. A model
here has a boundary symbol of its own, so that such markers are words to it. They are left out where every line of some
data has both; a run records that, and its inputs are then read so, too.
"""

import functools
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from ..core.errors import MalformedError

Markers: TypeAlias = tuple[str, str]
"""What begins a line, and what ends it."""
KNOWN: tuple[Markers, ...] = (
    *(("<s>", "</s>"), ("<S>", "</S>"), ("[CLS]", "[SEP]"), ("<bos>", "<eos>"), ("<BOS>", "<EOS>")),
    *(("<sos>", "<eos>"), ("<SOS>", "<EOS>"), ("[BOS]", "[EOS]"), ("<start>", "<end>"), ("<START>", "<END>")),
    *(("<|startoftext|>", "<|endoftext|>"), ("<|begin_of_text|>", "<|end_of_text|>")),
)
SIGNS = ("<", "[")
"""What one of all markers begins with."""
BEFORE, AFTER = r"""(?<![^\s",;])""", r"""(?![^\s",;])"""
"""Where a word begins and ends, also in tables and JSON."""


def markers_of(setting: str) -> Markers | None:
    """Return the markers that a value of ``data.markers`` names; None for ``auto`` and ``keep``."""
    begin, blank, end = setting.partition(" ")
    return (begin, end) if blank else None


def common_markers(texts: Iterable[str]) -> Markers | None:
    """Return the markers around every text that is not blank, or None; no more texts are read than are needed."""
    common: Markers | None = None
    for text in filter(None, map(str.strip, texts)):
        if common is None or not _has(text, *common):
            found = next((markers for markers in KNOWN if _has(text, *markers)), None)
            if found is None or common is not None:
                return None
            common = found
    return common


def _has(text: str, begin: str, end: str) -> bool:
    return len(text) >= len(begin) + len(end) and text.startswith(begin) and text.endswith(end)


def without_markers(text: str, markers: Markers) -> tuple[str, list[int]]:
    """Return a text whose lines have no markers around them, and the indices of the lines that had some."""
    if not any(marker in text for marker in markers):
        return text, []
    lines = text.split("\n")
    bare = [_bare(line, *markers) for line in lines]
    return "\n".join(bare), [i for i, (before, after) in enumerate(zip(lines, bare, strict=True)) if before != after]


def _bare(line: str, begin: str, end: str) -> str:
    """Return a line without the markers at its ends, and without the blanks beside them.

    A known marker needs no blank beside it. Another one does, because a word may begin or end with it.
    """
    is_known = (begin, end) in KNOWN
    while (words := line.lstrip()).startswith(begin) and (is_known or words[len(begin) :][:1].strip() == ""):
        line = words[len(begin) :].lstrip()
    while (words := line.rstrip()).endswith(end) and (is_known or words[: -len(end)][-1:].strip() == ""):
        line = words[: -len(end)].rstrip()
    return line


def find_markers(text: str, others: Markers | None = None) -> tuple[list[int], Markers, str]:
    """Find the markers in a text: known ones, and ``others``.

    A word begins with what begins a line, or ends with what ends one, or one line follows another within the word.

    Returns:
        The indices of the lines that have some, the pair to which the first one belongs, and the first one.
    """
    lines, line, start, first = dict[int, None](), 0, 0, ""
    if others is not None or any(sign in text for sign in SIGNS):
        for found in _pattern(others).finditer(text):
            line, start = line + text.count("\n", start, found.start()), found.start()
            lines[line], first = None, first or found[0]
    pairs = [pair for pair in (*filter(None, [others]), *KNOWN) if first in pair]
    pair = next((pair for pair in pairs if all(marker in text for marker in pair)), pairs[0] if pairs else KNOWN[0])
    return list(lines), pair, first


@functools.cache
def _pattern(others: Markers | None) -> re.Pattern[str]:
    begins, ends = ("|".join(sorted({re.escape(pair[side]) for pair in KNOWN})) for side in (0, 1))
    alone = "" if others is None else "|" + BEFORE + f"(?:{'|'.join(map(re.escape, others))})" + AFTER
    return re.compile(f"{BEFORE}(?:{begins})|(?:{ends})(?:{AFTER}|(?={begins})){alone}")


BOUNDARY_MARKERS, INNER_MARKERS = "boundary markers", "boundary markers within lines"
Item = TypeVar("Item")


class Examine(Protocol):
    """Examines the texts of files."""

    def __call__(self, text: str, name: str, line: int, *, target: bool = False) -> None:
        """Examine a text, and record what is found."""


def ignore(text: str, name: str, line: int, *, target: bool = False) -> None:
    """Examine nothing."""


class DataWarning(UserWarning):
    """The data have a defect with which they can be read."""


@dataclass
class Repair:
    """All repairs of one kind in one file, or all defects of one kind that were noted."""

    kind: str  # a short name for the defect
    file: str  # the file
    line: int  # the first line that has it, from 1
    count: int  # how often the file has it
    problem: str  # what is wrong on the first line
    reading: str | None  # how it was read; None for a defect that is noted only
    remedy: str  # what to do

    @property
    def message(self) -> str:
        """Return a line that names the first location, and how many there are."""
        times = f" ({self.count:,} times in this file)" if self.count > 1 else ""
        if self.reading is None:
            return f"{self.file}:{self.line}: {self.problem}{times}; {self.remedy}"
        return f"{self.file}:{self.line}: {self.problem}; {self.reading}{times}; --strict refuses such data"


class Repairs:
    """The repairs made while some data was read; ``strict`` refuses data that needs one.

    Attributes:
        markers: the boundary markers that are left out of texts, if any.
        looks_for_markers: whether boundary markers that are not left out are noted.
        examine: is called with each text, and may record what it finds.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.markers: Markers | None = None
        self.looks_for_markers = False
        self.examine: Examine = ignore
        self._found: dict[tuple[str, str], Repair] = {}

    def reread(self) -> "Repairs":
        """Return an empty record for another reading: the same markers are left out, and nothing is refused."""
        repairs = Repairs()
        repairs.markers = self.markers
        return repairs

    def add(self, kind: str, file: str, line: int, *, problem: str, reading: str, remedy: str, count: int = 1) -> None:
        """Record a repair, or ``count`` from ``line`` on: what is wrong, how it was read and what to do.

        Raises:
            InputError: repairs are refused.
        """
        self.include(Repair(kind, file, line, count, problem, reading, remedy))

    def note(self, kind: str, file: str, line: int, *, problem: str, remedy: str, count: int = 1) -> None:
        """Record a defect, or ``count`` from ``line`` on, with which the data are read as they are written."""
        self.include(Repair(kind, file, line, count, problem, None, remedy))

    def include(self, found: Repair) -> None:
        """Record a repair or a defect; see `add` and `note`."""
        if self.strict and found.reading is not None:
            raise MalformedError(f"{found.file}:{found.line}: {found.problem}; {found.remedy}")
        known = self._found.get((found.file, found.kind))
        if known is None:
            self._found[found.file, found.kind] = replace(found)
        else:
            known.count += found.count

    def text(self, text: str, name: str, line: int, *, target: bool = False) -> str:
        """Return a text as it is to be read. Every reader of texts, such as those of a column, passes them through.

        Args:
            text: the text.
            name: its file.
            line: its line.
            target: whether it is the target of a pair.
        """
        if self.markers is not None:
            text = self.without_markers(text, self.markers, name, line, is_item=True)
        self.examine(text, name, line, target=target)
        return text

    def without_markers(self, text: str, markers: Markers, name: str, line: int, *, is_item: bool = False) -> str:
        """Return some lines without the boundary markers around them, and record them.

        Args:
            text: the lines.
            markers: what is left out.
            name: their file.
            line: the number of the first of them.
            is_item: whether all of them are on this line of the file, as those of a text in JSONL.
        """
        text, lines = without_markers(text, markers)
        if lines:
            self.add(
                BOUNDARY_MARKERS,
                *(name, line if is_item else line + lines[0]),
                problem=f"the boundary markers {' '.join(markers)} are not text",
                reading="read without them",
                remedy="delete them, or keep them as words with --data.markers keep",
                count=len(lines),
            )
        self.note_markers(text, name, line, removed=markers, is_item=is_item)
        return text

    def note_markers(
        self, text: str, name: str, line: int, *, removed: Markers | None = None, is_item: bool = False
    ) -> None:
        """Note the boundary markers of some lines, if they are looked for.

        The arguments are those of `without_markers`; ``removed`` are markers that were around the lines, if they are
        left out. The others stand within lines.
        """
        if not self.looks_for_markers:
            return
        lines, pair, marker = find_markers(text, removed)
        if lines:
            kind, problem = BOUNDARY_MARKERS, f"the boundary marker {marker}, which is read as a word or a part of one"
            remedy = f'delete it, or leave it out with --data.markers "{" ".join(pair)}"'
            if removed is not None:
                kind, remedy = INNER_MARKERS, "delete it, or begin a new line there"
            at = line if is_item else line + lines[0]
            self.note(kind, name, at, problem=problem, remedy=remedy, count=len(lines))

    @property
    def keeps_markers(self) -> bool:
        """Whether there were boundary markers that were read as words."""
        return any(found.kind == BOUNDARY_MARKERS and found.reading is None for found in self.found())

    def found(self) -> list[Repair]:
        """Return the repairs and the defects in the order of their first occurrence."""
        return list(self._found.values())

    def __iter__(self) -> Iterator[Repair]:
        """Iterate over the repairs in the order of their first occurrence."""
        return (found for found in self.found() if found.reading is not None)

    def warn(self) -> None:
        """Issue one warning for each kind of repair, and of defect, in each file."""
        for found in self.found():
            warnings.warn(found.message, DataWarning, stacklevel=2)

    def facts(self) -> dict[str, list[dict[str, str | int]]]:
        """Return ``kind``, ``file``, first ``line`` and ``count`` of each repair as ``repairs``; empty without any."""
        facts = [{name: getattr(repair, name) for name in ("kind", "file", "line", "count")} for repair in self]
        return {"repairs": facts} if facts else {}

    def lines(self) -> dict[str, list[str]]:
        """Return one line of text for each repair as ``repairs``; empty without any."""
        lines = [f"{repair.kind} {repair.count:,} (first: {Path(repair.file).name}:{repair.line})" for repair in self]
        return {"repairs": lines} if lines else {}


_kept: ContextVar[dict[Hashable, tuple[list[Any], Repairs]] | None] = ContextVar("rows", default=None)


@contextmanager
def rows_kept() -> Iterator[None]:
    """Let `kept_rows` read every file once."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def kept_rows(key: Hashable, read: Callable[[Repairs], Iterable[Item]], repairs: Repairs) -> Iterator[Item]:
    """Yield the rows that ``read`` reads, which depend on a key and the markers, and record what was repaired in them.

    Within `rows_kept` they are read once, and are in memory until it ends. Strict readings stop at the first repair.
    """
    kept, name = _kept.get(), (key, repairs.markers)
    if kept is None or repairs.strict:
        yield from read(repairs)
        return
    if name not in kept:
        record = repairs.reread()
        record.looks_for_markers = True
        kept[name] = list(read(record)), record
    rows, record = kept[name]
    for found in record.found():
        is_marker = found.reading is None and found.kind in (BOUNDARY_MARKERS, INNER_MARKERS)
        if repairs.looks_for_markers or not is_marker:
            repairs.include(found)
    if repairs.examine is not ignore:
        for row in rows:
            repairs.examine(row.text, row.name, row.line)
    yield from rows


def with_warnings(read: Callable[..., Iterable[Item]], repairs: Repairs) -> Iterator[Item]:
    """Yield what ``read(repairs=repairs)`` reads, and warn of the repairs at the end."""
    yield from read(repairs=repairs)
    repairs.warn()
