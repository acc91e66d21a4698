"""Rules that rewrite a source: changes of its beginning and its end, by the features that the source names.

R. Cotterell et al., "CoNLL-SIGMORPHON 2017 shared task: universal morphological reinflection in 52 languages", CoNLL
2017, section 5 (the baseline). From every pair of the training data, such as s c h i e l e n and g e s c h i e l t:

1. Source and target are aligned by edit distance.
2. The columns before the first and after the last aligned token are the changes of the beginning and of the end.
3. Rules rewrite the end: e n → t, l e n → l t, e l e n → e l t, ...; and the beginning: nothing → g e, s → g e s, ...
   They are counted for each set of features.

For a new source, the rule with the longest matching end is applied, then the most frequent rule whose beginning
matches. If the beginnings of the training data change more than their ends, all sequences are read from right to left.

The paper says nothing about a set of features that training did not have; here, the rules of the set with the most
features in common are used.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

Tokens: TypeAlias = tuple[str, ...]
Column: TypeAlias = tuple[str | None, str | None]
"""A token of the source and one of the target; None where the other one was inserted or deleted."""
Rules: TypeAlias = dict[Tokens, Counter[Tokens]]
"""How often some tokens were rewritten as others."""


class RewritingExample(NamedTuple):
    """A source without its features, its features in alphabetical order, and its target."""

    source: Tokens
    features: Tokens
    target: Tokens


class Features(NamedTuple):
    """The tokens of sources that are no part of what is rewritten: names of what the target shall be."""

    first: frozenset[str] = frozenset()  # at the beginning of sources
    last: frozenset[str] = frozenset()  # at their end

    @classmethod
    def find(cls, pairs: Sequence[tuple[Tokens, Tokens]]) -> "Features":
        """Find the tokens that begin or end most sources and occur in no target."""
        targets = {token for _, target in pairs for token in target}
        sides = []
        for step in (1, -1):
            runs = [
                list(itertools.takewhile(lambda token: token not in targets, source[::step])) for source, _ in pairs
            ]
            is_usual = sum(map(bool, runs)) > len(runs) / 2
            sides.append(frozenset(token for run in runs for token in run if is_usual))
        return cls(*sides)

    def split(self, source: Tokens) -> tuple[Tokens, Tokens]:
        """Return a source without its features, and its features in alphabetical order.

        A source that consists of features becomes empty.
        """
        start, stop = 0, len(source)
        while start < stop and source[start] in self.first:
            start += 1
        while stop > start and source[stop - 1] in self.last:
            stop -= 1
        return source[start:stop], tuple(sorted(source[:start] + source[stop:]))


class Rewriter:
    """Rules by set of features.

    Attributes:
        beginnings: rules for the beginnings of sources.
        ends: rules for their ends, for the same features.
        backwards: whether the rules are for sequences that are read from right to left.
    """

    def __init__(self, beginnings: dict[Tokens, Rules], ends: dict[Tokens, Rules], *, backwards: bool) -> None:
        self.beginnings, self.ends, self.backwards = beginnings, ends, backwards

    @classmethod
    def fit(cls, examples: Iterable[RewritingExample]) -> "Rewriter":
        """Count the rules of some examples."""
        aligned = [(example.features, align(example.source, example.target)) for example in examples]
        margins = [margins_of(columns) for _, columns in aligned]
        rewriter = cls({}, {}, backwards=sum(first for first, _ in margins) > sum(last for _, last in margins))
        for features, columns in aligned:
            rewriter._learn(features, columns[::-1] if rewriter.backwards else columns)
        return rewriter

    def _learn(self, features: Tokens, columns: Sequence[Column]) -> None:
        """Count the rules of one aligned pair."""
        first, last = margins_of(columns)
        ends = self.ends.setdefault(features, {})
        for start in range(first, len(columns) + 1):
            ends.setdefault(sources_of(columns[start:]), Counter())[targets_of(columns[start:])] += 1
        old, new = sources_of(columns[:first]), targets_of(columns[:first])
        stem = targets_of(columns[first : len(columns) - last])  # the end is rewritten before the beginning
        beginnings = self.beginnings.setdefault(features, {})
        for size in range(max(len(stem), 1)):
            beginnings.setdefault(old + stem[:size], Counter())[new + stem[:size]] += 1

    def rewrite(self, source: Tokens, features: Tokens) -> Tokens:
        """Return the target for a source; it is the source itself if there are no rules."""
        if not self.ends:
            return source
        known = self._nearest(features)
        target = source[::-1] if self.backwards else source
        target = with_beginning(with_end(target, self.ends[known]), self.beginnings[known])
        return target[::-1] if self.backwards else target

    def _nearest(self, features: Tokens) -> Tokens:
        """Return the features themselves if there are rules for them, else the known ones with the most in common."""
        if features in self.ends:
            return features
        wanted = set(features)
        return max(sorted(self.ends), key=lambda known: len(wanted & set(known)) / max(len(wanted | set(known)), 1))


def with_end(tokens: Tokens, rules: Rules) -> Tokens:
    """Rewrite the longest end of ``tokens`` for which there is a rule, in the most frequent way."""
    for start in range(len(tokens) + 1):
        if choices := rules.get(tokens[start:]):
            return tokens[:start] + _most_frequent(choices)[0]
    return tokens


def with_beginning(tokens: Tokens, rules: Rules) -> Tokens:
    """Apply the most frequent rule for a beginning of ``tokens``, the longest of equally frequent ones."""
    fitting = [
        (size, *_most_frequent(rules[tokens[:size]])) for size in range(len(tokens) + 1) if tokens[:size] in rules
    ]
    if not fitting:
        return tokens
    size, beginning, _ = max(fitting, key=lambda rule: (rule[2], rule[0]))
    return beginning + tokens[size:]


def _most_frequent(choices: Counter[Tokens]) -> tuple[Tokens, int]:
    """Return the choice with the highest count, the longest of these, and its count."""
    best = max(choices, key=lambda tokens: (choices[tokens], len(tokens), tokens))
    return best, choices[best]


def align(source: Sequence[str], target: Sequence[str]) -> list[Column]:
    """Return the alignment of two sequences with the fewest insertions, deletions and substitutions."""
    costs = [list(range(len(target) + 1))]
    for i, token in enumerate(source, 1):
        above, row = costs[-1], [i]
        for j, other in enumerate(target, 1):
            row.append(min(above[j - 1] + (token != other), above[j] + 1, row[-1] + 1))
        costs.append(row)
    columns: list[Column] = []
    i, j = len(source), len(target)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (source[i - 1] != target[j - 1]):
            i, j = i - 1, j - 1
            columns.append((source[i], target[j]))
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            i -= 1
            columns.append((source[i], None))
        else:
            j -= 1
            columns.append((None, target[j]))
    return columns[::-1]


def margins_of(columns: Sequence[Column]) -> tuple[int, int]:
    """Return how many columns are inserted or deleted at the beginning, and how many at the end."""
    pairs = [index for index, column in enumerate(columns) if None not in column]
    return (pairs[0], len(columns) - 1 - pairs[-1]) if pairs else (len(columns), 0)


def sources_of(columns: Iterable[Column]) -> Tokens:
    """Return the source tokens of some columns."""
    return tuple(source for source, _ in columns if source is not None)


def targets_of(columns: Iterable[Column]) -> Tokens:
    """Return the target tokens of some columns."""
    return tuple(target for _, target in columns if target is not None)
