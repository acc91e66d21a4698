"""What a model gets wrong: what it takes for what, whether its confidence can be trusted, its worst answers.

Labels are counted with `seriatim.evaluation`; of much data the beginning is looked at, which `Mistakes.seen` tells.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data.batching import Buckets
from ..data.corpus import Corpus
from ..data.encoding import Statistics
from ..data.tagged_corpus import TaggedCorpus
from ..evaluation.intervals import Metrics
from ..evaluation.label_metrics import calibration
from ..evaluation.translation import translation_measures
from ..tasks.documents import probabilities
from ..tasks.tagging_view import TOGETHER, TOKENS_TOGETHER
from ..training.task import evaluating
from .predictions import log_probabilities, name_of

if TYPE_CHECKING:
    from ..runs.run import Run

ITEMS, TOKENS, PAIRS = 2_000, 5_000, 100
"""Texts or sentences, tokens of a language model's text, and pairs to translate, that are looked at."""
BLOCK = 50
"""Tokens of a running text that are one example."""
WORST, CONFUSED = 10, 15
"""Examples, and pairs of labels, that are named."""


class Confused(NamedTuple):
    """A label that was taken for another, and how often."""

    truth: str
    found: str
    times: int


class Bad(NamedTuple):
    """An example that went badly.

    Attributes:
        score: how badly, as `Mistakes.score` names it.
        text: the input, or for a language model the text itself.
        truth: what was right; empty for a language model.
        found: what the model gave; as above.
    """

    score: float
    text: str
    truth: str = ""
    found: str = ""


@dataclass(frozen=True)
class Mistakes:
    """What went wrong on some data.

    Attributes:
        seen: how much of the data was looked at, in words.
        right: predictions that are right, of ``of``; of a translator, answers that are exactly so.
        confused: the commonest mistakes, the commonest first.
        labels: of the matrix, in order; empty where there are too many for one, or none.
        confusion: a row for each true label and a column for each that was found ``(labels, labels)``.
        calibration: bins, as `seriatim.evaluation.label_metrics.calibration` gives them; empty where answers have no
            confidence.
        calibration_error: as above, the expected one.
        worst: the worst first.
        score: what the score of `worst` is.
        chrf: of a translator's answers together, 0 to 100.
    """

    seen: str
    right: int
    of: int
    confused: list[Confused]
    worst: list[Bad]
    score: str
    labels: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    calibration: list[Metrics] = field(default_factory=list)
    calibration_error: float | None = None
    chrf: float | None = None


def find_mistakes(run: "Run", data: str, *, file_format: str | None = None) -> Mistakes:
    """Answers labelled data, and says what is wrong.

    Args:
        run: of any task.
        data: as for `Run.evaluate`; of its beginning at most `ITEMS` texts or sentences are looked at, `TOKENS` tokens,
            or `PAIRS` pairs.
        file_format: as ``data.format`` of a configuration; None for the run's own.

    Raises:
        InputError: the data cannot be read.
    """
    of = {"classify": _of_texts, "tag": _of_sentences, "seq2seq": _of_pairs, "lm": _of_tokens, "mlm": _of_tokens}
    return of[run.config.task](run, data, file_format)


def _of_texts(run: "Run", spec: str, file_format: str | None) -> Mistakes:
    """The wrong answers of a classifier that it was surest of are its worst."""
    task: Any = run.task
    labels, whole = list(run.vocabulary.labels), task.read(spec, "test", run.vocabulary, file_format=file_format)
    data = whole._replace(starts=whole.starts[:ITEMS], lengths=whole.lengths[:ITEMS], labels=whole.labels[:ITEMS])
    texts = [row.text for row in itertools.islice(task.rows(spec, "test", file_format), ITEMS)]
    shares = probabilities(run.model, data)
    found, confidence = shares.argmax(1), shares.max(1)
    wrong = np.flatnonzero(found != data.labels)
    order = wrong[np.argsort(-confidence[wrong], kind="stable")][:WORST].tolist()
    named = [Bad(float(confidence[i]), texts[i], labels[int(data.labels[i])], labels[int(found[i])]) for i in order]
    truth = [labels[label] for label in data.labels.tolist()]
    return _judged(
        truth,
        [labels[label] for label in found.tolist()],
        confidence,
        seen=_seen(len(texts), len(whole.labels), "texts"),
        worst=named,
        score="confidence in the wrong label",
    )


def _of_sentences(run: "Run", spec: str, file_format: str | None) -> Mistakes:
    """The sentences with most wrong tags are the worst."""
    task: Any = run.task
    sentences = list(itertools.islice(task.sentences(spec, "test", file_format), ITEMS + 1))
    seen = f"the first {ITEMS:,} sentences" if len(sentences) > ITEMS else f"all {len(sentences):,} sentences"
    sentences = sentences[:ITEMS]
    corpus = TaggedCorpus(sentences, run.vocabulary)
    found, confidence = _tagged(run, corpus)
    truth, errors = [list(sentence.tags) for sentence in sentences], []
    for i, pair in enumerate(zip(truth, found, strict=True)):
        errors.append((-sum(a != b for a, b in zip(*pair, strict=True)), i))
    worst = [
        Bad(-count, *(" ".join(part) for part in _marked(sentences[i].words, truth[i], found[i])))
        for count, i in sorted(errors)[:WORST]
        if count
    ]
    true, own = (list(itertools.chain(*rows)) for rows in (truth, found))
    return _judged(true, own, np.concatenate(confidence), seen=seen, worst=worst, score="wrong tags")


