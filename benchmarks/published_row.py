"""A row of the table of published figures: one corpus and one configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """A training of a row, and the file that it is measured on: a language, a fold, or all of a corpus."""

    name: str
    train: Path
    valid: Path | None
    test: Path

    def arguments(self) -> list[str]:
        """Return the data as options of ``seriatim train``."""
        return ["--data", str(self.train), *(["--valid", str(self.valid)] if self.valid else [])]


@dataclass(frozen=True)
class Row:
    """A corpus, what is published for it, and what is asked of a configuration."""

    name: str  # of the configuration: "plain", or what it adds
    title: str  # the metric with its unit, and the corpus
    task: str
    metric: str  # the key of `evaluate --json`
    parts: Callable[[Path, Path], list[Part]]
    """Return the trainings, given the folder of the corpora and one to write files to; the files need not exist."""
    published: Mapping[str, float]  # by model
    asked: float
    asked_together: float | None = None
    is_error: bool = False  # whether less is better
    scale: float = 100.0
    options: Sequence[str] = ()  # of the command, beside its data
    seeds: Sequence[int] = (1, 2, 3)
    differences: str = ""  # why figures may not be comparable
    sign: str = field(init=False, default="≥")

    def __post_init__(self) -> None:
        object.__setattr__(self, "sign", "≤" if self.is_error else "≥")

    def reaches(self, value: float, asked: float) -> bool:
        """Return whether a figure is at least as good as what is asked."""
        return value <= asked if self.is_error else value >= asked
