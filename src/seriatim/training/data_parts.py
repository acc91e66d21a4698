"""The parts of the data of a training: what its configuration names, and what is held out of the training data."""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from ..config import Config
from ..core.errors import InputError
from ..data.boundary_markers import Markers, common_markers, markers_of
from ..data.holding_out import NOTHING, is_held_out, share_of
from ..data.readers import TEXT_SUFFIXES, Source, find_sources
from ..data.repairs import DataWarning, Repairs

NO_FILE = re.compile(r"-?[\d.]+%?|[Nn][Oo][Nn][Ee]")
"""What a user may give who means a share of the training data, or no held-out data."""
Row = TypeVar("Row")


class Part(NamedTuple):
    """Some data: its name, the part of data that have several, and a share of its rows.

    ``share`` is held out; the part is what is held out, or the rest. A share of 0 leaves nothing out.
    """

    spec: str
    split: str
    share: float = 0.0
    held_out: bool = False

    def chosen(
        self, rows: Iterable[Row], content: Callable[[Row], str], label: Callable[[Row], object] | None = None
    ) -> Iterator[Row]:
        """Return the rows of this part.

        ``content`` returns the text that decides where a row belongs; ``label`` returns a label, of which the first
        row, and every row that is equal to it, is always trained on.
        """
        if not self.share:
            yield from rows
            return
        first: dict[object, str] = {}  # the content of the first row of each label
        for row in rows:
            is_first = label is not None and first.setdefault(label(row), content(row)) == content(row)
            if (not is_first and is_held_out(content(row), self.share)) == self.held_out:
                yield row


class DataParts:
    """Finds the data that a configuration names; the first part of `Task`."""

    config: Config
    suffixes: ClassVar[tuple[str, ...]] = TEXT_SUFFIXES  # of the files that are read from a folder

    def training_spec(self) -> str:
        """Return ``data.train``; raise InputError if it is missing or cannot be read as often as it must be."""
        data = self.config.data
        if data.train is None:
            raise InputError("data.train: no text to learn from; give --data FILE, or --data builtin:python-docs")
        if data.train == data.valid == "-":
            raise InputError("data.valid: standard input is the training text already; give a file")
        return data.train

    def validation_spec(self) -> str | None:
        """Return the name of the held-out data, or None if there are none.

        It is ``data.valid``; the built-in corpus itself if the training text is one; or a share such as ``10%``, which
        stands for a part of the training data.
        """
        train, valid = self.config.data.train or "", self.config.data.valid
        if valid is None and train.startswith("builtin:") and train.count(":") == 1:
            return train
        return None if valid == NOTHING else valid

    def name_of(self, spec: str | None) -> str:
        """Return the name of some data for a reader."""
        return f"{spec} of {self.config.data.train}" if share_of(spec) else str(spec)

    def validation_name(self) -> str:
        """Return the name of the held-out data for a reader."""
        return self.name_of(self.validation_spec())

    def named_files(self) -> dict[str, str]:
        """Return every file, folder or glob that a training reads, by the configuration field that names it."""
        valid = self.validation_spec()
        specs = {"data.train": self.config.data.train, "data.valid": None if share_of(valid) else valid}
        return {field: spec for field, spec in specs.items() if spec is not None}

    def hold_out(self) -> None:
        """Set ``data.valid``, in place, to what is held out of the training data if the user names no other data.

        Before, ``data.markers`` is set to the boundary markers that every line of the training data has.

        Nothing is held out if the usual share would put all data on one side.

        Raises:
            InputError: the user gives a share, and it puts all data on one side.

        Warns:
            DataWarning: the usual share puts all data on one side.
        """
        data, given = self.config.data, self.config.data.valid
        if data.train is not None and (markers := self.markers(data.train, "train")):
            data.markers = " ".join(markers)
        if (
            given not in (None, NOTHING)
            and NO_FILE.fullmatch(given)
            and not share_of(given)
            and not Path(given).exists()
        ):
            raise InputError(f"data.valid: {given} is neither a file nor a share; give a file, a share (10%) or none")
        if self.validation_spec() is None and given is None:
            self.training_spec()
            data.valid = self.usual_share()
        if not share_of(data.valid):
            return
        share, train = str(data.valid), self.training_spec()
        none_held_out = not self.has_content(share, "valid")
        if not none_held_out and self.has_content(train, "train"):
            return
        data.valid = NOTHING
        reason = self.why_undivided(share, none_held_out=none_held_out)
        if given is not None:
            remedy = "give another share, a file, or none"
            raise InputError(f"data.valid: {share} of {train} cannot be held out, because {reason}; {remedy}")
        remedy = "give other data with --valid FILE"
        warnings.warn(f"nothing is held out of {train}, because {reason}; {remedy}", DataWarning, stacklevel=2)

    def usual_share(self) -> str:
        """Return what is held out by default: a share such as ``10%``, or ``none``."""
        return NOTHING

    def has_content(self, spec: str, split: str) -> bool:
        """Return whether a part of the training data has anything to train or to measure with.

        The arguments are those of `Task.read`.
        """
        return True

    def why_undivided(self, share: str, *, none_held_out: bool) -> str:
        """Return in words why a share puts all data on one side: none of it is held out, or all of it.

        It is called while ``data.valid`` holds nothing out.
        """
        return "it cannot be divided"

    def part(self, spec: str, split: str) -> Part:
        """Return the part of the data that a name and a split stand for."""
        data = self.config.data
        if share := share_of(data.valid):
            if spec == data.valid:
                return Part(self.training_spec(), "train", share, held_out=True)
            if split == "train" and spec == data.train:
                return Part(spec, split, share)
        return Part(spec, split)

    def sides(self, spec: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the texts of some data as they are written, or the sources and the targets; nothing is read before."""
        return []

    def markers(self, spec: str, split: str, file_format: str | None = None) -> Markers | None:
        """Return the boundary markers that are left out of some data; the arguments are those of `Task.read`."""
        return self.markers_in(self.sides(spec, split, file_format))

    def markers_in(self, sides: Iterable[Iterable[str]]) -> Markers | None:
        """Return the boundary markers that are left out: those of the configuration, or of all texts of one side."""
        if self.config.data.markers != "auto":
            return markers_of(self.config.data.markers)
        return next(filter(None, map(common_markers, sides)), None)

    def settle_markers(self, spec: str, repairs: Repairs) -> None:
        """Set ``data.markers`` to keep, in place, if boundary markers of the training data were read as words."""
        if spec == self.config.data.train and repairs.keeps_markers and self.config.data.markers == "auto":
            self.config.data.markers = "keep"

    def sources(self, spec: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some data; the arguments are those of `Task.read`."""
        wanted = file_format or self.config.data.format
        return find_sources(spec, file_format=wanted, split=split, suffixes=self.suffixes)


def why_rows_undivided(rows: Collection[str], noun: str, *, none_held_out: bool) -> str:
    """Return in words why a share chooses none or all of the rows, whose plural noun is ``noun``."""
    different = len(set(rows))
    if different == 1:
        return f"its {noun} are all equal"
    chosen = "none" if none_held_out else "all"
    return f"the hash that chooses {noun} chooses {chosen} of its {different:,} different ones"
