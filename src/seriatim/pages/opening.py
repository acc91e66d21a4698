"""What the first screen of a page is made of, besides charts: a warning, and a few numbers in large type."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Banner:
    """A warning that comes before everything else."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and short texts side by side: the facts that a reader needs beside a chart."""

    pairs: Sequence[tuple[str, str]]


class Tile(NamedTuple):
    """A number in large type: what it is, the number with its unit, its 95 % interval, and a note."""

    name: str
    value: str
    interval: str = ""
    note: str = ""

    @property
    def notes(self) -> str:
        """What stands below the number."""
        return "; ".join(filter(None, [self.interval and f"95 % interval {self.interval}", self.note]))

    @property
    def line(self) -> str:
        """The tile as a line of the console."""
        name = self.name if self.name[:2].isupper() else f"{self.name[:1].lower()}{self.name[1:]}"
        return f"{name}: {self.value}{f' ({self.interval})' if self.interval else ''}"


@dataclass(frozen=True)
class Tiles:
    """A few numbers side by side."""

    tiles: Sequence[Tile]