def _tagged(run: "Run", corpus: TaggedCorpus) -> tuple[list[list[str]], list[np.ndarray]]:
    """The tags of each sentence, and the probability of each."""
    batches = Buckets(corpus.lengths, TOGETHER, corpus.batch, max_tokens=TOKENS_TOGETHER)
    found: list[list[str]] = [[]] * len(corpus.lengths)
    confidence: list[np.ndarray] = [np.zeros(0)] * len(found)
    with evaluating(run.model) as device:
        for batch in batches.read(batches.in_order()):
            scores = run.model(batch.to(device))
            tags = run.model.decode(scores, batch.lengths)
            shares = run.model.probabilities(scores, batch.lengths, tags)
            for row, own, some in zip(batch.rows.tolist(), tags, shares, strict=True):
                found[row], confidence[row] = [corpus.tag_names[tag] for tag in own], np.array(some)
    return found, confidence


def _marked(words: Sequence[str], truth: Sequence[str], found: Sequence[str]) -> tuple[Sequence[str], ...]:
    """A sentence, and the tags where they differ: ``word/TAG``."""
    wrong = [(word, a, b) for word, a, b in zip(words, truth, found, strict=True) if a != b]
    return words, [f"{word}/{a}" for word, a, _ in wrong], [f"{word}/{b}" for word, _, b in wrong]


def _of_tokens(run: "Run", spec: str, file_format: str | None) -> Mistakes:
    """The lines, or blocks of a running text, with the highest loss per token are the worst."""
    task, tokenizer = run.task, run.tokenizer
    data = task.read(spec, "test", run.vocabulary, file_format=file_format)
    whole: Corpus = data.corpus if hasattr(data, "corpus") else data
    corpus = _beginning(whole)
    size = len(corpus.ids)
    losses, best, confidence = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(size)
    for places, shares in log_probabilities(run, corpus, every=getattr(task, "every", None)):
        values, tokens = shares.cpu().max(1)
        best[places], confidence[places] = tokens.numpy(), values.exp().numpy()
        losses[places] = -shares.cpu().numpy()[np.arange(len(places)), corpus.ids[places]]
    starts = np.arange(0, size, BLOCK) if corpus.ends is None else np.concatenate([[0], corpus.ends[:-1]])
    ends = np.append(starts[1:], size)
    means = np.add.reduceat(losses, starts) / (ends - starts)
    worst = [
        Bad(float(means[i]), tokenizer.decode(corpus.ids[starts[i] : ends[i]].tolist()))
        for i in np.argsort(-means, kind="stable")[:WORST].tolist()
    ]
    truth, found = ([name_of(tokenizer, token) for token in ids.tolist()] for ids in (corpus.ids, best))
    seen = _seen(size, len(whole.ids), "tokens")
    return _judged(truth, found, confidence, seen=seen, worst=worst, score="nats per token", matrix=False)


def _beginning(corpus: Corpus) -> Corpus:
    """Of a text: `TOKENS` tokens, or as many whole lines as have no more; one line at least."""
    if corpus.ends is None:
        return Corpus(np.asarray(corpus.ids[:TOKENS]), None, Statistics())
    lines = max(1, int((corpus.ends <= TOKENS).sum()))
    return Corpus(np.asarray(corpus.ids[: corpus.ends[lines - 1]]), corpus.ends[:lines], Statistics())


def _of_pairs(run: "Run", spec: str, file_format: str | None) -> Mistakes:
    """The answers least like their targets, by chrF of the sentence, are the worst."""
    task: Any = run.task
    pairs = list(itertools.islice(task.pairs(spec, "test", file_format), PAIRS + 1))
    seen = f"the first {PAIRS:,} pairs" if len(pairs) > PAIRS else f"all {len(pairs):,} pairs"
    pairs = pairs[:PAIRS]
    answers, targets = list(run.predict(pair.source for pair in pairs)), [pair.target for pair in pairs]
    measures = translation_measures(answers, targets)
    exact, statistics = measures["exact_match"].statistics[:, 0] > 0, measures["chrf"].statistics
    scores, together = measures["chrf"].compute(statistics), float(measures["chrf"].compute(statistics.sum(0)))
    worst = [
        Bad(float(scores[i]), pairs[i].source, targets[i], answers[i])
        for i in np.argsort(scores, kind="stable")[:WORST].tolist()
        if not exact[i]
    ]
    return Mistakes(seen, int(exact.sum()), len(pairs), [], worst, "chrF of the sentence, 0 to 100", chrf=together)


def _judged(
    truth: list[str],
    found: list[str],
    confidence: np.ndarray,
    *,
    seen: str,
    worst: list[Bad],
    score: str,
    matrix: bool = True,
) -> Mistakes:
    """Mistakes of predictions one by one, with a matrix of their labels if there is to be one."""
    right = np.array([a == b for a, b in zip(truth, found, strict=True)])
    wrong = Counter((a, b) for a, b in zip(truth, found, strict=True) if a != b)
    error, bins = calibration(confidence, right)
    labels = sorted({*truth, *found}) if matrix else []
    place = {label: i for i, label in enumerate(labels)}
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    if matrix:
        np.add.at(confusion, ([place[label] for label in truth], [place[label] for label in found]), 1)
    confused = [Confused(*pair, count) for pair, count in wrong.most_common(CONFUSED)]
    return Mistakes(
        seen, int(right.sum()), len(right), confused, worst, score, labels, confusion if matrix else None, bins, error
    )


def _seen(count: int, of: int, name: str) -> str:
    return f"all {of:,} {name}" if count == of else f"the first {count:,} of {of:,} {name}"
