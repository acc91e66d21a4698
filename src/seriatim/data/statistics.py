"""What a text is like, before anything is trained on it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from .corpus import encode_corpus
from .encoding import measure
from .readers import Source
from .tokenizers import Tokenizer

SHOWN = 5


def count_text(sources: Sequence[Source], tokenizer: Tokenizer, *, unit: Literal["stream", "line"]) -> dict[str, Any]:
    """Reads a whole text and counts, also how much of it a tokenizer does not know.

    Raises:
        InputError: the first thing wrong, by file and line.
    """
    corpus = encode_corpus(sources, tokenizer, unit=unit)
    words: Counter[str] = Counter()
    longest = unfinished = 0
    for text, _ in measure(sources, unit=unit):
        words.update(text.split())
        first, *others = map(len, text.split("\n"))
        unfinished = (unfinished if unit == "stream" else 0) + first
        longest = max(longest, unfinished, *others)
        unfinished = others[-1] if others else unfinished
    return {
        "files": [source.name for source in sources],
        **vars(corpus.statistics),
        "distinct_words": len(words),
        "words_seen_once": sum(count == 1 for count in words.values()),
        "commonest_words": [word for word, _ in words.most_common(SHOWN)],
        "longest_line": longest,
    }
