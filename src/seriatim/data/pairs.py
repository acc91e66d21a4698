"""Pairs of texts for sequence to sequence: their readers, encoded pairs, batches, and pairs with invented stems.

TSV has no header, and no quoting unless every source or every target is in quotes. JSONL has the fields ``source`` and
``target``. Two files are ``train.en,train.de``. Either text may be empty (the correct answer may be nothing), and white
space is kept except at line ends. Blank lines and trailing tabs are recorded as repairs.

Invented stems: the longest shared span of a pair is replaced by other tokens, on both sides alike.

A. Anastasopoulos and G. Neubig, "Pushing the limits of low-resource morphological inflection", EMNLP 2019.

If source and target share a long span, as l a u f in l a u f e n +V +PST and l a u f t e, most of it says nothing about
the rest, and the pair stays right with other tokens there. The first and the last token of the span stay, because what
follows or precedes may depend on them. The new tokens are drawn from the shared spans of the batch, again at every
step. In the paper, whole data sets are made once, from uniform letters, and the new stem can have another length.
"""

import functools
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import MalformedError, MismatchError, NotSupportedError, RequiredError, UnknownNameError, nearest
from .batches import padded
from .repairs import Repairs
from .sources import PAIRED_SUFFIXES, find_sources
from .spellings import BLANKS, canonical, folded
from .tables import TAB, format_of, peek_line, tab_separated
from .text import Source, numbered_lines, object_fields, read_lines, read_objects, require_items, string_field
from .tokenizers import END, Tokenizer
from .vocabulary import Vocabulary

FORMATS = ("auto", "tsv", "jsonl")
HEADERS = ({"source", "target"}, {"text", "label"})


class Pair(NamedTuple):
    """A source, its target (empty if targets were not read), the file of the source and the line number."""

    source: str
    target: str
    name: str
    line: int


def read_pairs(
    data: str,
    *,
    file_format: str = "auto",
    split: str = "train",
    repairs: Repairs | None = None,
) -> Iterator[Pair]:
    """Read pairs one by one; only one is held in memory.

    Args:
        data: as for `find_sources`, or two files separated by a comma.
        file_format: ``tsv``, ``jsonl``, or ``auto`` to choose by the name and then by the first line.
        split: the split of a built-in corpus, if ``data`` does not name one.
        repairs: records the repairs; if None, data that needs a repair is refused.

    Raises:
        InputError: no such file or format, no pairs, or a line without its partner, by file and line.
    """
    if file_format not in FORMATS:
        raise UnknownNameError(f"{file_format}: not a format of pairs; {nearest(file_format, list(FORMATS))}")
    names, repairs = data.split(","), repairs or Repairs(strict=True)

    # A file whose name has a comma is one file.
    files: Iterable[tuple[str, Iterator[Pair]]]
    if len(names) == 2 and not os.path.exists(data):
        left, right = (_single_file(name, data, split) for name in names)
        files = [(names[0], _aligned_lines(left, right, repairs))]
    else:
        sources = find_sources(data, file_format=file_format, split=split, suffixes=PAIRED_SUFFIXES)
        files = ((source.name, _pairs(source, file_format, repairs)) for source in sources)
    for name, pairs in files:
        problem = f"{name}:1: no pairs to learn from; write SOURCE<TAB>TARGET on every line"
        for pair in require_items(pairs, problem):
            source = repairs.text(pair.source, pair.name, pair.line)
            target = repairs.text(pair.target, pair.name, pair.line, target=True)
            yield pair._replace(source=source, target=target)


