"""A record of what readers repaired: the defect, how often it occurred, and where it first occurred.

Some defects of real files can be read in one way only. Readers repair those and record them here, so that the user
is told. With ``data.strict`` they are refused instead.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError


@dataclass
class Repair:
    """All repairs of one kind in one file.

    Attributes:
        kind: a short name for the defect.
        file: the file.
        line: the first line that was repaired, from 1.
        count: the number of repairs.
        first: the problem on the first line and how it was read.
    """

    kind: str
    file: str
    line: int
    count: int
    first: str


class Repairs:
    """The repairs made while some data was read.

    Args:
        strict: whether data that needs a repair is refused.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._repairs: dict[tuple[str, str], Repair] = {}

    def add(self, kind: str, file: str, line: int, *, problem: str, reading: str, remedy: str) -> None:
        """Record one repair.

        Args:
            kind: a short name for the defect.
            file: the file.
            line: its line, from 1.
            problem: what is wrong.
            reading: how it was read.
            remedy: what the user can do about it.

        Raises:
            InputError: ``strict`` is set.
        """
        if self.strict:
            raise InputError(f"{file}:{line}: {problem}; {remedy}")
        repair = self._repairs.setdefault((file, kind), Repair(kind, file, line, 0, f"{problem}; {reading}"))
        repair.count += 1

    def __iter__(self) -> Iterator[Repair]:
        """Iterate over the repairs in the order of their first occurrence."""
        return iter(self._repairs.values())

    def warn(self) -> None:
        """Issue one warning for each kind of repair in each file."""
        for repair in self:
            times = f" ({repair.count:,} times in this file)" if repair.count > 1 else ""
            warnings.warn(
                f"{repair.file}:{repair.line}: {repair.first}{times}; --strict refuses such data", stacklevel=2
            )

    def facts(self) -> list[dict[str, str | int]]:
        """Return ``kind``, ``file``, first ``line`` and ``count`` of each repair, for JSON output."""
        return [
            {"kind": repair.kind, "file": repair.file, "line": repair.line, "count": repair.count} for repair in self
        ]

    def lines(self) -> list[str]:
        """Return one line of text for each repair."""
        return [f"{repair.kind} {repair.count:,} (first: {Path(repair.file).name}:{repair.line})" for repair in self]
