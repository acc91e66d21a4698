"""Find answers given log probabilities at every position: by the best alignment, or by a search over answers.

A. Graves et al., "Connectionist temporal classification", ICML 2006: many alignments give one answer, so the answer of
the best alignment need not be the best answer. The search keeps the most probable prefixes of answers, each with the
summed probability of its alignments that end in a blank and of those that do not.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor

from .beam import Hypothesis

BLANK = 0
CANDIDATES = 32
"""Number of most probable tokens that are considered at a position; all others have almost no probability."""


def best_alignments(log_p: Tensor, lengths: Tensor) -> list[Hypothesis]:
    """Return the answer of each row's most probable alignment, with the log probability of the alignment.

    Args:
        log_p: ``(batch, positions, vocabulary)``.
        lengths: of each row ``(batch,)``.
    """
    values, tokens = log_p.max(dim=2)
    hypotheses = []
    for row, count in enumerate(lengths.tolist()):
        merged = torch.unique_consecutive(tokens[row, :count]).tolist()
        total = float(values[row, :count].sum())
        hypotheses.append(Hypothesis(tuple(token for token in merged if token != BLANK), total, total))
    return hypotheses


def search(log_p: Tensor, *, beam: int, n_best: int = 1) -> list[Hypothesis]:
    """Return the most probable answers of one row, the best first.

    The log probability of an answer is that of those of its alignments that the search met.

    Args:
        log_p: ``(positions, vocabulary)``.
        beam: number of prefixes that are kept at every position.
        n_best: number of answers to return.
    """
    prefixes: dict[tuple[int, ...], tuple[float, ...]] = {(): (0.0, -math.inf)}
    values, tokens = log_p.topk(min(CANDIDATES, log_p.shape[1]), dim=1)
    blanks = log_p[:, BLANK].tolist()
    for position, (scores, candidates) in enumerate(zip(values.tolist(), tokens.tolist(), strict=True)):
        extended: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        likely = dict(zip(candidates, scores, strict=True))
        for prefix, (in_blank, in_token) in prefixes.items():
            # The answer stays the same with a blank, and with its last token again, which alignments merge.
            total = _sum(in_blank, in_token)
            stay = extended[prefix]
            stay[0] = _sum(stay[0], total + blanks[position])
            last = prefix[-1] if prefix else None
            if last in likely:
                stay[1] = _sum(stay[1], in_token + likely[last])

            # A token that equals the last one is a new one only after a blank.
            for token, score in likely.items():
                if token != BLANK:
                    longer = extended[(*prefix, token)]
                    longer[1] = _sum(longer[1], score + (in_blank if token == last else total))
        ranked = sorted(extended.items(), key=lambda item: (-_sum(*item[1]), item[0]))
        prefixes = {prefix: tuple(sums) for prefix, sums in ranked[:beam]}
    totals = [(prefix, _sum(*sums)) for prefix, sums in prefixes.items()]
    return [Hypothesis(prefix, total, total) for prefix, total in totals[:n_best]]


def _sum(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
