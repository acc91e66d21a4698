"""Metrics of generated texts against reference texts: translations, transcriptions, spellings.

BLEU and chrF are computed by sacrebleu, with its signatures (M. Post, *A call for clarity in reporting BLEU scores*,
WMT 2018), and range from 0 to 100. Texts must not be tokenized, since BLEU has its own tokenizer; pieces of words that
are marked as such (``re@@ d``) are joined first. Error rates and exact matches are fractions.
"""

import itertools
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ..core.errors import EmptyError, MismatchError, RequiredError
from ..core.json_object import JsonObject
from ..data.repairs import DataWarning
from ..data.text_kinds import SubwordMarks, find_subword_marks
from .intervals import Compute, Measure, Measurement, mean, ratio, with_intervals

References = Sequence[str] | Sequence[Sequence[str]]
NGRAMS = 4
BETA = 2


def measure_translations(hypotheses: Sequence[str], references: References) -> Measurement:
    """Measure generated texts by sentence.

    Args:
        hypotheses: one text per sentence; it may be empty.
        references: one text or a list of texts per sentence.

    Returns:
        ``bleu chrf exact_match word_error_rate string_error_rate``, each with its 95 % interval as ``NAME_low`` and
        ``NAME_high``, ``bleu_signature``, ``chrf_signature`` and ``sentences``; ``joined`` is the mark of subwords of
        words that were joined. ``bleu`` and ``chrf`` equal sacrebleu's ``corpus_score`` exactly. ``word_error_rate`` is
        the edit distance in words from the closest reference, divided by the number of words of these references (by 1
        if they have none). White space around a text is ignored.

    Raises:
        InputError: no sentences, a sentence without a reference, or numbers that do not match.

    Warns:
        DataWarning: the texts are pieces of words, which are joined before they are compared.
    """
    from sacrebleu.metrics.bleu import BLEU  # imported here, since nothing else needs it
    from sacrebleu.metrics.chrf import CHRF

    choices = _checked(hypotheses, references)
    measures: dict[str, Measure] = {}
    scores: JsonObject = {}
    if subwords := _subwords_of(hypotheses, choices):
        hypotheses, choices = [*map(subwords.join, hypotheses)], [[*map(subwords.join, texts)] for texts in choices]
        scores["joined"] = subwords.mark
    # sacrebleu takes a list of all first references, one of all second ones, ...; None if a sentence has fewer
    streams = [[texts[i] if i < len(texts) else None for texts in choices] for i in range(max(map(len, choices)))]
    # force: do not warn on standard error about texts that look tokenized
    both: list[tuple[str, Any, Compute]] = [("bleu", BLEU(force=True), _bleu), ("chrf", CHRF(), _chrf)]
    for name, metric, compute in both:
        # the two steps of corpus_score; only the first one has statistics by sentence
        statistics = metric._extract_corpus_statistics(hypotheses, streams)
        scores[name] = metric._aggregate_and_compute(statistics).score
        scores[f"{name}_signature"] = metric.get_signature().format()
        measures[name] = Measure(np.array(statistics, float), compute)
    pairs = list(zip(hypotheses, choices, strict=True))
    hits = [[text.strip() in {choice.strip() for choice in texts}, 1] for text, texts in pairs]
    measures["exact_match"] = Measure(np.array(hits, float), mean)
    measures["word_error_rate"] = Measure(np.array([_word_errors(*pair) for pair in pairs], float), _error_rate)

    metrics = {**with_intervals(measures), **scores}
    for suffix, mirrored in (("", ""), ("_low", "_high"), ("_high", "_low")):
        hits = metrics[f"exact_match{mirrored}"]
        metrics[f"string_error_rate{suffix}"] = None if hits is None else 1 - hits
    return Measurement({**metrics, "sentences": len(hypotheses)}, measures)


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the smallest number of insertions, deletions and substitutions that turn one sequence into the other.

    A column of the dynamic programme is stored as the bits of two integers, the rows where it rises and where it falls
    (G. Myers, JACM 1999; in the form of H. Hyyrö, *A bit-vector algorithm for computing Levenshtein and Damerau edit
    distances*, 2003).
    """
    if not first:
        return len(second)
    bits: dict[Hashable, int] = {}
    for i, token in enumerate(first):
        bits[token] = bits.get(token, 0) | 1 << i
    last, full = 1 << len(first) - 1, (1 << len(first)) - 1
    rises, falls, distance = full, 0, len(first)
    for token in second:
        same = bits.get(token, 0)
        level = (((same & rises) + rises) ^ rises) | same | falls
        up, down = falls | full & ~(level | rises), rises & level
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        rises, falls = full & (down | ~(level | up)), full & up & level
    return distance


def _subwords_of(hypotheses: Sequence[str], choices: Sequence[Sequence[str]]) -> SubwordMarks | None:
    """Return the pieces of words of which the references consist, or else the hypotheses alone; warn of them."""
    references = list(itertools.chain.from_iterable(choices))
    subwords = find_subword_marks(references)
    if subwords is None:
        subwords = find_subword_marks(hypotheses)
        if subwords is None or any(subwords.mark in text for text in references):
            return None
    problem = f"the texts are pieces of words, marked by {subwords.mark}"
    warnings.warn(f"{problem}; they are joined before BLEU, chrF and errors are computed", DataWarning, stacklevel=2)
    return subwords


def _word_errors(hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
    """Return edits and words for the reference with the fewest edits and, among these, the most words."""
    words, choices = hypothesis.split(), [reference.split() for reference in references]
    errors = [(edit_distance(words, choice), len(choice)) for choice in choices]
    return min(errors, key=lambda error: (error[0], -error[1]))


def _error_rate(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


def _bleu(sums: np.ndarray) -> np.ndarray:
    """Compute BLEU of sums ``(..., 10)``: lengths of hypotheses and references, matched and generated n-grams, n ≤ 4.

    The first order without a match counts as half a match, the next one as a quarter (sacrebleu's smoothing ``exp``).
    """
    hypothesis_length, reference_length = sums[..., 0], sums[..., 1]
    matched, produced = sums[..., 2 : 2 + NGRAMS], sums[..., 2 + NGRAMS :]
    missing = matched == 0
    smoothed = np.where(missing, 0.5 ** missing.cumsum(-1), matched)
    defined = ~missing.all(-1) & (produced > 0).all(-1)
    precisions = np.where(defined[..., None], ratio(smoothed, produced), 1)
    brevity = np.exp(np.minimum(0, 1 - reference_length / np.maximum(hypothesis_length, 1)))
    return np.where(defined, 100 * brevity * np.exp(np.log(precisions).mean(-1)), 0)


def _chrf(sums: np.ndarray) -> np.ndarray:
    """Compute chrF of sums ``(..., 18)``: character n-grams in hypotheses, in references and in both, n = 1 to 6.

    M. Popović, *chrF: character n-gram F-score for automatic MT evaluation* (WMT 2015), with β = 2; orders longer than
    the texts are left out.
    """
    generated, true, matched = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)
    shared = (generated > 0) & (true > 0)
    orders = shared.sum(-1)
    precision = ratio((ratio(matched, generated) * shared).sum(-1), orders)
    recall = ratio((ratio(matched, true) * shared).sum(-1), orders)
    return 100 * ratio((1 + BETA**2) * precision * recall, BETA**2 * precision + recall)


def _checked(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Return the list of references of each sentence."""
    given, wanted = len(hypotheses), len(references)
    if given != wanted:
        raise MismatchError(f"{given} hypotheses for the references of {wanted} sentences; give one each")
    if not hypotheses:
        raise EmptyError("there is nothing to evaluate; give at least one sentence")
    choices = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if [] in choices:
        raise RequiredError(f"sentence {choices.index([]) + 1}: no reference; give at least one (it may be empty)")
    return choices


FIGURES = {"bleu": _bleu, "chrf": _chrf, "exact_match": mean, "word_error_rate": _error_rate}
"""How each figure is computed from summed statistics."""
