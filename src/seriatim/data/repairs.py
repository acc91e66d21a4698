"""A record of what readers repaired: defects of real files that can be read in one way only.

The user is told of each kind of repair. With ``data.strict`` the data is refused instead. A defect with which the data
are read as they are written is noted: the user is told of it, and it is never refused.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from ..core.errors import InputError
from .boundary_markers import Markers, find_markers, without_markers

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
        """Return a line that names the first place, and how many there are."""
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
            raise InputError(f"{found.file}:{found.line}: {found.problem}; {found.remedy}")
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


def with_warnings(read: Callable[..., Iterable[Item]], repairs: Repairs) -> Iterator[Item]:
    """Yield what ``read(repairs=repairs)`` reads, and warn of the repairs at the end."""
    yield from read(repairs=repairs)
    repairs.warn()
