"""A translator of rules or of a lexicon, as a model whose parameters are the counts of its rules.

The first kind rewrites the beginning and the end of a source (`rewriting`), the second translates token by token
(`lexicon`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from .lexicon import Lexicon
from .rewriting import Features, Rewriter, RewritingExample, Tokens

Kind: TypeAlias = Literal["rewriting", "lexicon"]
KINDS: tuple[Kind, ...] = ("rewriting", "lexicon")
SEPARATOR = "\n"
"""Joins tokens in a file; no token of a line contains it."""


class TranslationRule(NamedTuple):
    """A rule: where it applies, to sources with which features, and what becomes of which tokens."""

    place: str  # beginning, end, or token (of a lexicon)
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
        rules = [[rule.place, *map(SEPARATOR.join, rule[1:])] for rule in self.listed]
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
            rules = [TranslationRule(_text(place), *map(_split, parts)) for place, *parts in fields["rules"]]
            counts = dict(zip(rules, tensors["counts"].tolist(), strict=True))
            features = Features(*(frozenset(map(_text, side)) for side in fields["features"]))
            kind: Kind = KINDS[KINDS.index(fields["kind"])]
            left, right = map(_text, fields["tokens"])
            return cls(counts, features, kind=kind, backwards=bool(fields["backwards"]), tokens=(left, right))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"damaged rules ({error})") from None


def rules_of(rewriter: Rewriter) -> Iterator[tuple[TranslationRule, int]]:
    """Yield the rules of a rewriter with their counts."""
    for place, sets in (("beginning", rewriter.beginnings), ("end", rewriter.ends)):
        for features, rules in sets.items():
            for old, choices in rules.items():
                for new, count in choices.items():
                    yield TranslationRule(place, features, old, new), count


def rewriter_of(rules: Mapping[TranslationRule, int], *, backwards: bool) -> Rewriter:
    """Return the rewriter of some rules with their counts; raise KeyError for a place that is not of a rewriter."""
    rewriter = Rewriter({}, {}, backwards=backwards)
    places = {"beginning": rewriter.beginnings, "end": rewriter.ends}
    for rule, count in rules.items():
        for sets in places.values():  # both have every set of features
            sets.setdefault(rule.features, {})
        places[rule.place][rule.features].setdefault(rule.old, Counter())[rule.new] += count
    return rewriter


def _split(joined: Any) -> Tokens:
    return tuple(_text(joined).split(SEPARATOR)) if joined else ()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value
