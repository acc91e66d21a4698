"""Translators of counted rules, whose parameters are the counts: rules that rewrite a source, or a lexicon.

**Rewriting** changes the beginning and the end of a source, by the features that the source names: R. Cotterell et al.,
"CoNLL-SIGMORPHON 2017 shared task: universal morphological reinflection in 52 languages", CoNLL 2017, section 5 (the
baseline). From every pair of the training data, such as s c h i e l e n and g e s c h i e l t:

1. Source and target are aligned by edit distance.
2. The columns before the first and after the last aligned token are the changes of the beginning and of the end.
3. Rules rewrite the end: e n → t, l e n → l t, e l e n → e l t, ...; and the beginning: nothing → g e, s → g e s, ...
   They are counted for each set of features.

For a new source, the rule with the longest matching end is applied, then the most frequent rule whose beginning
matches. If the beginnings of the training data change more than their ends, all sequences are read from right to left.
The paper says nothing about a set of features that training did not have; here, the rules of the set with the most
features in common are used.

**The lexicon** has the most frequent translation of every source token: P. Brown, S. Della Pietra, V. Della Pietra and
R. Mercer, "The mathematics of statistical machine translation", Computational Linguistics 19 (1993), model 1, without
the empty word:

    P(link of f_j to e_i) = t(f_j | e_i) / Σ_k t(f_j | e_k),   t(f | e) = expected fraction of f in the links of e

e source tokens · f target tokens. After a few steps of expectation maximization from uniform t, every target token is
linked to the source token with the largest t, the nearest in relative position of equal ones. The translation of a
source token is the most frequent sequence of target tokens that are linked to it, which may be empty.
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

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
    # Costs of the beginnings of both sequences, and then back from their ends; of equal ways, a substitution is
    # preferred, then a deletion, so that the alignment does not depend on chance.
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


STEPS = 8
"""Steps of expectation maximization."""
MAX_LINKS = 20_000_000
"""Largest number of possible links, of which each takes about 40 bytes; only the first pairs are used beyond it."""


class Lexicon:
    """Translations of source tokens, and how often each was seen; a token without a translation is repeated."""

    def __init__(self, translations: dict[str, Tokens], counts: Mapping[str, int] | None = None) -> None:
        self.translations, self.counts = translations, counts or {}

    @classmethod
    def fit(cls, pairs: Sequence[tuple[Tokens, Tokens]]) -> "Lexicon":
        """Learn the translations from sources and their targets."""
        counts: defaultdict[str, Counter[Tokens]] = defaultdict(Counter)
        pairs = _affordable(pairs)
        for (source, target), links in zip(pairs, link(pairs), strict=True):
            for i, token in enumerate(source):
                counts[token][tuple(target[j] for j in np.flatnonzero(links == i).tolist())] += 1
        best = {token: max(ways, key=lambda way: (ways[way], way)) for token, ways in counts.items()}
        return cls(best, {token: counts[token][way] for token, way in best.items()})

    def translate(self, source: Sequence[str]) -> Tokens:
        """Return the translations of some tokens, one after another."""
        return tuple(word for token in source for word in self.translations.get(token, (token,)))


def link(pairs: Sequence[tuple[Tokens, Tokens]]) -> list[np.ndarray]:
    """Return for each pair the index of the source token to which each target token is linked, −1 without a source."""
    sources, targets = (_numbered([pair[side] for pair in pairs]) for side in (0, 1))
    width = max((int(ids.max()) + 1 for ids in targets if len(ids)), default=1)

    # Every possible link of the corpus is one number, that of its kind (a source token with a target token), so that a
    # step of expectation maximization is a few sums over arrays.
    keys = [(s[:, None] * width + t).ravel() for s, t in zip(sources, targets, strict=True)]  # one key for each link
    kinds, links = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
    chances = _chances(kinds // width, links, _target_positions(sources, targets))
    chosen, start = [], 0
    for s, t in zip(sources, targets, strict=True):
        block = chances[links[start : start + len(s) * len(t)]].reshape(len(s), len(t))
        start += len(s) * len(t)
        if not len(s):
            chosen.append(np.full(len(t), -1))
            continue
        distance = np.abs(np.arange(len(s))[:, None] / len(s) - np.arange(len(t)) / max(len(t), 1))
        is_best = block >= block.max(0) * (1 - 1e-9)
        chosen.append(np.where(is_best, distance, np.inf).argmin(0))
    return chosen


def _chances(source_of: np.ndarray, links: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return t of every kind of link ``(kinds,)``.

    ``source_of`` is the source token of each kind, ``links`` the kind of each possible link, and ``positions`` the
    position in the corpus of the target token that the link belongs to.
    """
    chances = np.ones(len(source_of))
    for _ in range(STEPS if len(links) else 0):
        weights = chances[links]
        weights /= np.bincount(positions, weights)[positions]
        expected = np.bincount(links, weights, minlength=len(source_of))
        chances = expected / np.bincount(source_of, expected)[source_of]
    return chances


