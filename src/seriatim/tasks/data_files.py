"""The data that a configuration names: their split, their files, and what is refused or warned of in them.

Validation data are a part of the training data where no others are given. Rows (labelled texts, sentences, lines,
pairs) are chosen by a hash of their content, so that the choice depends neither on their order nor on the seed, and
equal rows are on the same side. Of a running text the end is held out.
"""

import functools
import hashlib
import io
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np

from ..config import Config
from ..core.errors import ConflictError, RangeError, RequiredError, SizeError, shown
from ..data.repairs import DataWarning, Markers, Repairs, common_markers, markers_of
from ..data.sources import TEXT_SUFFIXES, find_sources, is_compressed
from ..data.spellings import note_other_form
from ..data.text import CHUNK_BYTES, MARK, UNREADABLE, Source, normal_line_ends, unreadable
from ..data.vocabulary import Vocabulary
from ..layers import names, options_of, split_names
from ..layers.positions import MAX_LENGTH

NOTHING = "none"
"""The value of ``data.valid`` that holds nothing out."""
PERCENT, MAX_ROWS, MIN_ROWS = 10, 5000, 50
"""Percentage of the rows that is held out, the number that is enough, and the least number of which some are."""
MOST_ROWS = 50_000
"""Number of rows that are held out of more than 100 times as many; of fewer rows, at least 1 % is held out."""
MIN_BYTES, MAX_BYTES = 50_000, 1_000_000
"""Size of a running text whose end is held out, and the size of an end that is enough."""


def fraction_of(value: str | None) -> float:
    """Return the fraction that a value of ``data.valid`` such as ``10%`` holds out; 0 for the name of a file.

    Raises:
        InputError: a fraction that leaves nothing.
    """
    if value is None or not re.fullmatch(r"[0-9]+(\.[0-9]+)?%", value):
        return 0.0
    fraction = float(value[:-1]) / 100
    if not 0 < fraction < 1:
        raise RangeError(f"data.valid: {value} leaves no data for training, or for validation; give 10%, or none")
    return fraction


def usual_fraction(rows: int) -> str:
    """Return the value of ``data.valid`` for training data with this number of rows."""
    if rows < MIN_ROWS:
        return NOTHING
    if rows > 100 * MOST_ROWS:
        return _written(100 * MOST_ROWS / rows)
    return f"{max(1, min(PERCENT, 100 * MAX_ROWS // rows))}%"


def usual_fraction_of_text(size: int) -> str:
    """Return the value of ``data.valid`` for a running text of ``size`` bytes."""
    if size < MIN_BYTES:
        return NOTHING
    if size <= MAX_BYTES * 100 // PERCENT:
        return f"{PERCENT}%"
    return _written(100 * MAX_BYTES / size)


def _written(percent: float) -> str:
    """Return a fraction that is not 0, with four digits after the decimal point at most."""
    return f"{max(0.0001, percent):.4f}".rstrip("0").rstrip(".") + "%"


def is_held_out(content: str, fraction: float) -> bool:
    """Return whether a row with this content is held out."""
    return _digest(content.encode("utf-8", "surrogatepass")) < _bound(fraction)


def line_split(source: Source, fraction: float, *, held_out: bool) -> Source:
    """Return a file with only those lines that are held out, or only the others; of JSONL, its texts decide."""
    bound, is_jsonl = _bound(fraction), source.format == "jsonl"

    def lines(file: Iterable[bytes]) -> Iterator[bytes]:
        for line in file:
            content = line.rstrip(b"\r\n").removeprefix(MARK)
            if is_jsonl and not content.strip():  # belongs to neither split; `find_blank_lines` counts it
                continue
            if is_jsonl:
                content = _text_of(content)
            if (_digest(content) < bound) == held_out:
                yield line if line.endswith(b"\n") else line + b"\n"

    return _selection(source, lines, f"lines {fraction} {source.format}", held_out=held_out)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _bound(fraction: float) -> bytes:
    """Return the digest from which on rows are not held out."""
    return math.ceil(fraction * 2**64).to_bytes(8, "big")


