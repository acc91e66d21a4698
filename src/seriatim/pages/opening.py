"""What the first screen of a page is made of, besides charts: a warning, and a few numbers in large type."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Banner:
    """A warning that comes before everything else."""

    text: str


class Tile(NamedTuple):
    """A number in large type: what it is, the number with its unit, and a note, such as its interval."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Tiles:
    """A few numbers side by side."""

    tiles: Sequence[Tile]