def read_unpaired(
    sources: Iterable[Source], file_format: str | None = None, repairs: Repairs | None = None
) -> Iterator[str]:
    """Read the sources that a model is to answer, one by one.

    In the format ``text`` every line is a source; in ``tsv`` the text before the tab of a line, or the whole line; in
    ``jsonl`` the field ``source`` of each object, or else ``text``. With None or ``auto`` the name decides.

    Raises:
        InputError: another format, or a line that does not fit the format.
    """
    if file_format not in (None, "text", *FORMATS):
        raise NotSupportedError(f"--format {file_format}: sources are not read from it; give text, tsv or jsonl")
    repairs = repairs or Repairs(strict=True)
    for source in sources:
        chosen = format_of(source) if file_format in (None, "auto") else file_format
        if chosen == "tsv":
            pairs = _tab_separated(source, False, repairs)
        elif chosen == "jsonl":
            pairs = _from_objects(source, False, repairs)
        else:
            pairs = _lines_as_sources(source, repairs, warn=file_format != "text")
        for pair in pairs:
            yield repairs.text(pair.source, pair.name, pair.line)


def _lines_as_sources(source: Source, repairs: Repairs, *, warn: bool) -> Iterator[Pair]:
    for number, line in numbered_lines(source, repairs):
        hint = ""
        if number == 1 and TAB in line:
            hint = "the tab is read as part of the source; use --format tsv to read only the text before it"
        elif number == 1 and warn and {"source", "text"} & set(object_fields(line)):
            hint = "looks like JSONL, but is read as text; use --format jsonl for JSONL"
        if hint:
            warnings.warn(f"{source.name}:1: {hint}", stacklevel=2)
        yield Pair(line, "", source.name, number)


def _pairs(source: Source, requested: str, repairs: Repairs) -> Iterator[Pair]:
    known = format_of(source) if requested == "auto" else requested
    if known == "csv":
        raise NotSupportedError(f"{source.name}:1: pairs are not read from CSV; write SOURCE<TAB>TARGET, or JSONL")
    if not known:
        line = peek_line(source)
        known = "jsonl" if line.startswith("{") and TAB not in line else "tsv"
    return (_from_objects if known == "jsonl" else _tab_separated)(source, True, repairs)


def _tab_separated(source: Source, labelled: bool, repairs: Repairs) -> Iterator[Pair]:
    read, remedy = [0, 1] if labelled else [0], "if it is quoted, delete the quotes, or write JSONL"
    for number, fields in tab_separated(source, lambda _: read, repairs, headed=False, remedy=remedy):
        where = f"{source.name}:{number}"
        if number == 1 and {folded(field) for field in fields} in HEADERS:
            remedy = "delete it (a pair of these words may be on another line)"
            if source.name.startswith("builtin:"):
                raise MismatchError(f"{source.name}: texts with labels, not pairs; give this data to the task classify")
            raise MalformedError(f"{where}: a header, but files of pairs have none; {remedy}")

        # Empty columns at the end lose nothing; any other third column could be part of a pair.
        if len(fields) > 2:
            if any(field.strip(BLANKS) for field in fields[2:]):
                remedy = "for example the lemma and the features joined by a space, then a tab and the form"
                columns = f"{TAB.join(fields).rstrip(BLANKS).count(TAB) + 1} columns, but a pair has 2"
                raise MalformedError(f"{where}: {columns}; write SOURCE<TAB>TARGET, {remedy}")
            problem = f"{TAB.join(fields).count(TAB)} tabs, but only one may separate source and target"
            remedy = "delete the others, or write JSONL"
            reading = "read without the tabs at the end"
            repairs.add("trailing separators", source.name, number, problem=problem, reading=reading, remedy=remedy)

        # A blank line is no pair of empty texts, which has a tab.
        if len(fields) < 2 and labelled and not fields[0].strip(BLANKS):
            problem, remedy = "a blank line", "delete it, or write the tab of a pair of empty texts"
            repairs.add("blank lines", source.name, number, problem=problem, reading="left out", remedy=remedy)
            continue
        if len(fields) < 2 and labelled:
            raise MalformedError(f"{where}: no tab; write SOURCE<TAB>TARGET, or give two files as SOURCES,TARGETS")
        yield Pair(fields[0], fields[1] if labelled else "", source.name, number)