def end_split(sources: list[Source], fraction: float, *, held_out: bool) -> list[Source]:
    """Return the files of a text without their end, or their end only; the text is cut at a line end."""
    sizes = [_size(source) for source in sources]
    cut = round(sum(sizes) * (1 - fraction))
    chosen, start = [], 0
    for source, size in zip(sources, sizes, strict=True):
        if start + size <= cut or start >= cut:
            if (start >= cut) == held_out:
                chosen.append(source)
        else:
            choose = functools.partial(cut_at, at=cut - start, end=held_out)
            chosen.append(_selection(source, choose, f"end {cut - start}", held_out=held_out))
        start += size
    return chosen


def text_size(sources: Iterable[Source]) -> int:
    """Return the size of a text in bytes, decompressed."""
    return sum(map(_size, sources))


def _text_of(line: bytes) -> bytes:
    """Return the field ``text`` of a line of JSONL, or the line itself if it has none; the reader refuses it later."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    text = record.get("text") if isinstance(record, dict) else None
    return normal_line_ends(text).encode("utf-8", "surrogatepass") if isinstance(text, str) else line


def cut_at(file: BinaryIO, *, at: int, end: bool) -> Iterator[bytes]:
    """Yield the lines that begin before the byte ``at``, or the lines from there on."""
    position = file.seek(max(0, at - 1)) if end and file.seekable() else 0
    is_cut = False
    while block := file.read(CHUNK_BYTES):
        cut = 0 if is_cut else len(block)
        if not is_cut and position + len(block) >= at and (found := block.find(b"\n", max(0, at - 1 - position))) >= 0:
            cut, is_cut = found + 1, True
        if chosen := block[cut:] if end else block[:cut]:
            yield chosen
        if is_cut and not end:
            return
        position += len(block)


def _size(source: Source) -> int:
    """Return the size of a text; only compressed files and those that are not on the disk are read."""
    if len(source.origin) == 1 and not is_compressed(Path(source.origin[0])):
        with suppress(OSError):  # which reading reports
            return Path(source.origin[0]).stat().st_size
    size = 0
    try:
        with source.open() as file:
            while block := file.read(CHUNK_BYTES):
                size += len(block)
    except UNREADABLE as error:
        raise unreadable(source, error) from None
    return size


def _selection(source: Source, choose: Callable[[BinaryIO], Iterator[bytes]], which: str, *, held_out: bool) -> Source:
    """Return a file with the lines that ``choose`` yields; ``which`` names them in the record of what was read."""
    name = f"{source.name} (the held-out part)" if held_out else source.name
    origin = (*source.origin, which, str(held_out)) if source.origin else ()
    return source._replace(
        name=name, open=lambda: io.BufferedReader(_ChosenBlocks(source.open(), choose), CHUNK_BYTES), origin=origin
    )


class _ChosenBlocks(io.RawIOBase):
    """A file to read whose content is chosen from another file, which it closes."""

    def __init__(self, opened: AbstractContextManager[BinaryIO], choose: Callable[[BinaryIO], Iterator[bytes]]) -> None:
        self._opened = opened
        self._blocks, self._rest = choose(opened.__enter__()), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(buffer)  # type: ignore[arg-type]
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._opened.__exit__(None, None, None)
        super().close()


# Files


Row = TypeVar("Row")


class Subset(NamedTuple):
    """Some data: its name, its split if it has several, and a fraction of its rows.

    ``fraction`` is held out; the subset is what is held out, or the rest. A fraction of 0 leaves nothing out.
    """

    source: str
    split: str
    fraction: float = 0.0
    held_out: bool = False

    def chosen(
        self, rows: Iterable[Row], content: Callable[[Row], str], label: Callable[[Row], object] | None = None
    ) -> Iterator[Row]:
        """Return the rows of this subset.

        ``content`` returns the text that decides where a row belongs; ``label`` returns a label, of which the first
        row, and every row that is equal to it, is always trained on.
        """
        if not self.fraction:
            yield from rows
            return
        first: dict[object, str] = {}  # the content of the first row of each label
        bound = _bound(self.fraction)
        for row in rows:
            text = content(row)
            is_first = label is not None and first.setdefault(label(row), text) == text
            if (not is_first and _digest(text.encode("utf-8", "surrogatepass")) < bound) == self.held_out:
                yield row


class DataFiles:
    """Finds the data that a configuration names. ``suffixes`` are those of the files that are read from a folder."""

    def __init__(self, config: Config, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> None:
        self.config, self.suffixes = config, suffixes

    def training_source(self) -> str:
        """Return ``data.train``; raise InputError if it is missing or cannot be read as often as it must be."""
        data = self.config.data
        if data.train is None:
            raise RequiredError("data.train: no text to learn from; give --data FILE, or --data builtin:python-docs")
        if data.train == data.valid == "-":
            raise ConflictError("data.valid: standard input is the training text already; give a file")
        return data.train

    def validation_source(self) -> str | None:
        """Return the name of the validation data, or None if there are none.

        It is ``data.valid``; the built-in corpus itself if the training text is one; or a fraction such as ``10%``,
        which stands for a subset of the training data.
        """
        train, valid = self.config.data.train or "", self.config.data.valid
        if valid is None and train.startswith("builtin:") and train.count(":") == 1:
            return train
        return None if valid == NOTHING else valid

    def name_of(self, source: str | None) -> str:
        """Return the name of some data for a reader."""
        return f"{source} of {self.config.data.train}" if fraction_of(source) else str(source)

    def validation_name(self) -> str:
        """Return the name of the validation data for a reader."""
        return self.name_of(self.validation_source())

    def named(self) -> dict[str, str]:
        """Return every file, folder or glob that a training reads, by the configuration field that names it."""
        valid = self.validation_source()
        named = {
            "data.train": self.config.data.train,
            "data.valid": None if fraction_of(valid) else valid,
            "model.options.vectors": self.config.model.options.get("vectors"),
        }
        return {field: source for field, source in named.items() if isinstance(source, str)}

    def subset(self, source: str, split: str) -> Subset:
        """Return the subset of the data that a name and a split stand for."""
        data = self.config.data
        if fraction := fraction_of(data.valid):
            if source == data.valid:
                return Subset(self.training_source(), "train", fraction, held_out=True)
            if split == "train" and source == data.train:
                return Subset(source, split, fraction)
        return Subset(source, split)

    def sources(self, source: str, split: str, file_format: str | None = None) -> list[Source]:
        """Find the files of some data; the arguments are those of `Reader.read`."""
        wanted = file_format or self.config.data.format
        return find_sources(source, file_format=wanted, split=split, suffixes=self.suffixes)

    def markers_in(self, texts: Iterable[Iterable[str]]) -> Markers | None:
        """Return the boundary markers that are left out: those of the configuration, or of all texts of one side."""
        if self.config.data.markers != "auto":
            return markers_of(self.config.data.markers)
        return next(filter(None, map(common_markers, texts)), None)

    def new_repairs(self, vocabulary: Vocabulary | None = None) -> Repairs:
        """Return an empty record of repairs, which refuses them if ``data.strict`` says so, and notes boundary markers.

        Given a vocabulary, it also notes texts in another normal form.
        """
        repairs = Repairs(strict=self.config.data.strict)
        repairs.looks_for_markers = True
        if vocabulary is not None:
            repairs.examine = functools.partial(note_other_form, vocabulary=vocabulary, repairs=repairs)
        return repairs

    def repairs_to_report(self, repairs: Repairs, source: str, split: str) -> Repairs:
        """Return the repairs of some data; none of a held-out fraction, whose file the training split has, too."""
        return self.new_repairs() if self.subset(source, split).held_out else repairs

    def given_text(self, vocabulary: Vocabulary, text: str, name: str) -> str:
        """Return a text of the command line as the data of a model are read, and warn of it; messages name ``name``."""
        repairs = self.new_repairs(vocabulary)
        repairs.markers = self.markers_in([])
        if repairs.markers is None:
            repairs.note_markers(text, name, 1)
        text = repairs.text(text, name, 1)
        repairs.warn()
        return text


# What is refused or warned of


LONG = 10_000
"""Number of tokens from which attention without a window is slow, since its time grows with their square."""
MAX_LISTED = 200  # the largest number of labels that `check` lists


def warn_of_long(lengths: np.ndarray, config: Config, *, name: str, items: str) -> None:
    """Warn if attention without a window will read a very long sequence; ``items`` is a plural noun for sequences."""
    longest, options = int(lengths.max(initial=0)), config.model.options
    if longest <= LONG:
        return
    layers = set(split_names(config.model.layer)) & set(names())  # a counted model has no layer
    if any("window" in options_of(layer, options) and options.get("window") is None for layer in layers):
        warnings.warn(
            f"{name}: one of the {items} (number {int(lengths.argmax()) + 1:,}) has {longest:,} tokens; the time that "
            f"model.layer {config.model.layer} takes grows with the square of that; split it, or train with "
            "model.options.window, for instance 512",
            stacklevel=2,
        )


def declared_positions(options: Mapping[str, object]) -> int | None:
    """Return the number of learned positions that the options of a layer declare; None for no limit."""
    limit = options.get("max_length", MAX_LENGTH)
    return limit if options.get("position") == "learned" and isinstance(limit, int) else None


def check_lengths(
    limit: int | None, lengths: Sequence[int] | np.ndarray, location: Callable[[int], str], *, more: int = 0
) -> None:
    """Raise InputError for the first of some texts that a model with ``limit`` learned positions cannot read.

    Args:
        limit: the number of positions; None for any number.
        lengths: the number of tokens of each text, those around it included ``(texts,)``.
        location: returns the name of a text in messages, such as its file and line, by its index.
        more: the number of tokens that follow each text.
    """
    sizes = np.asarray(lengths)
    if limit is None or not (too_long := np.flatnonzero(sizes + more > limit)).size:
        return
    first = int(too_long[0])
    if (size := int(sizes[first])) > limit:
        raise SizeError(
            f"{location(first)}: {size:,} tokens, the model reads {limit:,}; shorten the text, or train a model with "
            f"model.options.max_length {size}, or with position rotary, alibi or sinusoidal"
        )
    raise SizeError(
        f"{location(first)}: the text and max_tokens need {size + more:,} tokens, the model reads {limit:,}; lower "
        "one of them"
    )


def read_lengths(texts: Sequence[str], lengths: np.ndarray, limit: int | None) -> np.ndarray:
    """Return how many tokens of each text are read ``(texts,)``: at most ``limit``, and warn of longer texts."""
    if limit is None or int(lengths.max(initial=0)) <= limit:
        return lengths
    warnings.warn(
        f"{int((lengths > limit).sum())} of {len(lengths)} lines have more tokens than there are learned positions; "
        f"only the first {limit} are read, also of {shown(texts[int((lengths > limit).argmax())])}",
        stacklevel=3,
    )
    shortened: np.ndarray = np.minimum(lengths, limit)
    return shortened


def explain_equal_rows(rows: Collection[str], noun: str, *, none_held_out: bool) -> str:
    """Explain why a fraction takes none or all of the rows, whose plural noun is ``noun``."""
    different = len(set(rows))
    if different == 1:
        return f"its {noun} are all equal"
    chosen = "none" if none_held_out else "all"
    return f"the hash that chooses {noun} chooses {chosen} of its {different:,} different ones"


def listed(counts: Counter[str]) -> list[str]:
    """Return labels with their counts, the most frequent first, and how many are left out."""
    shown = [f"{label} {count:,}" for label, count in counts.most_common(MAX_LISTED)]
    return [*shown, *([f"and {len(counts) - MAX_LISTED:,} others"] if len(counts) > MAX_LISTED else [])]


def name_unseen(noun: str, unseen: Mapping[str, str]) -> str:
    """Name the first label that does not occur in the training data; ``unseen`` has the location of each such label."""
    label, where = next(iter(unseen.items()))
    which = shown(label) + (f" and {len(unseen) - 1:,} more do" if len(unseen) > 1 else " does")
    return f"{where}: the {noun} {which} not occur in the training data"


def warn_of_unseen(noun: str, unseen: Mapping[str, str], count: int, items: str) -> None:
    """Warn of labels that do not occur in the training data, and of the ``count`` items that have them.

    ``items`` are these items in words. The warning names the same location for every reading, so that it is shown once.
    """
    verb = "counts" if count == 1 else "count"
    warnings.warn(f"{name_unseen(noun, unseen)}; {items} {verb} as wrong", DataWarning, stacklevel=2)
