"""The probability of lines, and the surprisal of their words, tokens or characters."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from ..config import Config
from ..core.errors import MalformedError, UnknownNameError, check_text, iterate_items
from ..counting.ngram import NGram
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.pairs import encode_side
from ..data.pipes import chunks
from ..data.tokenizers import END, Tokenizer
from ..evaluation.perplexity import WINDOW, sum_blocks, window_losses
from ..evaluation.pseudo_likelihood import pseudo_surprisals
from ..evaluation.word_surprisal import (
    UNITS,
    By,
    ReadLine,
    SurprisalReader,
    Surprisals,
    UnitSurprisal,
    spans_of,
    word_starts,
)
from ..layers.positions import learned_positions
from ..models import MaskedLanguageModel
from ..models.base_models import TextModel
from ..tasks.data_files import check_lengths, warn_of_long
from ..tasks.mlm import line_end

READ_TOGETHER = 64
"""Lines whose surprisals are computed together."""
Reader: TypeAlias = Callable[[Sequence[str], Sequence[np.ndarray]], list[Surprisals]]
"""Returns the surprisals of the tokens of lines, given these lines and the ids of their tokens."""


class LineScore(NamedTuple):
    """The probability of a text."""

    log_probability: float  # in nats
    tokens: int  # number of tokens that were predicted
    bytes: int  # size of the text in UTF-8


def score_lines(model: TextModel, tokenizer: Tokenizer, config: Config, lines: Iterable[str]) -> list[LineScore]:
    """Compute the probability of each line; see `Run.score`."""
    texts = list(iterate_items(lines, "score"))
    for number, text in enumerate(texts):
        check_text(text, f"score: item {number}")
    if not texts:
        return []
    if any("\n" in text for text in texts):
        raise MalformedError("score takes lines; one of them contains a line end, split it")

    # A line of a running text ends with its line end, and a line that is a text of its own with the boundary.
    end = tokenizer.encode_continued("\n") if config.data.unit == "stream" else np.array([END])
    side = encode_side(texts, tokenizer)
    sizes = side.lengths + len(end)

    # No n-gram crosses a boundary: with one before and after each line, all lines are looked up together.
    if isinstance(model, NGram):
        after = np.repeat(side.starts + side.lengths, len(end) + 1)
        ids = np.insert(side.ids, after, np.tile(np.append(end, END), len(sizes)))
        each = model.text_losses(np.append(END, ids))[1:]
        between = (sizes + 1).cumsum() - 1
        each[between] = 0.0
        return _line_scores(-np.add.reduceat(each, between - sizes), sizes, texts)

    check_lengths(learned_positions(model), sizes, lambda number: f"score: item {number}")
    warn_of_long(sizes, config, name="score", items="lines")
    ids = np.insert(side.ids, np.repeat(side.starts + side.lengths, len(end)), np.tile(end, len(sizes)))

    # Long lines are read in windows, between which the state is carried, so that memory is bounded.
    corpus = Corpus(ids.astype(np.int64), sizes.cumsum(), Statistics(), tokenizer=tokenizer)
    return _line_scores(-sum_blocks(corpus, window_losses(model, corpus, WINDOW))[0], sizes, texts)


def _line_scores(totals: np.ndarray, sizes: np.ndarray, texts: Sequence[str]) -> list[LineScore]:
    rows = zip(totals.tolist(), sizes.tolist(), texts, strict=True)
    return [LineScore(total, size, len(text.encode())) for total, size, text in rows]


def line_surprisals(
    model: TextModel | MaskedLanguageModel,
    tokenizer: Tokenizer,
    lines: Iterable[str],
    *,
    by: By,
    carry_context: bool,
    unit: str,
) -> Iterator[list[UnitSurprisal]]:
    """Yield the surprisals of each line; see `Run.surprisal`. ``unit`` is ``data.unit``."""
    if by not in UNITS:
        raise UnknownNameError(f"by: {by!r} is unknown; choose from {', '.join(UNITS)}")
    if isinstance(model, MaskedLanguageModel):
        read = masked_reader(model, tokenizer, by, unit)
    else:
        read = causal_reader(model, tokenizer, carries=carry_context)
    number, limit, around = 0, learned_positions(model), 2 if tokenizer.frames else 1
    for texts in chunks(iterate_items(lines, "surprisal"), READ_TOGETHER):
        # Where the context is carried, a line begins with the line end that divides it from the one before.
        segments = []
        for text in texts:
            check_text(text, f"surprisal: item {number}")
            if "\n" in text:
                raise MalformedError(f"surprisal: item {number} contains a line end; split it into lines")
            segments.append(f"\n{text}" if carry_context and number else text)
            number += 1

        # Only the first line of a carried text is encoded as a beginning.
        first = number - len(segments)
        ids = [
            tokenizer.encode_continued(segment) if carry_context and i else tokenizer.encode(segment)
            for i, segment in enumerate(segments, start=first)
        ]
        locations = [f"surprisal: item {i}" for i in range(first, number)]
        check_lengths(limit, [len(tokens) + around for tokens in ids], locations.__getitem__)
        for i, (segment, tokens, scores) in enumerate(
            zip(segments, ids, read(segments, ids), strict=True), start=first
        ):
            line = ReadLine(segment, tokens, scores, is_first=not carry_context or i == 0)
            yield list(line.units(by, tokenizer))


def causal_reader(model: TextModel, tokenizer: Tokenizer, *, carries: bool) -> Reader:
    """Return a function that computes surprisals of lines, or of the segments of one text."""
    reader = SurprisalReader(model, word_starts(tokenizer), begin=tokenizer.begin, carries=carries)
    return lambda _, ids: reader.read(ids)


def masked_reader(model: MaskedLanguageModel, tokenizer: Tokenizer, by: By, unit: str) -> Reader:
    """Return a function that computes pseudo-surprisals of lines."""
    end = line_end(tokenizer, unit)

    def read(texts: Sequence[str], ids: Sequence[np.ndarray]) -> list[Surprisals]:
        stops = [np.arange(1, len(tokens) + 1) for tokens in ids]  # a token of no unit is one of its own
        for text, tokens, stop in zip(texts, ids, stops, strict=True):
            for span in spans_of(text, tokens, by, tokenizer):
                stop[span.first : span.last] = span.last
        return pseudo_surprisals(model, ids, stops, end)

    return read
