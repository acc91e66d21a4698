"""Find answers given log probabilities at every place: by the best alignment, or by a search over answers.

A. Graves et al., "Connectionist temporal classification", ICML 2006: many alignments give one answer, so that the best
alignment is not that of the best answer. The search keeps the likeliest beginnings of answers, each with the
probability of all its alignments, apart for those that end in a blank and those that do not.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor

from .beam import Hypothesis

BLANK = 0
CANDIDATES = 32
"""Number of most probable tokens that are considered at a place; all others have almost no probability."""


def best_alignments(log_p: Tensor, places: Tensor) -> list[Hypothesis]:
    """Return the answer of each row's most probable alignment, with the log probability of the alignment.

    Args:
        log_p: ``(batch, places, vocabulary)``.
        places: of each row ``(batch,)``.
    """
    values, tokens = log_p.max(dim=2)
    found = []
    for row, count in enumerate(places.tolist()):
        joined = torch.unique_consecutive(tokens[row, :count]).tolist()
        answer = tuple(token for token in joined if token != BLANK)
        total = float(values[row, :count].sum())
        found.append(Hypothesis(answer, total, total))
    return found


def search(log_p: Tensor, *, beam: int, n_best: int = 1) -> list[Hypothesis]:
    """Return the most probable answers of one row.

    Args:
        log_p: ``(places, vocabulary)``.
        beam: beginnings kept at every place.
        n_best: answers given.

    Returns:
        The best first; each with the log probability of those of its alignments that the search met.
    """
    beginnings: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    values, tokens = log_p.topk(min(CANDIDATES, log_p.shape[1]), dim=1)
    blanks = log_p[:, BLANK].tolist()
    for place, (shares, candidates) in enumerate(zip(values.tolist(), tokens.tolist(), strict=True)):
        reached: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        likely = dict(zip(candidates, shares, strict=True))
        for beginning, (in_blank, in_token) in beginnings.items():
            whole = _sum(in_blank, in_token)
            stay = reached[beginning]
            stay[0] = _sum(stay[0], whole + blanks[place])
            last = beginning[-1] if beginning else None
            if last in likely:
                stay[1] = _sum(stay[1], in_token + likely[last])
            for token, share in likely.items():
                if token != BLANK:
                    longer = reached[(*beginning, token)]
                    longer[1] = _sum(longer[1], share + (in_blank if token == last else whole))
        ranked = sorted(reached.items(), key=lambda item: (-_sum(*item[1]), item[0]))
        beginnings = {answer: (found[0], found[1]) for answer, found in ranked[:beam]}
    totals = [(answer, _sum(*found)) for answer, found in beginnings.items()]
    return [Hypothesis(answer, total, total) for answer, total in totals[:n_best]]


def _sum(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
