"""What a text is like, before anything is trained on it."""

from collections import Counter
from typing import Any

from ..config import Config
from ..errors import InputError
from .corpus import encode_corpus, fit_corpus_tokenizer, measure
from .readers import find_sources

SHOWN = 5


def check_data(config: Config) -> dict[str, Any]:
    """Reads every text that a configuration names, and counts.

    Returns:
        A part of the data (``train``, ``valid``, ``test``) to its counts; where there is held-out text, also how
        much of it the vocabulary of the training text does not know.

    Raises:
        InputError: the first thing wrong, by file and line.
    """
    specs = {part: getattr(config.data, part) for part in ("train", "valid", "test")}
    if specs["train"] is None:
        raise InputError("data.train: no text to check; give --data FILE")
    found = {
        part: find_sources(spec, file_format=config.data.format, split=part)
        for part, spec in specs.items()
        if spec is not None
    }
    tokenizer = fit_corpus_tokenizer(found["train"], config.tokenizer, unit=config.data.unit)
    report: dict[str, Any] = {"tokenizer": {"kind": tokenizer.kind, "vocabulary_size": tokenizer.vocabulary_size}}
    for part, sources in found.items():
        corpus = encode_corpus(sources, tokenizer, unit=config.data.unit)
        words: Counter[str] = Counter()
        longest = unfinished = 0
        for text, _ in measure(sources, unit=config.data.unit):
            words.update(text.split())
            first, *others = map(len, text.split("\n"))
            unfinished = (unfinished if config.data.unit == "stream" else 0) + first
            longest = max(longest, unfinished, *others)
            unfinished = others[-1] if others else unfinished
        report[part] = {
            "files": [source.name for source in sources],
            **vars(corpus.statistics),
            "distinct_words": len(words),
            "words_seen_once": sum(count == 1 for count in words.values()),
            "commonest_words": [word for word, _ in words.most_common(SHOWN)],
            "longest_line": longest,
        }
    return report
