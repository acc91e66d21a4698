"""Spellings of labels and tags that mean the same.

They differ in letter case, in blanks at their ends, or in their Unicode normal form only: é is one character or two.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from ..core.errors import shown

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


class Spellings:
    """Maps each spelling of a label to the one that stands for it; other labels are unchanged.

    Args:
        best: the spelling that stands for a label, by the `folded` label.
        exact: labels that are never changed.
    """

    def __init__(self, best: Mapping[str, str], exact: Collection[str] = ()) -> None:
        self.exact, self._best = frozenset(exact), best
        self._known: dict[str, str] = {label: label for label in exact}  # answers given before

    @classmethod
    def learned(cls, counts: Mapping[str, int]) -> "Spellings":
        """Let the most frequent spelling stand for the others.

        Of equally frequent ones it is a composed one (NFC), and the first in sorted order.

        Args:
            counts: how often each spelling occurs in the training data.
        """
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        for label in sorted(counts, key=lambda label: (stripped(label) != canonical(label), label)):
            groups[folded(label)][stripped(label)] += counts[label]
        return cls({key: group.most_common(1)[0][0] for key, group in groups.items()})

    @classmethod
    def known(cls, labels: Iterable[str]) -> "Spellings":
        """Let the labels of a vocabulary stand for their other spellings, unless several differ in spelling only."""
        labels = list(labels)
        groups: dict[str, list[str]] = defaultdict(list)
        for label in labels:
            groups[folded(label)].append(label)
        return cls({key: group[0] for key, group in groups.items() if len(group) == 1}, labels)

    def __call__(self, label: str) -> str:
        """Return the spelling that stands for a label."""
        if label not in self._known:
            self._known[label] = self._best.get(folded(label), label)
        return self._known[label]
