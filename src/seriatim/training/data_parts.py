"""The parts of the data of a training: what its configuration names, and what is held out of the training data."""

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, NamedTuple, TypeVar

from ..config import Config
from ..core.errors import InputError
from ..data.holding_out import NOTHING, is_held_out, share_of
from ..data.readers import TEXT_SUFFIXES, Source, find_sources

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
        row is always trained on.
        """
        seen: set[object] = set()
        for row in rows:
            held_out = bool(self.share) and is_held_out(content(row), self.share)
            if self.share and label is not None and label(row) not in seen:
                seen.add(label(row))
                held_out = False
            if held_out == self.held_out:
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
        """Set ``data.valid``, in place, to what is held out of the training data if the user names no other data."""
        if self.validation_spec() is None and self.config.data.valid is None:
            self.training_spec()
            self.config.data.valid = self.usual_share()

    def usual_share(self) -> str:
        """Return what is held out by default: a share such as ``10%``, or ``none``."""
        return NOTHING

    def part(self, spec: str, split: str) -> Part:
        """Return the part of the data that a name and a split stand for."""
        data = self.config.data
        if share := share_of(data.valid):
            if spec == data.valid:
                return Part(self.training_spec(), "train", share, held_out=True)
            if split == "train" and spec == data.train:
                return Part(spec, split, share)
        return Part(spec, split)

    def sources(self, spec: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some data; the arguments are those of `Task.read`."""
        wanted = file_format or self.config.data.format
        return find_sources(spec, file_format=wanted, split=split, suffixes=self.suffixes)
