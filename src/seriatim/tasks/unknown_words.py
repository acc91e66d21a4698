"""The words of a text that its tokens hold as unknown, so that a reader sees the text itself."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..data.tokenizers import Tokenizer
from ..evaluation.token_scores import token_text


def unknown_words(tokenizer: Tokenizer, texts: Iterable[str], ids: Sequence[int] | np.ndarray) -> dict[int, str]:
    """Return the words that the tokens ``ids`` hold as unknown, by their place; empty if they cannot be told.

    The ids are those of the texts, one after another, or the first of them; only as many texts are read as are needed.
    """
    if tokenizer.kind != "word" or tokenizer.unknown_id is None:
        return {}
    name = tokenizer.describe(tokenizer.unknown_id)  # may be a word of the text itself

    def read_as_unknown(text: str) -> list[str]:
        missing = {*tokenizer.unknown_pieces(text), name}
        return [word for word in tokenizer.prepare(text).split() if word in missing]

    places = [place for place, token in enumerate(ids) if token == tokenizer.unknown_id]
    words = list(itertools.islice(itertools.chain.from_iterable(map(read_as_unknown, texts)), len(places)))
    return dict(zip(places, words, strict=True)) if len(words) == len(places) else {}


def decode(tokenizer: Tokenizer, ids: np.ndarray, places: Sequence[int], words: Mapping[int, str]) -> str:
    """Return the text of the tokens at some places, with the ``words`` that `unknown_words` returns."""
    if not any(place in words for place in places):
        return tokenizer.decode(ids[places].tolist())
    pieces = (f"{words[i]} " if i in words else token_text(tokenizer, int(ids[i])) for i in places)
    return "".join(pieces).strip()
