"""The loss of a CRF on all sentences of a corpus at once, with scaled probabilities instead of logarithms.

    a_t = (a_{t−1} M) ∘ e_t / c_t,   b_t = M (e_{t+1} ∘ b_{t+1}) / c_{t+1},   log Z = Σ_t log c_t + log(a_T · exp(end))

M = exp(A) transitions · e_t = exp(s_t) scores of a word's tags · c_t makes a_t sum to 1 · a_t ∘ b_t are the marginals.

L. Rabiner, "A tutorial on hidden Markov models", Proceedings of the IEEE 77 (1989), section V.A. It computes what
`seriatim.models.crf.CRF` computes, for training on a whole corpus: products of probabilities are faster than
sums of exponentials. The sentences are packed: sorted by length, the first words of all sentences come first, then
the second words of those that have one, and so on.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TINY = 1e-30


class Packing(NamedTuple):
    """How the words of sentences are packed."""

    places: np.ndarray  # index in the corpus of each packed word (words,)
    offsets: list[int]  # the first packed word of each time step, and the number of words (steps + 1,)

    @classmethod
    def of(cls, lengths: np.ndarray) -> "Packing":
        """Pack sentences of some lengths ``(sentences,)``; empty ones are left out."""
        starts = lengths.cumsum() - lengths
        order = np.argsort(-lengths, kind="stable")
        active = np.array([np.count_nonzero(lengths > step) for step in range(int(lengths.max(initial=0)))], np.int64)
        places = [starts[order[:count]] + step for step, count in enumerate(active.tolist())]
        return cls(np.concatenate([np.zeros(0, np.int64), *places]), [0, *active.cumsum().tolist()])

    def steps(self) -> list[slice]:
        """Return the packed words of each time step."""
        return [slice(*bounds) for bounds in zip(self.offsets, self.offsets[1:], strict=False)]


class Expectations(NamedTuple):
    """log Z of all sentences together, marginals ``(words, tags)``, and expected counts.

    The counts are those of transitions ``(tags, tags)``, of first and of last tags ``(tags,)``.
    """

    log_partition: float
    marginals: Tensor
    transitions: Tensor
    start: Tensor
    end: Tensor


def expectations(packing: Packing, scores: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Expectations:
    """Run the forward and the backward algorithm over packed scores ``(words, tags)``.

    The transitions are −inf where they are impossible.
    """
    steps = packing.steps()
    top, highest = scores.amax(1, keepdim=True), transitions.max()
    e, m, last = (scores - top).exp_(), (transitions - highest).exp(), end.exp()
    a, c = torch.empty_like(e), e.new_empty(len(e), 1)
    now = e[steps[0]] * start.exp()
    for i, step in enumerate(steps):
        if i:
            now = (now[: step.stop - step.start] @ m).mul_(e[step])
        c[step] = now.sum(1, keepdim=True).clamp_min_(TINY)
        now = torch.div(now, c[step], out=a[step])
    b, expected = torch.empty_like(e), torch.zeros_like(m)
    final = e.new_zeros(steps[0].stop)
    after = e.new_zeros(0, e.shape[1])
    for step in reversed(steps):
        size, going_on = step.stop - step.start, len(after)
        ending = slice(step.start + going_on, step.stop)
        whole = (a[ending] @ last).clamp_min_(TINY)
        final[going_on:size] = whole.log()
        b[step.start : step.start + going_on] = after @ m.t()
        b[ending] = last / whole.unsqueeze(1)
        expected += a[step.start : step.start + going_on].t() @ after
        after = b[step] * e[step] / c[step]
    total = top.double().sum() + c.double().log().sum() + final.double().sum() + highest * (len(e) - len(final))
    marginals = a * b
    return Expectations(float(total), marginals, expected * m, marginals[steps[0]].sum(0), _ends(marginals, steps))


def _ends(values: Tensor, steps: list[slice]) -> Tensor:
    """Return the sum of the values at the last words of the sentences ``(tags,)``."""
    following = [step.stop - step.start for step in steps[1:]] + [0]
    parts = [values[step.start + after : step.stop].sum(0) for step, after in zip(steps, following, strict=True)]
    return torch.stack(parts).sum(0)
