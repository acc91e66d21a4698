"""The surprisal of the words, tokens or characters of lines."""

from collections.abc import Iterable, Iterator

from ..core.errors import InputError
from ..data.arguments import check_text, iterate_items
from ..data.pipes import chunks
from ..data.tokenizers import Tokenizer
from ..evaluation.surprisal_reader import SurprisalReader
from ..evaluation.word_surprisal import UNITS, By, Line, UnitSurprisal, word_starts
from ..layers.positions import check_lengths, learned_positions
from ..models.base_models import TextModel

LINES_TOGETHER = 64


def line_surprisals(
    model: TextModel, tokenizer: Tokenizer, lines: Iterable[str], *, by: By, carry_context: bool
) -> Iterator[list[UnitSurprisal]]:
    """Yield the surprisals of each line; see `Run.surprisal`."""
    if by not in UNITS:
        raise InputError(f"by: must be one of {', '.join(UNITS)}; got {by!r}")
    reader = SurprisalReader(model, word_starts(tokenizer), begin=tokenizer.begin, carries=carry_context)
    number, limit = 0, learned_positions(model)
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
        check_lengths(limit, [len(tokens) + 1 for tokens in ids], places.__getitem__)
        for i, (part, tokens, scores) in enumerate(zip(parts, ids, reader.read(ids), strict=True), start=first):
            line = Line(part, tokens, scores, is_first=not carry_context or i == 0)
            yield list(line.units(by, tokenizer))
