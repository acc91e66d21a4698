"""Options of sequence to sequence that are chosen from the pairs: the kinds of tokens, and what the two sides share."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..config import Config, Fields
from ..data.text_kinds import Kind, kind_of, shared_share
from .defaults import with_options

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
EPOCHS = (10, 80)
"""Bounds of the number of epochs; 1,000 pairs are read 80 times, 10,000 pairs 40 times."""
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
SMOOTHING, SMOOTHED_PAIRS = 0.1, 50_000
"""Label smoothing if the targets are running text, or if there are so many pairs or more."""
TRANSFORMER_PAIRS = ((200_000, 256), (10_000, 128))
"""Smallest numbers of pairs of running text for a Transformer by default, each with the width of the model."""
TRANSFORMER: Fields = {"layer": "transformer", "num_layers": 4, "tie_weights": True}
"""Fields of this model besides its width. Z. Wu et al., "Good for misconceived reasons", ACL 2021, for Multi30k."""
LARGER: Sequence[tuple[int, Fields]] = ((50_000, {"hidden_size": 512, "num_layers": 2}), (5_000, {"hidden_size": 384}))
"""Smallest numbers of other pairs for an LSTM that is larger than usual, each with its fields."""


class PairChoices(NamedTuple):
    """What the pairs suggest."""

    kind: TokenKind  # of the source tokens
    target_kind: TokenKind | None  # None if it is the same
    shared_vocabulary: bool
    copying: bool
    location: bool
    hallucination: float
    label_smoothing: float


def choose(
    kind: TokenKind | None, target_kind: TokenKind | None, sources: Sequence[str], targets: Sequence[str]
) -> PairChoices:
    """Return what some pairs suggest; kinds of tokens that are given stay."""
    count, step = len(sources), -(-len(sources) // MAX_PAIRS)
    sources, targets = sources[::step], targets[::step]
    of_targets = kind_of(targets)
    if kind is None:
        kind, chosen = KINDS[kind_of(sources)], target_kind or KINDS[of_targets]
    else:
        chosen = target_kind or kind
    left, right = ([split(kind)(text) for text in texts] for kind, texts in ((kind, sources), (chosen, targets)))
    share = shared_share(left, right)
    known, written = ({token for text in side for token in text} for side in (left, right))
    has_same = chosen == kind and len(known & written) >= SAME_SYMBOLS * len(written)
    if chosen == kind == "bpe":
        has_same = known_share(sources, targets) >= SAME_SYMBOLS
    return PairChoices(
        kind,
        None if chosen == kind else chosen,
        shared_vocabulary=has_same and target_kind is None,
        copying=share >= COPIED,
        location=of_targets != "text",
        hallucination=hallucination_rate(count) if share >= MOSTLY and of_targets != "text" else 0.0,
        label_smoothing=SMOOTHING if of_targets == "text" or count >= SMOOTHED_PAIRS else 0.0,
    )


def choose_for_pairs(
    config: Config, target_kind: TokenKind | None, sources: Sequence[str], targets: Sequence[str]
) -> tuple[PairChoices, Config]:
    """Return what some pairs suggest, and the configuration with the kinds of tokens that are open filled in."""
    chosen = choose(config.tokenizer.kind, target_kind, sources, targets)
    tokenizer = config.tokenizer.model_copy(update={"kind": chosen.kind})
    config = config.model_copy(update={"tokenizer": tokenizer})
    return chosen, with_options(config, target_kind=chosen.target_kind, shared_vocabulary=chosen.shared_vocabulary)


def known_share(sources: Sequence[str], targets: Sequence[str]) -> float:
    """Return the share of the characters of some texts that also occur in others; white space does not count."""
    known = set("".join(sources))
    counts = Counter(character for text in targets for character in text if not character.isspace())
    return sum(count for character, count in counts.items() if character in known) / max(counts.total(), 1)


def default_model(sources: Sequence[str], targets: Sequence[str]) -> Fields:
    """Return the fields of the model that suits the pairs, where they differ from the usual defaults."""
    step = -(-len(sources) // MAX_PAIRS)
    if {kind_of(sources[::step]), kind_of(targets[::step])} != {"text"}:
        return next((fields for least, fields in LARGER if len(sources) >= least), {})
    width = next((width for least, width in TRANSFORMER_PAIRS if len(sources) >= least), None)
    return {} if width is None else {**TRANSFORMER, "embedding_size": width, "hidden_size": width}


def hallucination_rate(pairs: int) -> float:
    """Return the share of the pairs that get invented stems: it helps with 1,000 pairs, and no longer with 10,000."""
    return next((rate for most, rate in ((2_000, 0.5), (5_000, 0.25)) if pairs <= most), 0.0)


def recipe(pairs: int, *, is_text: bool, rate: float, has_budget: bool) -> Fields:
    """Return defaults for a training on so many pairs, by dotted name.

    ``rate`` is the usual learning rate of the layer, and ``has_budget`` says whether the user chose a budget. Little
    data is read more often and in smaller batches, with more dropout. Without a given budget, the learning rate falls
    to the end of a number of epochs, or of minutes if these end first.
    """
    fields: Fields = {
        "model.dropout": next((value for limit, value in DROPOUT if pairs <= limit), LEAST_DROPOUT[is_text]),
        "training.batch_size": next((size for limit, size in BATCH_SIZES[is_text] if pairs <= limit), 64),
    }
    if has_budget:
        return fields
    least, most = EPOCHS
    return {
        **fields,
        "training.epochs": max(least, min(most, round(most * (1000 / max(pairs, 1)) ** 0.3))),
        "training.minutes": 20.0 if pairs <= 20_000 and not is_text else 90.0,
        "training.learning_rate": rate if is_text else min(rate, LEARNING_RATE),
        "training.average": 0.998,
    }


def split(kind: TokenKind) -> Callable[[str], list[str]]:
    """Return the function that splits a text into characters, or else into words."""
    return list if kind in ("char", "byte") else str.split
