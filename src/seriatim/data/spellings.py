"""Spellings of labels and tags that mean the same.

They differ in blanks at their ends, by a slip in letter case, or in their Unicode normal form (é is one character or
two).
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from ..core.errors import shown

OFTEN, SHARE = 5, 10
"""Two spellings are two labels if the rarer one has `OFTEN` rows, or more than one of `SHARE` rows of both."""
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

        Those differ in letter case and have `OFTEN` rows, or more than one of `SHARE` rows of both. Of equally frequent
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
            often = (label for label, count in group.items() if count >= OFTEN or SHARE * count > count + most)
            kept += (forms[label].most_common(1)[0][0] for label in often)
        return cls(kept)

    def __call__(self, label: str) -> str:
        """Return the label for which a spelling stands: the most similar one, and itself if there are several."""
        if label not in self._known:
            alike = self._alike.get(folded(label), [])
            differing = [_differing(canonical(label), canonical(other)) for other in alike]
            nearest = [other for other, count in zip(alike, differing, strict=True) if count == min(differing)]
            self._known[label] = nearest[0] if len(nearest) == 1 else label
        return self._known[label]


def _differing(first: str, second: str) -> int:
    """Return in how many characters two spellings differ."""
    return sum(a != b for a, b in zip_longest(first, second))
