"""How surprised a model is by each token, and what it expected instead.

The surprisal of a token is −log₂ P(token | what the model sees of the rest), in bits (C. Shannon 1948; as a measure of
reading, J. Hale, "A probabilistic Earley parser as a psycholinguistic model", NAACL 2001). A model that reads forwards
sees the true tokens before it, a masked one all others, a translator the source and its own answer so far.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..data.corpus import Corpus
from ..data.tokenizers import Tokenizer
from ..training.task import evaluating
from .answers import Answer
from .predictions import log_probabilities, name_of, text_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..runs.run import Run

ALTERNATIVES = 5


class Surprise(NamedTuple):
    """A token and what was expected in its place.

    Attributes:
        text: as it stands in the text, a space or a line end included.
        bits: −log₂ P.
        rank: 1 where no token was held likelier.
        alternatives: the likeliest tokens with their probabilities, the likeliest first.
    """

    text: str
    bits: float
    rank: int
    alternatives: list[tuple[str, float]]


def surprisals(run: "Run", corpus: Corpus, *, alternatives: int = ALTERNATIVES) -> list[Surprise]:
    """The surprisal of every token of a text, to a language model or a masked one.

    The bits of a text are those of `Run.score`, or of `Run.evaluate`, which for a masked model has ``exact``.

    Args:
        run: trained to ``lm`` or ``mlm``.
        corpus: of `encode_text`.
        alternatives: how many likeliest tokens to name.
    """
    found: dict[int, Surprise] = {}
    for places, shares in log_probabilities(run, corpus):
        targets = torch.from_numpy(corpus.ids[places].astype("int64"))
        found.update(zip(places.tolist(), _judged(run.tokenizer, shares.cpu(), targets, alternatives), strict=True))
    return [found[place] for place in range(len(corpus.ids))]


def answer_surprisals(run: "Run", answer: Answer, *, alternatives: int = ALTERNATIVES) -> list[Surprise]:
    """The surprisal of every token of a translator's own answer, its end included; of `own_answer`."""
    with evaluating(run.model) as device:
        inputs, targets = answer.shifted()
        state = run.model.encode(answer.source.to(device), answer.lengths)
        logits, _ = run.model(inputs.to(device), state)
    shares = torch.log_softmax(logits[0].double(), dim=1).cpu()
    return list(_judged(run.vocabulary.target, shares, targets[0], alternatives))


def _judged(tokenizer: Tokenizer, shares: Tensor, targets: Tensor, alternatives: int) -> Iterable[Surprise]:
    """Of log probabilities ``(tokens, vocabulary)`` and tokens ``(tokens,)``."""
    own = shares.gather(1, targets.unsqueeze(1))
    ranks = (shares > own).sum(1) + 1
    best = shares.topk(min(alternatives, shares.shape[1]), dim=1)
    rows = zip(targets.tolist(), own.squeeze(1).tolist(), ranks.tolist(), *map(Tensor.tolist, best), strict=True)
    for target, log, rank, values, tokens in rows:
        named = [(name_of(tokenizer, token), math.exp(value)) for token, value in zip(tokens, values, strict=True)]
        yield Surprise(text_of(tokenizer, target), max(0.0, -log) / math.log(2), rank, named)


def bits(surprises: Sequence[Surprise]) -> float:
    """Of the whole text."""
    return math.fsum(one.bits for one in surprises)


def surprisal_figure(surprises: Sequence[Surprise]) -> "Figure":
    """Share of the tokens against their surprisal: how many cost at most so many bits.

    Args:
        surprises: of `surprisals` or `answer_surprisals`, at least one; those with probability zero are left out.
    """
    from ..report.theme import new_figure, style

    figure, axes = new_figure()
    plot = axes[0, 0]
    values = sorted(one.bits for one in surprises if math.isfinite(one.bits))
    shares = [(i + 1) / len(values) for i in range(len(values))]
    plot.step([0.0, *values], [0.0, *shares], where="post", **{**style(0), "marker": ""})
    mean = math.fsum(values) / len(values)
    plot.axvline(mean, label=f"mean, {mean:.2f} bits", **{**style(1), "marker": ""})
    plot.set(xlabel="surprisal (bits)", ylabel="share of tokens, cumulative", ylim=(0, 1.02), xlim=(0, None))
    plot.legend(loc="lower right")
    return figure
