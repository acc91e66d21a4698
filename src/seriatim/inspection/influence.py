"""What the words of a text do to the answer: a classifier's label, and a tagger's tags.

A classifier that reads forwards is asked after every token what it would answer if the text ended there. One that sees
the whole text at once is asked what it would answer if a token were not there (occlusion: M. Zeiler and R. Fergus,
ECCV 2014; leave-one-out for words: J. Li, W. Monroe and D. Jurafsky, "Understanding neural networks through
representation erasure", 2016), which says what a token adds in its place, not what it would mean alone.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..core.errors import InputError
from ..data.batching import padded
from ..data.conll import Sentence
from ..data.tagged_corpus import TaggedCorpus
from ..layers.positions import learned_positions
from ..tasks.documents import encode
from ..training.task import evaluating
from .predictions import text_of
from .surprisal import ALTERNATIVES, Surprise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..runs.run import Run

MOST = 400
"""Tokens of a text that are looked at: there are as many readings of it."""
TOKENS_TOGETHER = 1 << 14
SHOWN = 5
"""Labels whose curves are drawn."""


class Labelling(NamedTuple):
    """How the answer to a text depends on its tokens.

    Attributes:
        tokens: the first `MOST` of the text, as they stand in it.
        labels: of the run, in order.
        whole: P(label) of these tokens together ``(labels,)``.
        after: P(label) after each token ``(tokens, labels)``; None where the model sees the whole text at once.
        without: P(label) of the text without each token ``(tokens, labels)``.
    """

    tokens: list[str]
    labels: list[str]
    whole: np.ndarray
    after: np.ndarray | None
    without: np.ndarray

    @property
    def answer(self) -> int:
        """The likeliest label."""
        return int(self.whole.argmax())

    def bits(self) -> np.ndarray:
        """By how much each token raises log₂ P(answer): against the text without it, ``(tokens,)``."""
        least = np.finfo(float).tiny
        own = np.maximum(self.without[:, self.answer], least)
        return np.asarray(np.log2(max(self.whole[self.answer], least)) - np.log2(own))


def labelling(run: "Run", text: str) -> Labelling:
    """How a classifier's answer depends on the tokens of a text.

    Raises:
        InputError: there is no token in it.
    """
    data = encode([text], [0], run.vocabulary)
    ids = data.ids[: min(MOST, learned_positions(run.model) or MOST)]
    if not len(ids):
        raise InputError("the text has no words; give some with --text or --text-file")
    size = len(ids)
    shorter = [np.delete(ids, i) for i in range(size)]
    after = _probabilities(run, [ids[: i + 1] for i in range(size)]) if run.model.layer.causal else None
    return Labelling(
        [text_of(run.tokenizer, token) for token in ids.tolist()],
        list(run.vocabulary.labels),
        _probabilities(run, [ids])[0],
        after,
        _probabilities(run, shorter),
    )


def _probabilities(run: "Run", texts: list[np.ndarray]) -> np.ndarray:
    """P(label) of some texts ``(texts, labels)``."""
    ids, lengths = np.concatenate(texts), np.array([len(text) for text in texts])
    starts, rows = lengths.cumsum() - lengths, max(1, TOKENS_TOGETHER // max(1, int(lengths.max())))
    found = []
    with evaluating(run.model) as device:
        for i in range(0, len(texts), rows):
            some = slice(i, i + rows)
            inputs = torch.from_numpy(padded(ids, starts[some], lengths[some])).to(device)
            found.append(run.model.probabilities(inputs, torch.from_numpy(lengths[some])).cpu().numpy())
    return np.concatenate(found)


def tag_surprisals(run: "Run", text: str, *, alternatives: int = ALTERNATIVES) -> list[Surprise]:
    """For each word, how unsure a tagger is of its tag: −log₂ P of the tag it gives, and the likeliest tags.

    Args:
        run: trained to ``tag``.
        text: a sentence; white space parts its words.
        alternatives: how many tags to name.

    Raises:
        InputError: there is no word in it.
    """
    words = text.split()[: min(MOST, learned_positions(run.model) or MOST)]
    if not words:
        raise InputError("the text has no words; give some with --text or --text-file")
    corpus = TaggedCorpus([Sentence(words, [], [], [], 0, "", 0)], run.vocabulary, labelled=False)
    with evaluating(run.model) as device:
        batch = corpus.batch(np.array([0])).to(device)
        scores = run.model(batch)
        shares = run.model.marginals(scores, batch.lengths)[0].double().cpu()
        tags = run.model.decode(scores, batch.lengths)[0]
    best = shares.topk(min(alternatives, shares.shape[1]), dim=1)
    found = []
    for word, tag, own, values, others in zip(words, tags, shares, *map(torch.Tensor.tolist, best), strict=True):
        share = float(own[tag])
        named = [(run.vocabulary.labels[other], value) for other, value in zip(others, values, strict=True)]
        rank = int((own > share).sum()) + 1
        text = f"{word}/{run.vocabulary.labels[tag]} "
        found.append(Surprise(text, -math.log2(max(share, np.finfo(float).tiny)), rank, named))
    return found


def label_figure(found: Labelling) -> "Figure":
    """P(label) after each token of a text, of the labels that are likeliest somewhere; the answer's first.

    Args:
        found: of a classifier that reads forwards.

    Raises:
        InputError: the model sees the whole text at once.
    """
    from ..report.theme import new_figure, plain, style

    if found.after is None:
        raise InputError("the model sees the whole text at once: there is no answer after each word; see `without`")
    highest = found.after.max(0)
    order = sorted(range(len(found.labels)), key=lambda label: -float(highest[label]))
    shown = [found.answer, *(label for label in order if label != found.answer)][:SHOWN]
    figure, axes = new_figure(width=6.4)
    plot = axes[0, 0]
    places = np.arange(1, len(found.tokens) + 1)
    for i, label in enumerate(shown):
        plot.plot(places, found.after[:, label], label=plain(found.labels[label]), markevery=0.1, **style(i))
    plot.set(xlabel="tokens read", ylabel="P(label)", ylim=(-0.02, 1.02))
    plot.legend()
    return figure
