"""A record of what readers repaired: what was wrong, how often, and where it first was.

Real files have defects that can be read in one way only. Readers repair those and record them here, so that the user
is told; with ``data.strict`` they are refused instead.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError


@dataclass
class Repair:
    """All repairs of one kind in one file.

    Attributes:
        kind: a short name for the defect.
        file: the file.
        line: the first line that was repaired, from 1.
        count: how many repairs were made.
        first: what was wrong on the first line and how it was read.
    """

    kind: str
    file: str
    line: int
    count: int
    first: str


class Repairs:
    """What was repaired in one reading of some data.

    Args:
        strict: refuse what needs a repair.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._found: dict[tuple[str, str], Repair] = {}

    def add(self, kind: str, file: str, line: int, *, problem: str, reading: str, remedy: str) -> None:
        """Records one repair.

        Args:
            kind: a short name for the defect.
            file: the file.
            line: its line, from 1.
            problem: what is wrong.
            reading: how it was read.
            remedy: what the user can do about it.

        Raises:
            InputError: repairs are not wanted.
        """
        if self.strict:
            raise InputError(f"{file}:{line}: {problem}; {remedy}")
        repair = self._found.setdefault((file, kind), Repair(kind, file, line, 0, f"{problem}; {reading}"))
        repair.count += 1

    def __iter__(self) -> Iterator[Repair]:
        """Every `Repair`, in the order in which they were first needed."""
        return iter(self._found.values())

    def warn(self) -> None:
        """Warns of each kind of repair in each file, in one line that names the first place."""
        for repair in self:
            times = f" ({repair.count:,} times in this file)" if repair.count > 1 else ""
            warnings.warn(
                f"{repair.file}:{repair.line}: {repair.first}{times}; --strict refuses such data", stacklevel=2
            )

    def facts(self) -> list[dict[str, Any]]:
        """What JSON output says: ``kind``, ``file``, first ``line`` and ``count`` of each."""
        return [{"kind": each.kind, "file": each.file, "line": each.line, "count": each.count} for each in self]

    def lines(self) -> list[str]:
        """The same in words, one item for each."""
        return [f"{each.kind} {each.count:,} (first: {Path(each.file).name}:{each.line})" for each in self]
