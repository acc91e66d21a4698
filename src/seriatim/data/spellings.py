"""Spellings of labels and tags that mean the same: they differ in letter case, or in blanks at their ends, only."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

BLANKS = " \t\u00a0\u2007\u202f\u3000\u200b\u2060\ufeff"
"""Blanks that can stand at the ends of a field without being seen: non-breaking, wide and zero-width ones, too."""


def stripped(text: str) -> str:
    """Return a text without `BLANKS` at its ends; a text of nothing else is a text of its own, and is unchanged."""
    return text.strip(BLANKS) or text


def folded(label: str) -> str:
    """Return what all spellings of a label have in common."""
    return stripped(label).casefold()


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
        """Let the most frequent spelling stand for the others, or the first in sorted order of equally frequent ones.

        Args:
            counts: how often each spelling occurs in the training data.
        """
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        for label in sorted(counts):
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
