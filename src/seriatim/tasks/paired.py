"""Reading pairs: a source and its target, or several targets that are alternatives."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ..config import Config
from ..core.errors import InputError, shown
from ..data.normal_forms import note_different_sides
from ..data.pairs import Pair, Pairs, encode_pairs, items_of, read_pairs, read_unpaired
from ..data.repairs import DataWarning, Repairs
from ..data.sources import PAIRED_SUFFIXES
from ..data.text import Source
from ..data.vocabulary import Vocabulary, fit_tokenizer
from ..layers.positions import check_lengths, declared_positions
from ..models.copying import copied_tokens
from .data_warnings import warn_of_long
from .labelled import LabelledReader


@dataclass(frozen=True)
class PairLimits:
    """What a translator can read and write.

    ``max_target_length`` is the largest number of tokens of a target. ``upsample`` is the number of positions that each
    source token gives to a model that writes all of an answer at once (CTC); None for one that writes token by token.
    """

    max_target_length: int
    upsample: int | None = None


class PairReader(LabelledReader[Pairs]):
    """Reads pairs.

    Args:
        config: the configuration.
        shared_vocabulary: whether both sides have one tokenizer.
        target_kind: the kind of the target tokenizer; None for that of the sources.
        limits: pairs beyond them are refused; None refuses none.
        invents_stems: whether the training pairs are taken apart, so that stems can be invented for them.
    """

    def __init__(
        self,
        config: Config,
        *,
        shared_vocabulary: bool,
        target_kind: str | None,
        limits: PairLimits | None,
        invents_stems: bool = False,
    ) -> None:
        super().__init__(config, PAIRED_SUFFIXES)
        self.shared_vocabulary, self.target_kind = shared_vocabulary, target_kind
        self.limits, self.invents_stems = limits, invents_stems

    def training_texts(self) -> tuple[list[str], list[str]]:
        """Return the sources and the targets of the training data; pairs without any target are refused."""
        pairs = list(self.pairs(self.files.training_source(), "train"))
        if not any(pair.target for pair in pairs):
            where = f"{pairs[0].name}:{pairs[0].line}"
            raise InputError(f"{where}: the targets of all {len(pairs):,} pairs are empty; write SOURCE<TAB>TARGET")
        return [pair.source for pair in pairs], [pair.target for pair in pairs]

    def learn_vocabulary(self) -> Vocabulary:
        """Learn one tokenizer for both sides, or one for each."""
        sources, targets = self.training_texts()
        settings = self.config.tokenizer
        if self.shared_vocabulary:
            return Vocabulary({"tokenizer": fit_tokenizer(settings, [*sources, *targets])})
        target_settings = settings.model_copy(update={"kind": self.target_kind or settings.kind})
        target = fit_tokenizer(target_settings, targets)
        return Vocabulary({"tokenizer": fit_tokenizer(settings, sources), "target": target})

    def pairs(
        self, source: str, split: str, file_format: str | None = None, repairs: Repairs | None = None
    ) -> Iterator[Pair]:
        """Read the pairs of ``source``; ``repairs`` records what was repaired."""
        wanted, subset = file_format or self.config.data.format, self.files.subset(source, split)
        repairs = repairs or self.files.new_repairs()
        repairs.markers = self.files.markers_in(self.texts(source, split, file_format))
        pairs = read_pairs(subset.source, file_format=wanted, split=subset.split, repairs=repairs)
        return subset.chosen(pairs, attrgetter("source"))

    def texts(self, source: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the sources and the targets as they are written."""
        subset, wanted = self.files.subset(source, split), file_format or self.config.data.format

        def side(name: str) -> Iterable[str]:
            pairs = read_pairs(subset.source, file_format=wanted, split=subset.split, repairs=Repairs())
            return map(attrgetter(name), pairs)

        return [side("source"), side("target")]

    def labelled_items(self, source: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sources with their targets."""
        return ((pair.source, pair.target) for pair in self.pairs(source, split))

    def measured_items(self, vocabulary: Vocabulary, source: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the items of `read_items`."""
        return iter(self.read_items(source, split))

    def read_items(self, source: str, split: str, file_format: str | None = None) -> list[tuple[str, list[str]]]:
        """Read the sources, each with its targets, which are several if they are alternatives; see `items_of`."""
        pairs = list(self.pairs(source, split, file_format))
        numbers = items_of([pair.source for pair in pairs], alternatives=self.config.data.alternatives)
        items: dict[int, tuple[str, list[str]]] = {}
        for number, pair in zip(numbers.tolist(), pairs, strict=True):
            items.setdefault(number, (pair.source, []))[1].append(pair.target)
        return list(items.values())

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Pairs:
        """Read and encode pairs, and refuse those beyond the limits; see `Reader.read`."""
        data, pairs = self.encoded(source, split, vocabulary, file_format)
        if self.limits is not None:
            self.check_limits(data, pairs, self.limits, self.files.name_of(source))
        if self.invents_stems and split == "train":
            return data.with_parts(copied_tokens(vocabulary.tokenizer, vocabulary.target))
        return data

    def check_limits(self, data: Pairs, pairs: Sequence[Pair], limits: PairLimits, name: str) -> None:
        """Raise InputError for the first pair that is too long; warn of sources that take long to read."""

        def place(row: int) -> str:
            return f"{pairs[row].name}:{pairs[row].line}"

        # The encoder reads the source, at so many positions for each token, and the decoder the target and its end.
        sizes, target_sizes = data.source.lengths, data.target.lengths
        warn_of_long(sizes, self.config, name=name, items="sources")
        at_once = limits.upsample is not None
        needed = sizes * (limits.upsample or 1) if at_once else np.maximum(sizes, target_sizes + 1)
        check_lengths(declared_positions(self.config.model.options), needed, place)

        # An answer has at most so many tokens, so that a longer target could never be written.
        limit = limits.max_target_length
        for row in np.flatnonzero(target_sizes > limit)[:1]:
            raise InputError(
                f"{place(row)}: the target has {target_sizes[row]} tokens, model.options.max_target_length is {limit}; "
                "raise it, or split the pair"
            )

        # CTC aligns each target token, and a blank between two equal ones, with a position of the source.
        if at_once:
            needed, positions = data.places_needed(), sizes * (limits.upsample or 1)
            for row in np.flatnonzero(needed > positions)[:1]:
                raise InputError(
                    f"{place(row)}: the target needs {needed[row]} places, its source gives {positions[row]}; raise "
                    "model.options.upsample, or leave the pair out"
                )

    def encoded(
        self, source: str, split: str, vocabulary: Vocabulary, file_format: str | None
    ) -> tuple[Pairs, list[Pair]]:
        """Read and encode pairs; warn of repairs, and of pairs that are measured as alternatives."""
        repairs = self.files.new_repairs(vocabulary)
        pairs = list(self.pairs(source, split, file_format, repairs))
        if split == "train" and pairs:
            sides = (pair.source for pair in pairs), (pair.target for pair in pairs)
            note_different_sides(*sides, pairs[0].name, pairs[0].line, repairs)
        data = encode_pairs(pairs, vocabulary, alternatives=self.config.data.alternatives)
        data.repairs = self.files.repairs_to_report(repairs, source, split)
        data.repairs.warn()
        several = np.flatnonzero(np.bincount(data.items) > 1)
        if split != "train" and several.size:
            first, others = pairs[data.first_rows[several[0]]], several.size - 1
            more = f" and {others:,} more have" if others else " has"
            warnings.warn(
                f"{first.name}:{first.line}: the source {shown(first.source)}{more} several rows, of which the best "
                f"counts, and each of the {len(data.first_rows):,} sources counts once; --data.alternatives false "
                "counts each row",
                DataWarning,
                stacklevel=2,
            )
        return data, pairs

    def describe(self, data: Pairs) -> str:
        """Return the number of pairs and tokens."""
        return f"{len(data.sources):,} pairs ({data.source.lengths.sum():,} and {data.target.lengths.sum():,} tokens)"

    def count(self, source: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of the pairs and of both sides."""
        pairs = self.read(source, split, vocabulary)
        sources, targets = pairs.source.lengths, pairs.target.lengths
        return {
            "pairs": len(sources),
            "source_tokens": int(sources.sum()),
            "tokens": int(targets.sum()),
            "unknown_tokens": pairs.unknown(),
            "longest_source": int(sources.max(initial=0)),
            "longest_target": int(targets.max(initial=0)),
            "empty_sources": int((sources == 0).sum()),
            "empty_targets": int((targets == 0).sum()),
            **pairs.repairs.lines(),
        }

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[str]:
        """Read lines, or the sources of TSV or JSONL; targets are ignored."""
        return read_unpaired(sources, file_format, repairs)
