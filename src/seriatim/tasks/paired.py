"""Pairs of a source and its target, or of several alternative targets: reading them, and the options they suggest."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from ..config import Config
from ..config import Tokenizer as TokenizerConfig
from ..core.errors import EmptyError, SizeError, shown
from ..core.json_object import JsonObject
from ..data.pairs import Pair, Pairs, encode_pairs, items_of, read_pairs, read_unpaired
from ..data.repairs import DataWarning, Repairs
from ..data.sources import PAIRED_SUFFIXES
from ..data.spellings import note_different_sides
from ..data.text import Source
from ..data.text_kinds import MANY, Kind, has_marks, kind_of, parts_generalise, shared_fraction
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary, fit_tokenizer
from ..models.copying import copied_tokens
from .data_files import check_lengths, declared_positions, warn_of_long
from .defaults import with_options
from .task import LabelledReader


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
            raise EmptyError(f"{where}: the targets of all {len(pairs):,} pairs are empty; write SOURCE<TAB>TARGET")
        return [pair.source for pair in pairs], [pair.target for pair in pairs]

    def learn_vocabulary(self) -> Vocabulary:
        """Learn one tokenizer for both sides, or one for each."""
        sources, targets = self.training_texts()
        settings = self.config.tokenizer
        if self.shared_vocabulary:
            return Vocabulary({"tokenizer": fit_side(settings, [*sources, *targets])})
        target_settings = settings.model_copy(update={"kind": self.target_kind or settings.kind})
        target = fit_side(target_settings, targets)
        return Vocabulary({"tokenizer": fit_side(settings, sources), "target": target})

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
            return data.with_shared_spans(copied_tokens(vocabulary.tokenizer, vocabulary.target))
        return data

    def check_limits(self, data: Pairs, pairs: Sequence[Pair], limits: PairLimits, name: str) -> None:
        """Raise InputError for the first pair that is too long; warn of sources that take long to read."""

        def location(row: int) -> str:
            return f"{pairs[row].name}:{pairs[row].line}"

        # The encoder reads the source, at so many positions for each token, and the decoder the target and its end.
        sizes, target_sizes = data.source.lengths, data.target.lengths
        warn_of_long(sizes, self.config, name=name, items="sources")
        at_once = limits.upsample is not None
        needed = sizes * (limits.upsample or 1) if at_once else np.maximum(sizes, target_sizes + 1)
        check_lengths(declared_positions(self.config.model.options), needed, location)

        # An answer has at most so many tokens, so that a longer target could never be written.
        limit = limits.max_target_length
        for row in np.flatnonzero(target_sizes > limit)[:1]:
            raise SizeError(
                f"{location(row)}: the target has {target_sizes[row]} tokens, model.options.max_target_length is "
                f"{limit}; raise it, or split the pair"
            )

        # CTC aligns each target token, and a blank between two equal ones, with a position of the source.
        if at_once:
            needed, positions = data.positions_needed(), sizes * (limits.upsample or 1)
            for row in np.flatnonzero(needed > positions)[:1]:
                raise SizeError(
                    f"{location(row)}: the target needs {needed[row]} positions, its source gives {positions[row]}; "
                    "raise model.options.upsample, or leave the pair out"
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

        # Training reads every row; in evaluation, rows of one source are alternatives, which changes every figure.
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


def fit_side(settings: TokenizerConfig, texts: Sequence[str]) -> Tokenizer:
    """Learn a tokenizer; characters are parts of letters where these generalise."""
    return fit_tokenizer(settings, texts, parts=settings.kind == "char" and parts_generalise(texts))


TokenKind: TypeAlias = str
KINDS: dict[Kind, TokenKind] = {"symbols": "word", "words": "char", "text": "bpe"}
"""The kind of token for each kind of text."""
MAX_PAIRS = 20_000
"""Number of pairs, evenly spread over the data, from which options are chosen."""
SAME_SYMBOLS = 0.9
"""Share of the different target tokens that must occur in sources, so that both sides have one vocabulary. For subwords
it is the share of all characters of the targets."""
MOSTLY = 0.6
"""Share of the target tokens that must occur in their own source, so that a pair with other tokens stays right."""
EPOCHS = {False: (10, 80), True: (6, 45)}
"""Bounds of the number of epochs, by whether the targets are symbols with marks; 1,000 pairs are read most often, and
10,000 pairs half as often."""
DROPOUT = ((5_000, 0.5), (20_000, 0.4), (100_000, 0.3))
LEAST_DROPOUT = {True: 0.2, False: 0.3}
BATCH_SIZES = {True: ((3_000, 16), (10_000, 32)), False: ((3_000, 16), (50_000, 32))}
"""Pairs up to which a value is taken, and the value; batch sizes, and the dropout of more pairs, by whether the targets
are running text."""
LEARNING_RATE = 0.002
"""Largest learning rate of a whole training if the targets are not running text; the rates of layers were measured for
a few hundred steps."""
COPIED = 0.3
"""Share of the target tokens that must occur in their own source, so that copying is worthwhile."""
SMOOTHING = 0.1
"""Label smoothing (C. Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016)."""
TRANSFORMER_PAIRS = ((200_000, 256), (10_000, 128))
"""Smallest numbers of pairs of running text for a Transformer by default, each with the width of the model."""
TRANSFORMER: JsonObject = {"layer": "transformer", "num_layers": 4, "tie_weights": True}
"""Fields of this model besides its width. Z. Wu et al., "Good for misconceived reasons", ACL 2021, for Multi30k."""
LARGER: Sequence[tuple[int, JsonObject]] = (
    (50_000, {"hidden_size": 512, "num_layers": 2}),
    (5_000, {"hidden_size": 384}),
)
"""Smallest numbers of other pairs for an LSTM that is larger than usual, each with its fields."""


class PairChoices(NamedTuple):
    """What the pairs suggest."""

    kind: TokenKind  # of the source tokens
    target_kind: TokenKind | None  # None if it is the same
    shared_vocabulary: bool
    copying: bool
    location: bool
    aligned: bool
    hallucination: float


def choose(
    kind: TokenKind | None, target_kind: TokenKind | None, sources: Sequence[str], targets: Sequence[str]
) -> PairChoices:
    """Return what some pairs suggest; kinds of tokens that are given stay."""
    count, step = len(sources), -(-len(sources) // MAX_PAIRS)
    sources, targets = sources[::step], targets[::step]

    # A kind that is given for the sources holds for the targets, too, unless they have their own.
    of_targets, of_sources = kind_of(targets), kind_of(sources)
    is_composed = of_targets == "symbols" and has_marks(targets)
    chosen = target_kind or kind or ("char" if is_composed else KINDS[of_targets])
    kind = kind or KINDS[of_sources]

    # Copying is worthwhile if many targets repeat tokens of their own source. One vocabulary is worthwhile if both
    # sides are written with the same symbols, wherever they occur; subwords are not known yet, so their characters
    # stand for them.
    left, right = ([split(kind)(text) for text in texts] for kind, texts in ((kind, sources), (chosen, targets)))
    copied = shared_fraction(left, right)
    known, written = ({token for text in side for token in text} for side in (left, right))
    is_alike = chosen == kind and of_sources == of_targets
    has_same = is_alike and len(known & written) >= SAME_SYMBOLS * len(written)
    if chosen == kind == "bpe":
        has_same = known_fraction(sources, targets) >= SAME_SYMBOLS
    return PairChoices(
        kind,
        None if chosen == kind else chosen,
        shared_vocabulary=has_same and target_kind is None,
        copying=copied >= COPIED,
        location=of_targets != "text",
        aligned=of_targets != "text" and len(written) <= MANY,
        hallucination=hallucination_rate(count) if copied >= MOSTLY and of_targets != "text" else 0.0,
    )


def choose_for_pairs(
    config: Config, target_kind: TokenKind | None, sources: Sequence[str], targets: Sequence[str]
) -> tuple[PairChoices, Config]:
    """Return what some pairs suggest, and the configuration with the kinds of tokens that are open filled in."""
    chosen = choose(config.tokenizer.kind, target_kind, sources, targets)
    tokenizer = config.tokenizer.model_copy(update={"kind": chosen.kind})
    config = config.model_copy(update={"tokenizer": tokenizer})
    return chosen, with_options(config, target_kind=chosen.target_kind, shared_vocabulary=chosen.shared_vocabulary)


def known_fraction(sources: Sequence[str], targets: Sequence[str]) -> float:
    """Return the fraction of the characters of some texts that also occur in others; white space does not count."""
    known = set("".join(sources))
    counts = Counter(character for text in targets for character in text if not character.isspace())
    return sum(count for character, count in counts.items() if character in known) / max(counts.total(), 1)


def default_model(sources: Sequence[str], targets: Sequence[str]) -> JsonObject:
    """Return the fields of the model that suits the pairs, where they differ from the usual defaults."""
    step = -(-len(sources) // MAX_PAIRS)
    if {kind_of(sources[::step]), kind_of(targets[::step])} != {"text"}:
        return next((fields for least, fields in LARGER if len(sources) >= least), {})
    width = next((width for least, width in TRANSFORMER_PAIRS if len(sources) >= least), None)
    return {} if width is None else {**TRANSFORMER, "embedding_size": width, "hidden_size": width}


def hallucination_rate(pairs: int) -> float:
    """Return the fraction of pairs that get invented stems: it helps with 1,000 pairs, and no longer with 10,000."""
    return next((rate for most, rate in ((2_000, 0.5), (5_000, 0.25)) if pairs <= most), 0.0)


def data_dependent_defaults(
    pairs: int, *, is_text: bool, is_composed: bool = False, rate: float, has_budget: bool
) -> JsonObject:
    """Return defaults for a training on so many pairs, by dotted name.

    ``is_text`` and ``is_composed`` say whether the targets are running text, or symbols with marks. ``rate`` is the
    usual learning rate of the layer, and ``has_budget`` says whether the user chose a budget. Little data is read more
    often and in smaller batches, with more dropout. Without a given budget, the learning rate falls to the end of a
    number of epochs, or of minutes if these end first.
    """
    least, most = EPOCHS[is_composed]
    fields: JsonObject = {
        "model.dropout": next((value for limit, value in DROPOUT if pairs <= limit), LEAST_DROPOUT[is_text]),
        "training.batch_size": next((size for limit, size in BATCH_SIZES[is_text] if pairs <= limit), 64),
    }
    if has_budget:
        return fields
    return {
        **fields,
        "training.epochs": max(least, min(most, round(most * (1000 / max(pairs, 1)) ** 0.3))),
        "training.minutes": 20.0 if pairs <= 20_000 and not is_text else 90.0,
        "training.learning_rate": rate if is_text or is_composed else min(rate, LEARNING_RATE),
        "training.average": 0.0 if is_composed else 0.998,
    }


def split(kind: TokenKind) -> Callable[[str], list[str]]:
    """Return the function that splits a text into characters, or else into words."""
    return list if kind in ("char", "byte") else str.split
