"""How close produced texts are to reference texts: translations, transcriptions, spellings.

BLEU and chrF are sacrebleu's, with its signatures (M. Post, *A call for clarity in reporting BLEU scores*, WMT 2018),
from 0 to 100. Texts are given as they read, not tokenized: BLEU has its own tokenizer. The error rates and exact
matches are fractions.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ..core.errors import InputError, nearest
from .intervals import Measure, Metrics, mean, ratio, with_intervals

References = Sequence[str] | Sequence[Sequence[str]]
NGRAMS = 4
BETA = 2


def translation_metrics(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a") -> Metrics:
    """The metrics of produced texts.

    Args:
        hypotheses: one text a sentence; it may be empty.
        references: for each sentence one text or a list of texts, as many as there are.
        tokenize: how BLEU splits words, by sacrebleu's names (``zh`` for Chinese, ``char``, ``none``, ...); some need
            further packages, and those of the name ``flores...`` fetch a model.

    Returns:
        ``bleu chrf exact_match word_error_rate string_error_rate``, each with its 95 % interval as ``NAME_low`` and
        ``NAME_high``, the signatures ``bleu_signature`` and ``chrf_signature``, and ``sentences``. ``bleu`` and
        ``chrf`` are what sacrebleu's ``corpus_score`` gives, to the last bit. ``word_error_rate`` is the edit distance
        in words, parted by whitespace, from the closest reference, over the words of those references (or over 1
        where they have none); it can exceed 1. Whitespace around a text is no error.

    Raises:
        InputError: no sentences, a sentence without a reference, numbers that do not match, an unknown tokenizer.
    """
    measures, scores = _measures(hypotheses, references, tokenize)
    metrics = {**with_intervals(measures), **scores}
    for suffix, mirrored in (("", ""), ("_low", "_high"), ("_high", "_low")):
        hits = metrics[f"exact_match{mirrored}"]
        metrics[f"string_error_rate{suffix}"] = None if hits is None else 1 - hits
    return {**metrics, "sentences": len(hypotheses)}


def translation_measures(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a"
) -> dict[str, Measure]:
    """``bleu chrf exact_match word_error_rate`` sentence by sentence, for `seriatim.evaluation.intervals.paired`.

    Arguments and errors as of `translation_metrics`.
    """
    return _measures(hypotheses, references, tokenize)[0]


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other.

    A column of the dynamic programme is kept as the bits of two integers, the rows where it rises and where it falls
    (G. Myers, JACM 1999; in the form of H. Hyyrö, *A bit-vector algorithm for computing Levenshtein and Damerau edit
    distances*, 2003), so that a step over ``second`` is a dozen operations.
    """
    if not first:
        return len(second)
    places: dict[Hashable, int] = {}
    for i, token in enumerate(first):
        places[token] = places.get(token, 0) | 1 << i
    last, full = 1 << len(first) - 1, (1 << len(first)) - 1
    rises, falls, distance = full, 0, len(first)
    for token in second:
        same = places.get(token, 0)
        level = (((same & rises) + rises) ^ rises) | same | falls
        up, down = falls | full & ~(level | rises), rises & level
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        rises, falls = full & (down | ~(level | up)), full & up & level
    return distance


def _measures(hypotheses: Sequence[str], references: References, tokenize: str) -> tuple[dict[str, Measure], Metrics]:
    """The measures; sacrebleu's own scores and signatures."""
    choices = _checked(hypotheses, references)
    bleu, chrf = _sacrebleu(tokenize)
    # sacrebleu wants one list for each first reference, each second, ...; None where a sentence has no more
    streams = [[own[i] if i < len(own) else None for own in choices] for i in range(max(map(len, choices)))]
    measures, scores = {}, {}
    for name, metric, of in (("bleu", bleu, _bleu), ("chrf", chrf, _chrf)):
        # what corpus_score does, in its two steps: only the first knows the sentences
        statistics = metric._extract_corpus_statistics(hypotheses, streams)
        scores[name] = metric._aggregate_and_compute(statistics).score
        scores[f"{name}_signature"] = metric.get_signature().format()
        measures[name] = Measure(np.array(statistics, float), of)
    pairs = list(zip(hypotheses, choices, strict=True))
    hits = [[text.strip() in {choice.strip() for choice in own}, 1] for text, own in pairs]
    measures["exact_match"] = Measure(np.array(hits, float), mean)
    measures["word_error_rate"] = Measure(np.array([_word_errors(*pair) for pair in pairs], float), _error_rate)
    return measures, scores


def _word_errors(hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
    """Edits and words of the closest reference: the fewest edits and, of those, the longest."""
    words = hypothesis.split()
    choices = [reference.split() for reference in references]
    edits, negative_length = min((edit_distance(words, choice), -len(choice)) for choice in choices)
    return edits, -negative_length


def _error_rate(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


def _bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU of sums ``(..., 10)``: lengths of hypotheses and references, n-grams matched and produced, n = 1 to 4.

    An order without a match counts half a match, the next such a quarter, ... (sacrebleu's smoothing ``exp``).
    """
    own, true = sums[..., 0], sums[..., 1]
    matched, produced = sums[..., 2 : 2 + NGRAMS], sums[..., 2 + NGRAMS :]
    missing = matched == 0
    smoothed = np.where(missing, 0.5 ** missing.cumsum(-1), matched)
    defined = ~missing.all(-1) & (produced > 0).all(-1)
    precisions = np.where(defined[..., None], ratio(smoothed, produced), 1)
    brevity = np.exp(np.minimum(0, 1 - true / np.maximum(own, 1)))
    return np.where(defined, 100 * brevity * np.exp(np.log(precisions).mean(-1)), 0)


def _chrf(sums: np.ndarray) -> np.ndarray:
    """ChrF of sums ``(..., 18)``: n-grams of characters in hypotheses, in references and in both, n = 1 to 6.

    M. Popović, *chrF: character n-gram F-score for automatic MT evaluation* (WMT 2015), with β = 2; orders longer than
    the texts do not count.
    """
    own, true, matched = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)
    shared = (own > 0) & (true > 0)
    orders = shared.sum(-1)
    precision = ratio((ratio(matched, own) * shared).sum(-1), orders)
    recall = ratio((ratio(matched, true) * shared).sum(-1), orders)
    return 100 * ratio((1 + BETA**2) * precision * recall, BETA**2 * precision + recall)


def _sacrebleu(tokenize: str) -> tuple[Any, Any]:
    """Its two metrics: imported here, since only these figures need it."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"tokenize: unknown name {tokenize!r}; {nearest(tokenize, list(BLEU.TOKENIZERS))}")
    try:
        # force: no warning on standard error about texts that look tokenized
        return BLEU(tokenize=tokenize, force=True), CHRF()
    except (ImportError, RuntimeError) as error:
        raise InputError(f"tokenize: {' '.join(str(error).split())}") from error


def _checked(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """The references of each sentence."""
    if len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} hypotheses for the references of {len(references)} sentences; give one each"
        )
    if not hypotheses:
        raise InputError("there is nothing to evaluate; give at least one sentence")
    choices = [[own] if isinstance(own, str) else list(own) for own in references]
    for i, own in enumerate(choices, 1):
        if not own:
            raise InputError(f"sentence {i}: no reference; give at least one (it may be empty)")
    return choices


FIGURES = {"bleu": _bleu, "chrf": _chrf, "exact_match": mean, "word_error_rate": _error_rate}
"""What each figure makes of the sums of its statistics."""
