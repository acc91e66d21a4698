"""The surprisal of the words, tokens or characters of lines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from ..core.errors import InputError
from ..data.arguments import check_text, iterate_items
from ..data.pipes import chunks
from ..data.tokenizers import Tokenizer
from ..evaluation.pseudo_likelihood import pseudo_surprisals
from ..evaluation.surprisal_reader import SurprisalReader, Surprisals
from ..evaluation.word_surprisal import UNITS, By, ReadLine, UnitSurprisal, spans_of, word_starts
from ..layers.positions import check_lengths, learned_positions
from ..models import MaskedLanguageModel
from ..models.base_models import TextModel
from ..tasks.mlm import line_end

LINES_TOGETHER = 64
Reader: TypeAlias = Callable[[Sequence[str], Sequence[np.ndarray]], list[Surprisals]]
"""Returns the surprisals of the tokens of lines, given these lines and the ids of their tokens."""


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
        raise InputError(f"by: must be one of {', '.join(UNITS)}; got {by!r}")
    if isinstance(model, MaskedLanguageModel):
        read = masked_reader(model, tokenizer, by, unit)
    else:
        read = causal_reader(model, tokenizer, carries=carry_context)
    number, limit, around = 0, learned_positions(model), 2 if tokenizer.frames else 1
    for texts in chunks(iterate_items(lines, "surprisal"), LINES_TOGETHER):
        parts = []
        for text in texts:
            check_text(text, f"surprisal: item {number}")
            if "\n" in text:
                raise InputError(f"surprisal: item {number} contains a line end; split it into lines")
            parts.append(f"\n{text}" if carry_context and number else text)
            number += 1
        first = number - len(parts)
        ids = [
            tokenizer.encode_continued(part) if carry_context and i else tokenizer.encode(part)
            for i, part in enumerate(parts, start=first)
        ]
        places = [f"surprisal: item {i}" for i in range(first, number)]
        check_lengths(limit, [len(tokens) + around for tokens in ids], places.__getitem__)
        for i, (part, tokens, scores) in enumerate(zip(parts, ids, read(parts, ids), strict=True), start=first):
            line = ReadLine(part, tokens, scores, is_first=not carry_context or i == 0)
            yield list(line.units(by, tokenizer))


def causal_reader(model: TextModel, tokenizer: Tokenizer, *, carries: bool) -> Reader:
    """Return a function that computes surprisals of lines, or of the parts of one text."""
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
