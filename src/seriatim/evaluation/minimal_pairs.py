"""Minimal pairs: how often a language model finds the grammatical sentence of a pair more probable.

A. Warstadt et al., "BLiMP: the benchmark of linguistic minimal pairs for English", TACL 2020. The two sentences of a
pair differ in one place, and one of them is not acceptable. A pair is correct if P(good) > P(bad), both as whole texts;
of a tie nothing can be said, and it does not count as correct.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..core.errors import EmptyError, MalformedError
from ..core.json_object import JsonObject
from ..data.repairs import Repairs
from ..data.text import Source, read_objects, string_field
from .intervals import Measure, mean, with_intervals

GOOD, BAD = "sentence_good", "sentence_bad"
GROUPS = ("linguistics_term", "UID")
"""The fields that name the phenomenon of a pair and, within it, the paradigm; both may be missing."""


class MinimalPair(NamedTuple):
    """Two sentences, the phenomenon and the paradigm in which they differ (empty if unknown), and file and line."""

    good: str
    bad: str
    phenomenon: str
    paradigm: str
    location: str = ""


class PairScores(NamedTuple):
    """For each pair, log P(good) − log P(bad) in nats ``(pairs,)``, and the pairs."""

    differences: np.ndarray
    pairs: list[MinimalPair]

    def measures(self) -> dict[str, Measure]:
        """Return the accuracy of all pairs, and of each phenomenon, as statistics that can be paired."""
        hits = (self.differences > 0).astype(float)
        names = [pair.phenomenon for pair in self.pairs]
        measures = {"accuracy": Measure(np.stack([hits, np.ones(len(hits))], 1), mean)}
        for name in sorted(set(names) - {""}):
            chosen = np.array([other == name for other in names], dtype=float)
            measures[name] = Measure(np.stack([hits * chosen, chosen], 1), mean)
        return measures

    def metrics(self) -> JsonObject:
        """Return ``accuracy`` with its interval, ``pairs``, ``ties``, and the same for phenomena and paradigms."""
        return {
            **self._counted(np.ones(len(self.pairs), dtype=bool)),
            "phenomena": self._grouped([pair.phenomenon for pair in self.pairs]),
            "paradigms": self._grouped([pair.paradigm for pair in self.pairs]),
        }

    def _grouped(self, names: Sequence[str]) -> dict[str, JsonObject]:
        return {name: self._counted(np.array([other == name for other in names])) for name in sorted(set(names) - {""})}

    def _counted(self, chosen: np.ndarray) -> JsonObject:
        hits = (self.differences[chosen] > 0).astype(float)
        accuracy = with_intervals({"accuracy": Measure(np.stack([hits, np.ones(len(hits))], 1), mean)})
        return {**accuracy, "pairs": len(hits), "ties": int((self.differences[chosen] == 0).sum())}


def read_pairs(sources: Iterable[Source], repairs: Repairs) -> list[MinimalPair]:
    """Read the pairs of JSONL files; ``repairs`` records repairs.

    Raises:
        InputError: a line does not have the two sentences, or there are no pairs.
    """
    pairs = []
    for source in sources:
        for number, record in read_objects(source, repairs):
            where = f"{source.name}:{number}"
            good, bad = (repairs.text(string_field(record, field, where), source.name, number) for field in (GOOD, BAD))
            phenomenon, paradigm = (string_field(record, name, where) if name in record else "" for name in GROUPS)
            if "\n" in good + bad:
                raise MalformedError(f"{where}: a sentence contains a line end; remove it")
            pairs.append(MinimalPair(good, bad, phenomenon, paradigm, where))
    if not pairs:
        raise EmptyError(f"--minimal-pairs: no pairs; give JSONL with the fields {GOOD} and {BAD}")
    return pairs


def score_pairs(pairs: list[MinimalPair], log_probabilities: Callable[[list[str]], Sequence[float]]) -> PairScores:
    """Compare the probabilities of the sentences of each pair, given what computes them for many sentences."""
    scores = np.array(log_probabilities([sentence for pair in pairs for sentence in pair[:2]]))
    good, bad = scores[::2], scores[1::2]
    ties = np.zeros(len(pairs))  # also where both are impossible, and −∞ − (−∞) would be NaN
    return PairScores(np.subtract(good, bad, out=ties, where=good != bad), pairs)