def _target_positions(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> np.ndarray:
    """Return for each possible link the position of its target token in the corpus."""
    positions, first = [np.zeros(0, np.int64)], 0
    for s, t in zip(sources, targets, strict=True):
        positions.append(np.tile(np.arange(first, first + len(t)), len(s)))
        first += len(t)
    return np.concatenate(positions)


def _numbered(texts: Sequence[Tokens]) -> list[np.ndarray]:
    """Return the tokens of each text as numbers."""
    numbers: defaultdict[str, int] = defaultdict(None)
    numbers.default_factory = numbers.__len__
    return [np.array([numbers[token] for token in text], dtype=np.int64) for text in texts]


def _affordable(pairs: Sequence[tuple[Tokens, Tokens]]) -> Sequence[tuple[Tokens, Tokens]]:
    """Return the first pairs, which have at most `MAX_LINKS` possible links."""
    sizes = np.cumsum([len(source) * len(target) for source, target in pairs])
    return pairs[: int(np.searchsorted(sizes, MAX_LINKS, side="right"))]


Kind: TypeAlias = Literal["rewriting", "lexicon"]
KINDS: tuple[Kind, ...] = ("rewriting", "lexicon")
SEPARATOR = "\n"
"""Joins tokens in a file; no token of a line contains it."""


class TranslationRule(NamedTuple):
    """A rule: where it applies, to sources with which features, and what becomes of which tokens."""

    anchor: str  # beginning, end, or token (of a lexicon)
    features: Tokens
    old: Tokens
    new: Tokens


class RuleTranslator(nn.Module):
    """Answers sources with the targets that rules, or a lexicon, give.

    ``tokens`` says what the tokens of sources and of targets are: `word` or `char`.
    """

    def __init__(
        self,
        rules: Mapping[TranslationRule, int],
        features: Features,
        *,
        kind: Kind,
        backwards: bool = False,
        tokens: tuple[str, str] = ("word", "word"),
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.listed, self.features, self.kind, self.backwards = list(rules), features, kind, backwards
        self.counts = nn.Parameter(torch.tensor(list(rules.values()), dtype=torch.int64), requires_grad=False)
        if kind == "lexicon":
            self.rules: Rewriter | Lexicon = Lexicon({rule.old[0]: rule.new for rule in rules})
        else:
            self.rules = rewriter_of(rules, backwards=backwards)

    @classmethod
    def fit(
        cls, pairs: Sequence[tuple[Tokens, Tokens]], kind: Kind, tokens: tuple[str, str] = ("word", "word")
    ) -> "RuleTranslator":
        """Learn from sources and their targets."""
        if kind == "lexicon":
            lexicon = Lexicon.fit(pairs)
            rules = {
                TranslationRule("token", (), (old,), new): lexicon.counts[old]
                for old, new in lexicon.translations.items()
            }
            return cls(rules, Features(), kind=kind, tokens=tokens)
        features = Features.find(pairs)
        rewriter = Rewriter.fit(RewritingExample(*features.split(source), target) for source, target in pairs)
        return cls(dict(rules_of(rewriter)), features, kind=kind, backwards=rewriter.backwards, tokens=tokens)

    def answer(self, text: str) -> str:
        """Return the text of the target of a source."""
        source = tuple(text if self.tokens[0] == "char" else text.split())
        return ("" if self.tokens[1] == "char" else " ").join(self.translate(source))

    def translate(self, source: Tokens) -> Tokens:
        """Return the target of a source."""
        if isinstance(self.rules, Lexicon):
            return self.rules.translate(source)
        return self.rules.rewrite(*self.features.split(source))

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that `from_tensors` needs, by name."""
        sides = [sorted(side) for side in self.features]
        rules = [[rule.anchor, *map(SEPARATOR.join, rule[1:])] for rule in self.listed]
        form = {"kind": self.kind, "backwards": self.backwards, "tokens": self.tokens}
        fields = {**form, "features": sides, "rules": rules}
        text = json.dumps(fields, ensure_ascii=False).encode()
        return {"rules": torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy()), "counts": self.counts.data}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "RuleTranslator":
        """Build a translator from its tensors by name.

        Raises:
            ValueError: tensors are missing or damaged.
        """
        if tensors.keys() != {"rules", "counts"} or tensors["rules"].dtype != torch.uint8:
            raise ValueError("not the rules of a translator")
        try:
            fields = json.loads(tensors["rules"].numpy().tobytes())
            rules = [TranslationRule(_text(anchor), *map(_split, joined)) for anchor, *joined in fields["rules"]]
            counts = dict(zip(rules, tensors["counts"].tolist(), strict=True))
            features = Features(*(frozenset(map(_text, side)) for side in fields["features"]))
            kind: Kind = KINDS[KINDS.index(fields["kind"])]
            left, right = map(_text, fields["tokens"])
            return cls(counts, features, kind=kind, backwards=bool(fields["backwards"]), tokens=(left, right))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"damaged rules ({error})") from None


def rules_of(rewriter: Rewriter) -> Iterator[tuple[TranslationRule, int]]:
    """Yield the rules of a rewriter with their counts."""
    for anchor, sets in (("beginning", rewriter.beginnings), ("end", rewriter.ends)):
        for features, rules in sets.items():
            for old, choices in rules.items():
                for new, count in choices.items():
                    yield TranslationRule(anchor, features, old, new), count


def rewriter_of(rules: Mapping[TranslationRule, int], *, backwards: bool) -> Rewriter:
    """Return the rewriter of some rules with their counts; raise KeyError for an anchor that is not of a rewriter."""
    rewriter = Rewriter({}, {}, backwards=backwards)
    sides = {"beginning": rewriter.beginnings, "end": rewriter.ends}
    for rule, count in rules.items():
        for sets in sides.values():  # both have every set of features
            sets.setdefault(rule.features, {})
        sides[rule.anchor][rule.features].setdefault(rule.old, Counter())[rule.new] += count
    return rewriter


def _split(joined: Any) -> Tokens:
    return tuple(_text(joined).split(SEPARATOR)) if joined else ()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value
