"""Spellings that mean the same: of labels and tags, and of letters in two Unicode normal forms.

Labels differ in blanks at their ends, by a slip in letter case, or in their normal form. A letter such as é is one
character in the composed form (NFC), and a base letter with a combining accent in the decomposed form (NFD). They look
the same, but to a tokenizer they are different words or characters.
"""

import functools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Literal

import numpy as np

from ..core.errors import shown
from .repairs import Repairs
from .tokenizers import Tokenizer
from .vocabulary import Vocabulary

OFTEN, RARE = 5, 10
"""Two spellings are two labels if the rarer one has `OFTEN` rows, or more than one of `RARE` rows of both."""
BLANKS = " \t\u00a0\u2007\u202f\u3000\u200b\u2060\ufeff"
"""Blanks that can stand at the ends of a field without being seen: non-breaking, wide and zero-width ones, too."""


def stripped(text: str) -> str:
    """Return a text without `BLANKS` at its ends; a text of nothing else is a text of its own, and is unchanged."""
    return text.strip(BLANKS) or text


def folded(label: str) -> str:
    """Return what all spellings of a label have in common."""
    return canonical(label).casefold()


def canonical(label: str) -> str:
    """Return what the spellings of a label have in common that look the same."""
    return unicodedata.normalize("NFC", stripped(label))


def other_spelling(label: str, usual: str) -> str:
    """Say that a label is another spelling of the usual one, also where both look the same."""
    differs = canonical(label) == canonical(usual) and stripped(label) != stripped(usual)
    return f"{shown(label)} is another spelling of {shown(usual)}" + " (Unicode normal forms)" * differs


class LabelSpellings:
    """Maps each spelling of a label to the one that stands for it; other labels are unchanged.

    Args:
        labels: those that stand for their other spellings, and are never changed.
        exact: whether no label is changed.
    """

    def __init__(self, labels: Iterable[str], *, exact: bool = False) -> None:
        self.exact = frozenset(labels)
        self._known: dict[str, str] = {label: label for label in self.exact}  # answers given before
        self._alike: dict[str, list[str]] = defaultdict(list)  # labels by what their spellings have in common
        for label in () if exact else sorted(self.exact):
            self._alike[folded(label)].append(label)

    @classmethod
    def learned(cls, counts: Mapping[str, int]) -> "LabelSpellings":
        """Let the most frequent spelling stand for the others, but for those that are too frequent to be slips.

        Those differ in letter case and have `OFTEN` rows, or more than one of `RARE` rows of both. Of equally frequent
        normal forms of a label, the composed one (NFC) stands for the others.

        Args:
            counts: how often each spelling occurs in the training data.
        """
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        forms: dict[str, Counter[str]] = defaultdict(Counter)  # what is written for labels that look the same
        for label in sorted(counts, key=lambda label: (stripped(label) != canonical(label), label)):
            groups[folded(label)][canonical(label)] += counts[label]
            forms[canonical(label)][stripped(label)] += counts[label]
        kept = list[str]()
        for group in groups.values():
            _, most = group.most_common(1)[0]
            often = (label for label, count in group.items() if count >= OFTEN or RARE * count > count + most)
            kept += (forms[label].most_common(1)[0][0] for label in often)
        return cls(kept)

    def __call__(self, label: str) -> str:
        """Return the label for which a spelling stands: the most similar one, and itself if there are several."""
        if label not in self._known:
            alike = self._alike.get(folded(label), [])
            pairs = [zip_longest(canonical(label), canonical(other)) for other in alike]
            differing = [sum(a != b for a, b in pair) for pair in pairs]
            nearest = [other for other, count in zip(alike, differing, strict=True) if count == min(differing)]
            self._known[label] = nearest[0] if len(nearest) == 1 else label
        return self._known[label]


# Normal forms of texts


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
