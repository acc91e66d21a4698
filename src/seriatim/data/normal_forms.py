"""Unicode normal forms of texts: one letter can be written as one character or as several.

A letter such as é is one character in the composed form (NFC), and a base letter with a combining accent in the
decomposed form (NFD). They look the same, but to a tokenizer they are different words or characters.
"""

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import numpy as np

from .repairs import Repairs
from .tokenizers import Tokenizer
from .vocabulary import Vocabulary

Form = Literal["composed", "decomposed"]
REMEDY = "convert one of them, for instance with uconv -x any-nfc"


def form_of(text: str) -> Form | None:
    """Return the form of a text: decomposed if any letter of it is; None if both forms of it are the same."""
    if text.isascii():
        return None
    if not unicodedata.is_normalized("NFC", text):
        return "decomposed"
    return None if unicodedata.is_normalized("NFD", text) else "composed"


@functools.lru_cache(maxsize=4)
def forms_of(tokenizer: Tokenizer) -> frozenset[Form]:
    """Return the forms of the tokens of a tokenizer; an accent that begins a token follows its letter in a text."""
    tokens = (tokenizer.token_bytes(token).decode("utf-8", "ignore") for token in range(tokenizer.vocabulary_size))
    forms = ("decomposed" if unicodedata.combining(token[0]) else form_of(token) for token in tokens if token)
    return frozenset(form for form in forms if form is not None)


def is_known_otherwise(text: str, tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer knows words or characters of a text in another normal form only.

    A tokenizer of bytes knows all texts; it is asked whether all its tokens are in the other form.
    """
    form, unknown_id = form_of(text), tokenizer.unknown_id
    if form is None:
        return False
    if unknown_id is None:
        return bool(forms_of(tokenizer)) and form not in forms_of(tokenizer)

    def unknown(text: str) -> int:
        return int(np.count_nonzero(tokenizer.encode(text) == unknown_id))

    count = unknown(text)
    return count > 0 and any(unknown(unicodedata.normalize(other, text)) < count for other in ("NFC", "NFD"))


def note_other_form(
    text: str, name: str, line: int, *, target: bool = False, vocabulary: Vocabulary, repairs: Repairs
) -> None:
    """Note a text that has words in another normal form than the training data; see `seriatim.data.repairs.Examine`."""
    if is_known_otherwise(text, vocabulary.target if target else vocabulary.tokenizer):
        problem = "letters in another Unicode normal form than in the training data (é as one character or as two)"
        repairs.note("another normal form", name, line, problem=problem, remedy=REMEDY)


def note_different_sides(
    sources: Iterable[str], targets: Iterable[str], name: str, line: int, repairs: Repairs
) -> None:
    """Note pairs of which most sources are in one normal form, and most targets in another one."""
    forms = [Counter(form for form in map(form_of, side) if form).most_common(1) for side in (sources, targets)]
    if all(forms) and forms[0][0][0] != forms[1][0][0]:
        (source, _), (target, _) = (form[0] for form in forms)
        problem = f"the letters of the sources are {source}, and those of the targets {target} (Unicode normal forms)"
        repairs.note("normal forms of the sides", name, line, problem=problem, remedy=REMEDY)