def _from_objects(source: Source, labelled: bool, repairs: Repairs) -> Iterator[Pair]:
    for number, record in read_objects(source, repairs):
        where = f"{source.name}:{number}"
        target = string_field(record, "target", where) if labelled else ""
        field = "text" if not labelled and "source" not in record and "text" in record else "source"
        yield Pair(string_field(record, field, where), target, source.name, number)


def _single_file(name: str, data: str, split: str) -> Source:
    if not name:
        raise RequiredError(f"{data}: the name of one of the two files is empty; give SOURCES,TARGETS")
    sources = find_sources(name, split=split)
    if len(sources) != 1:
        raise MismatchError(f"{name}: {len(sources)} files; give one file for each side")
    return sources[0]._replace(format="text")


def _aligned_lines(left: Source, right: Source, repairs: Repairs) -> Iterator[Pair]:
    lines = zip_longest(read_lines([left], repairs), read_lines([right], repairs))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            longer, shorter = (left, right) if target is None else (right, left)
            total = number + sum(1 for _ in lines)
            remedy = f"the files have {total} and {number - 1} lines, align them"
            raise MismatchError(f"{longer.name}:{number}: no partner in {shorter.name}; {remedy}")
        yield Pair(source, target, left.name, number)


SHORTEST = 3
"""Smallest number of tokens of a shared span in which something is replaced."""


