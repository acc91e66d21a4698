"""A record of what readers repaired: defects of real files that can be read in one way only.

The user is told of each kind of repair. With ``data.strict`` the data is refused instead.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError


class DataWarning(UserWarning):
    """The data have a defect with which they can be read."""


@dataclass
class Repair:
    """All repairs of one kind in one file."""

    kind: str  # a short name for the defect
    file: str  # the file
    line: int  # the first line that was repaired, from 1
    count: int  # the number of repairs
    first: str  # the problem on the first line and how it was read


class Repairs:
    """The repairs made while some data was read; ``strict`` refuses data that needs one."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._repairs: dict[tuple[str, str], Repair] = {}

    def add(self, kind: str, file: str, line: int, *, problem: str, reading: str, remedy: str, count: int = 1) -> None:
        """Record a repair, or ``count`` from ``line`` on: what is wrong, how it was read and what to do.

        Raises:
            InputError: repairs are refused.
        """
        if self.strict:
            raise InputError(f"{file}:{line}: {problem}; {remedy}")
        repair = self._repairs.setdefault((file, kind), Repair(kind, file, line, 0, f"{problem}; {reading}"))
        repair.count += count

    def __iter__(self) -> Iterator[Repair]:
        """Iterate over the repairs in the order of their first occurrence."""
        return iter(self._repairs.values())

    def warn(self) -> None:
        """Issue one warning for each kind of repair in each file."""
        for repair in self:
            times = f" ({repair.count:,} times in this file)" if repair.count > 1 else ""
            warnings.warn(
                f"{repair.file}:{repair.line}: {repair.first}{times}; --strict refuses such data",
                DataWarning,
                stacklevel=2,
            )

    def facts(self) -> dict[str, list[dict[str, str | int]]]:
        """Return ``kind``, ``file``, first ``line`` and ``count`` of each repair as ``repairs``; empty without any."""
        facts = [{name: value for name, value in vars(repair).items() if name != "first"} for repair in self]
        return {"repairs": facts} if facts else {}

    def lines(self) -> dict[str, list[str]]:
        """Return one line of text for each repair as ``repairs``; empty without any."""
        lines = [f"{repair.kind} {repair.count:,} (first: {Path(repair.file).name}:{repair.line})" for repair in self]
        return {"repairs": lines} if lines else {}