class Side(NamedTuple):
    """Encoded texts in one array."""

    ids: np.ndarray  # the token ids of all texts (tokens,)
    starts: np.ndarray  # the position in ids at which each text begins (texts,)
    lengths: np.ndarray  # the number of tokens of each text (texts,)

    @classmethod
    def join(cls, texts: Sequence[np.ndarray]) -> "Side":
        """Return texts that are given as token ids ``(tokens,)``."""
        lengths = np.array([len(ids) for ids in texts], dtype=np.int64)
        return cls(np.concatenate([*texts, np.zeros(0, np.int32)]), lengths.cumsum() - lengths, lengths)

    def rows(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the ids ``(rows, time)`` and lengths ``(rows,)`` of some texts."""
        ids = padded(self.ids, self.starts[rows], self.lengths[rows])
        return torch.from_numpy(ids), torch.from_numpy(self.lengths[rows])


class SharedSpans(NamedTuple):
    """The longest span that each source shares with its target, and which target id a source id stands for."""

    starts: Tensor  # position of the span in the source (pairs,)
    target_starts: Tensor  # in the target (pairs,)
    sizes: Tensor  # number of tokens of the span (pairs,)
    table: Tensor  # target id of each source id, −1 if it has none (source_vocabulary,)

    def rows(self, rows: np.ndarray) -> "SharedSpans":
        """Return those of some pairs."""
        index = torch.from_numpy(rows)
        return SharedSpans(self.starts[index], self.target_starts[index], self.sizes[index], self.table)


def shared_spans(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], table: Tensor) -> SharedSpans:
    """Find the longest shared span of each pair of token ids; ``table`` is that of `SharedSpans`."""
    found = []
    for source, target in zip(sources, targets, strict=True):
        as_target = table.numpy()[source].tolist()
        match = SequenceMatcher(None, as_target, target.tolist(), autojunk=False).find_longest_match()
        found.append(tuple(match))
    starts, target_starts, sizes = torch.tensor(found, dtype=torch.long).reshape(-1, 3).unbind(1)
    return SharedSpans(starts, target_starts, sizes, table)


def with_invented_stems(source: Tensor, targets: Tensor, spans: SharedSpans, rate: float) -> tuple[Tensor, Tensor]:
    """Return ids ``(batch, source_time)`` and ``(batch, time)`` in which some pairs have another shared span.

    ``rate`` is the fraction of the pairs that are changed, of those with a span of `SHORTEST` tokens or more. The
    numbers are drawn from the generator of `torch`.
    """
    batch, time = source.shape
    chosen = (torch.rand(batch) < rate) & (spans.sizes >= SHORTEST)
    position = torch.arange(time) - spans.starts.unsqueeze(1)  # within the span (B, S)
    shared = (position >= 0) & (position < spans.sizes.unsqueeze(1))
    pool = source[shared]  # the tokens of all shared spans (N,)
    if not len(pool):
        return source, targets

    # The first and the last token of a span stay, because what follows or precedes may depend on them.
    drawn = pool[torch.randint(len(pool), (batch, time))]  # (B, S)
    inner = chosen.unsqueeze(1) & (position > 0) & (position < spans.sizes.unsqueeze(1) - 1)
    source = torch.where(inner, drawn, source)

    # The target has the same new tokens at the same distance from the beginning of the span.
    position = torch.arange(targets.shape[1]) - spans.target_starts.unsqueeze(1)  # within the span (B, T)
    inner = chosen.unsqueeze(1) & (position > 0) & (position < spans.sizes.unsqueeze(1) - 1)
    copied = spans.table[source].gather(1, (position + spans.starts.unsqueeze(1)).clamp(0, time - 1))  # (B, T)
    return source, torch.where(inner, copied, targets)


@dataclass
class PairBatch:
    """Some pairs."""

    source: Tensor  # ids (batch, source_time)
    source_lengths: Tensor  # (batch,)
    inputs: Tensor  # the token before each target (batch, time); the first is the boundary symbol
    targets: Tensor  # ids (batch, time); the last is the boundary symbol
    target_lengths: Tensor  # with the boundary symbol (batch,)
    rows: np.ndarray  # the indices of the pairs (batch,)
    fresh: bool = True  # always True: no state is carried from pair to pair
    spans: SharedSpans | None = None  # what each source shares with its target, if stems are invented

    def with_invented_stems(self, rate: float) -> "PairBatch":
        """Return the batch with invented stems in a fraction of its pairs."""
        if self.spans is None or not rate:
            return self
        source, targets = with_invented_stems(self.source, self.targets, self.spans, rate)
        inputs = torch.cat([self.inputs[:, :1], targets[:, :-1]], dim=1)
        return replace(self, source=source, inputs=inputs, targets=targets)

    @property
    def tokens(self) -> int:
        """The number of target tokens, with the boundary symbols."""
        return int(self.target_lengths.sum())

    @property
    def terms(self) -> int:
        """The number of terms of the loss."""
        return self.tokens


@dataclass
class Pairs:
    """Encoded pairs, and their texts.

    Models learn pairs, and are measured on items: a source with its targets, which are alternatives.
    """

    source: Side
    target: Side
    sources: list[str]
    targets: list[str]
    vocabulary: Vocabulary
    key: str
    items: np.ndarray  # the index of the item of each pair, in the order of their first pairs (pairs,)
    repairs: Repairs = field(default_factory=Repairs)  # the repairs made while the pairs were read
    spans: SharedSpans | None = None  # what each source shares with its target, if stems are invented

    def with_shared_spans(self, table: Tensor) -> "Pairs":
        """Return the pairs with what their sides share; ``table`` is the target id of each source id, −1 for none."""
        sources, targets = (
            [side.ids[start : start + size] for start, size in zip(side.starts, side.lengths, strict=True)]
            for side in (self.source, self.target)
        )
        return replace(self, spans=shared_spans(sources, targets, table))

    @functools.cached_property
    def first_rows(self) -> np.ndarray:
        """The first pair of each item ``(items,)``."""
        rows: np.ndarray = np.unique(self.items, return_index=True)[1]
        return rows

    @property
    def inputs(self) -> list[str]:
        """The source of each item."""
        return [self.sources[row] for row in self.first_rows.tolist()]

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of the source of each item ``(items,)``."""
        lengths: np.ndarray = self.source.lengths[self.first_rows]
        return lengths

    @functools.cached_property
    def references(self) -> list[list[str]]:
        """The different targets of each item."""
        targets: list[dict[str, None]] = [{} for _ in self.first_rows]
        for item, target in zip(self.items.tolist(), self.targets, strict=True):
            targets[item].setdefault(target)
        return [list(each) for each in targets]

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over the pairs of each item ``(items, k)``, of values of pairs ``(pairs, k)``."""
        sums = np.zeros((len(self.first_rows), values.shape[1]))
        np.add.at(sums, self.items, values)
        return sums

    def unknown(self) -> int:
        """Return the number of tokens that are not in the vocabulary, of both sides."""
        sides = ((self.source, self.vocabulary.tokenizer), (self.target, self.vocabulary.target))
        return sum(tokenizer.count_unknown(side.ids) for side, tokenizer in sides)

    def row_digests(self) -> np.ndarray:
        """Return a number for each pair ``(pairs,)``, equal for equal pairs of one process."""
        return np.array([hash(pair) for pair in zip(self.sources, self.targets, strict=True)], dtype=np.int64)

    def positions_needed(self) -> np.ndarray:
        """Return the number of frames that CTC needs for each target: its tokens, and blanks between equal ones."""
        ids, starts = self.target.ids, self.target.starts
        repeats = np.zeros(len(ids) + 1, dtype=np.int64)
        repeats[2:] = np.cumsum(ids[1:] == ids[:-1]) if len(ids) > 1 else 0
        ends = starts + self.target.lengths
        frames: np.ndarray = self.target.lengths + repeats[ends] - repeats[np.minimum(starts + 1, ends)]
        return frames

    def batch(self, rows: np.ndarray) -> PairBatch:
        """Return some of the pairs."""
        source, source_lengths = self.source.rows(rows)
        words, lengths = self.target.rows(rows)
        targets = torch.cat([words, words.new_zeros(len(words), 1)], dim=1)  # 0 is the boundary symbol
        inputs = torch.cat([words.new_zeros(len(words), 1), words], dim=1)
        longest = int(lengths.max()) + 1
        spans = None if self.spans is None else self.spans.rows(rows)
        sides = source, source_lengths, inputs[:, :longest], targets[:, :longest], lengths + 1
        return PairBatch(*sides, rows, spans=spans)


def encode_pairs(pairs: Sequence[Pair], vocabulary: Vocabulary, *, alternatives: bool = True) -> Pairs:
    """Encode pairs; see `items_of` for ``alternatives``."""
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    source, target = encode_side(sources, vocabulary.tokenizer), encode_side(targets, vocabulary.target)
    key = hashlib.blake2b(f"pairs {vocabulary.fingerprint()}".encode(), digest_size=16)
    for values in (*source, *target):
        key.update(values.tobytes())
    items = items_of(sources, alternatives=alternatives)
    return Pairs(source, target, sources, targets, vocabulary, key.hexdigest(), items)


def items_of(sources: Sequence[str], *, alternatives: bool) -> np.ndarray:
    """Return the index of the item of each pair ``(pairs,)``: its source, or the pair if targets are no alternatives.

    Sources are equal if they look the same; see `canonical`.
    """
    numbers: dict[str, int] = {}
    items = [numbers.setdefault(canonical(source), len(numbers)) for source in sources if alternatives]
    return np.array(items or range(len(sources)), np.int64)


TEXTS_TOGETHER = 1 << 12
"""Texts whose words are looked up together."""


def encode_side(texts: Sequence[str], tokenizer: Tokenizer) -> Side:
    """Encode texts, without line ends."""
    if not tokenizer.ends_lines:
        return Side.join([tokenizer.encode(text) for text in texts])

    # Many texts are encoded together, each as a line: a line end within a text separates words, as a space does.
    encoded, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for start in range(0, len(texts), TEXTS_TOGETHER):
        lines = [text.replace("\n", " ") + "\n" for text in texts[start : start + TEXTS_TOGETHER]]
        ids, counts = tokenizer.encode_lines("".join(lines))
        encoded.append(ids[ids != END])
        sizes.append(counts - 1)
    lengths = np.concatenate(sizes)
    return Side(np.concatenate(encoded), lengths.cumsum() - lengths, lengths)
