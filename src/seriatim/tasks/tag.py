"""Tagging: a tag for every word of a sentence."""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..config import BATCH_SIZE, Config, Fields, Section, read_settings
from ..core.errors import InputError
from ..core.state import State
from ..data.arguments import check_text
from ..data.batching import Buckets
from ..data.conll import Sentence, write
from ..data.tag_sets import TagSet, marks_chunks
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus, word_ids
from ..data.vectors import read_vectors
from ..data.vocabulary import Vocabulary
from ..data.word_tokenizer import WordTokenizer
from ..evaluation.displayed_metrics import Metric
from ..evaluation.intervals import Measure, Metrics, mean, with_interval
from ..evaluation.label_metrics import tagging_measures, tagging_metrics
from ..layers.positions import learned_positions
from ..models.probabilities import checked_losses
from ..models.tagger import Options, Tagger, TaggerProduct, TagModel, refuse_contradictions, tagger
from .data_files import DataFiles
from .data_warnings import warn_of_long
from .defaults import BASELINE_WEIGHTS, USUAL_WEIGHT, network_defaults, small_batches, split_options, with_model
from .names import TASK_SUMMARIES
from .tag_explainer import explain_tagger
from .tagged import TaggedReader, parts_of, scored_batches, tag_corpus, untagged
from .task import Evaluator, ModelBuilder, Objective, Predictor, Selection, Task, TaskKind, evaluating

Item: TypeAlias = Sentence | str | Sequence[str]
"""What can be tagged: a sentence of a file in columns, a line of text, or a list of words."""


class TaggerBuilder(ModelBuilder[Tagger]):
    """Builds taggers, and products of them."""

    def build(self, vocabulary: Vocabulary) -> Tagger:
        """Build a tagger; by default it has a CRF where the tags mark chunks."""
        options, layer_options = split_options(Options, self.config)
        field = bool(TagSet.known(vocabulary.labels).style) if options.output is None else options.output == "crf"
        return tagger(options, self.config.model, layer_options, vocabulary, field=field)

    def initialise(self, model: Tagger, train: TaggedCorpus) -> dict[str, int]:
        """Copy vectors of words into the embedding, if there are any; return how many words of the data have one."""
        options, _ = split_options(Options, self.config)
        if options.vectors is None:
            return {}
        tokenizer, repairs = train.vocabulary.tokenizer, DataFiles(self.config).new_repairs()
        wanted = {tokenizer.describe(i) for i in range(2, tokenizer.vocabulary_size)}
        words, vectors = read_vectors(options.vectors, wanted, repairs)
        repairs.warn()
        if vectors.shape[1] != self.config.model.embedding_size:
            raise InputError(
                f"{options.vectors}: vectors of {vectors.shape[1]} numbers, model.embedding_size is "
                f"{self.config.model.embedding_size}; set it to {vectors.shape[1]}"
            )
        ids = word_ids(words, tokenizer).astype(np.int64)
        known = ids != WordTokenizer.unknown_id
        model.set_vectors(torch.from_numpy(ids[known]), torch.from_numpy(vectors[known]))
        return {"words_with_vectors": int(np.isin(np.unique(train.words), ids[known]).sum())}

    def combine(self, models: Sequence[Tagger]) -> TaggerProduct:
        """Return a tagger that multiplies the models' distributions."""
        return TaggerProduct(models)


class TaggerObjective(Objective[TaggedCorpus, TaggedBatch, Tagger]):
    """The cross-entropy of tags, or of sequences of tags."""

    def __init__(self, config: Config, evaluator: Evaluator[TaggedCorpus], items_name: str) -> None:
        super().__init__(config, evaluator, items_name)
        self.options, _ = split_options(Options, config)

    def batches(self, data: TaggedCorpus) -> Buckets[TaggedBatch]:
        """Return batches of sentences of similar length, which know the words that occur once."""
        once = data.seen_once() if self.options.word_dropout else None
        return Buckets(data.lengths, self.config.training.batch_size or BATCH_SIZE, lambda rows: data.batch(rows, once))

    def loss(
        self, model: Tagger, batch: TaggedBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the cross-entropy of tags, or of sequences of tags."""
        return model.loss(batch.to(model.output.weight.device)), None

    def check(self, train: TaggedCorpus, valid: TaggedCorpus | None) -> None:
        """See `check_tags`."""
        check_tags(train, valid, DataFiles(self.config).validation_name())


def check_tags(train: TaggedCorpus, valid: TaggedCorpus | None, validation_name: str) -> None:
    """Check that the loss and the metric that selects weights can be measured on the held-out data."""
    if valid is None or valid.tags is None:
        return
    if valid.unseen_tags() == len(valid.words):
        raise InputError(
            f"{validation_name}: none of its tags occurs in the training data; give held-out data with the same tags"
        )
    tags = (valid.tag_names[tag] for tag in valid.tags.tolist())
    if TagSet.known(train.vocabulary.labels).style and not marks_chunks(tags):
        raise InputError(
            f"{validation_name}: no chunks marked there (or more words with other tags), as there are in "
            "training; give held-out data tagged alike"
        )


class TagEvaluator(Evaluator[TaggedCorpus]):
    """Accuracy and F1 of taggers."""

    selects = "accuracy"
    baseline_name = "the most frequent tag of each word in the training data"
    counts = ("sentences", "tokens", "unknown_tokens", "unseen_tags")
    metrics = (
        Metric("f1", "F1", 4, headline=True, more_is_better=True),
        Metric("precision", "precision", 4, more_is_better=True),
        Metric("recall", "recall", 4, more_is_better=True),
        Metric("accuracy", "accuracy", 4, headline=True, more_is_better=True),
        Metric("loss", "loss (nats per word)", 4),
    )

    def evaluate(self, model: TagModel, data: TaggedCorpus, **settings: object) -> Metrics:
        """Compute the loss of tags that occur in training (NaN if none does), and `tagging_metrics` of all tags."""
        return _metrics(*self.tagged(model, data), data)

    def statistics(self, model: TagModel, data: TaggedCorpus, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each sentence."""
        return _measures(*self.tagged(model, data), data)

    def evaluate_with_statistics(self, model: TagModel, data: TaggedCorpus) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results from the same answers."""
        answers = self.tagged(model, data)
        return _metrics(*answers, data), _measures(*answers, data)

    def tagged(self, model: TagModel, data: TaggedCorpus) -> tuple[np.ndarray, list[list[str]]]:
        """Return for every sentence the summed −log P in nats with its number of tags, and the best tags."""
        predicted: list[list[str]] = [[]] * len(data.lengths)
        losses = np.zeros((len(predicted), 2))
        with evaluating(model):
            for batch, scores in scored_batches(model, data):
                losses[batch.rows, 0] = checked_losses(model.losses(scores, batch)).double().cpu().numpy()
                losses[batch.rows, 1] = batch.known().sum(1).cpu().numpy()
                for row, tags in zip(batch.rows.tolist(), model.decode(scores, batch.lengths), strict=True):
                    predicted[row] = [data.tag_names[tag] for tag in tags]
        return losses, predicted

    def selection(self, vocabulary: Vocabulary) -> Selection:
        """Return ``f1`` if the tags mark chunks, else ``accuracy``."""
        return Selection("f1" if TagSet.known(vocabulary.labels).style else "accuracy", more_is_better=True)

    def metrics_for(self, vocabulary: Vocabulary) -> tuple[Metric, ...]:
        """Return the metrics without F1, precision and recall where the tags mark no chunks."""
        if TagSet.known(vocabulary.labels).style:
            return self.metrics
        return tuple(one for one in self.metrics if one.key not in ("f1", "precision", "recall"))

    def trivial_baseline(self, train: TaggedCorpus, valid: TaggedCorpus, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of each word's most frequent tag; unknown words get the most frequent of all tags."""
        assert train.tags is not None
        counts = Counter(zip(train.words.tolist(), train.tags.tolist(), strict=True))
        best = {word: tag for (word, tag), _ in reversed(counts.most_common())}
        commonest = int(np.bincount(train.tags).argmax())
        best[WordTokenizer.unknown_id] = commonest
        words = iter(valid.words.tolist())
        tags = [[train.tag_names[best.get(next(words), commonest)] for _ in range(size)] for size in valid.lengths]
        metrics = tagging_metrics(valid.truth(), tags)
        return {one.key: metrics[one.key] for one in self.metrics if one.key in metrics}


def _metrics(losses: np.ndarray, predicted: list[list[str]], data: TaggedCorpus) -> Metrics:
    counts = {"unknown_tokens": data.unknown_words(), "unseen_tags": data.unseen_tags()}
    metrics = {**with_interval("loss", losses, mean), **tagging_metrics(data.truth(), predicted), **counts}
    if data.unseen:
        metrics["unseen"] = list(data.unseen)
    return metrics | data.repairs.facts()


def _measures(losses: np.ndarray, predicted: list[list[str]], data: TaggedCorpus) -> dict[str, Measure]:
    return {"loss": Measure(losses, mean), **tagging_measures(data.truth(), predicted)}


class TaggingSettings(Section):
    """What answers contain."""

    probabilities: bool = True
    """Return the probability of each tag, from a pass forward and backward over the sentence."""


class TagPredictor(Predictor[TagModel]):
    """Tags the words of sentences."""

    settings = TaggingSettings
    endpoint = "tag"
    batch_size = 1024
    label_unit = "words"
    max_compared = 2_000

    def __init__(self, config: Config) -> None:
        self.config = config

    def labels_of(self, answer: str) -> list[str]:
        """Return the tag of each word."""
        return answer.split()

    def check_item(self, item: object, name: str) -> None:
        """Accept a line of text, a list of words, or a `Sentence` of a file in columns; see `Predictor.check_item`."""
        if isinstance(item, Sentence):
            return
        if not isinstance(item, list | tuple):
            check_text(item, name)
            return
        for word in item:
            check_text(word, f"{name}: every word")
            if not word:
                raise InputError(f"{name}: a word is empty; remove it")

    def answer(
        self, model: TagModel, vocabulary: Vocabulary, items: Sequence[Item], **settings: object
    ) -> list[Metrics]:
        """Tag each item. A `Sentence` gives the lines of its file with new tags, other items one line.

        Where positions are learned, a sentence longer than they are is tagged in parts.
        """
        sentences = [_sentence(item) for item in items]
        limit = learned_positions(model)
        parts = [part for sentence in sentences for part in parts_of(sentence.words, limit)]
        corpus = TaggedCorpus(map(untagged, parts), vocabulary, labelled=False)
        warn_of_long(corpus.lengths, self.config, name="predict", items="sentences")
        wanted = read_settings(TaggingSettings, settings).probabilities
        tags, shares = list[list[str]]([[]] * len(parts)), list[list[float]]([[]] * len(parts))
        with evaluating(model):
            for row, best, shares[row] in tag_corpus(model, corpus, probabilities=wanted):
                tags[row] = [vocabulary.labels[tag] for tag in best]
        all_tags, all_shares, answers = itertools.chain(*tags), itertools.chain(*shares), list[Metrics]()
        for item, sentence in zip(items, sentences, strict=True):
            answers.append(_answer(item, sentence, list(itertools.islice(all_tags, len(sentence.words)))))
            if wanted:
                answers[-1]["probabilities"] = list(itertools.islice(all_shares, len(sentence.words)))
        return answers


def _sentence(item: Item) -> Sentence:
    if isinstance(item, Sentence):
        return item
    return untagged(item.split() if isinstance(item, str) else item)


def _answer(item: Item, sentence: Sentence, tags: list[str]) -> Metrics:
    """Return the answer to an item; its text is what a command prints, without the last line end."""
    text = write(item, tags).removesuffix("\n") if isinstance(item, Sentence) else " ".join(tags)
    return {"text": text, "words": sentence.words, "tags": tags}


class TagBlender:
    """Multiplies the distributions of a tagger and a CRF on attributes of words."""

    default_weight = USUAL_WEIGHT

    def __init__(self, evaluator: Evaluator[TaggedCorpus]) -> None:
        self.evaluator = evaluator

    def blend(self, model: Tagger, baseline: nn.Module, weight: float) -> TaggerProduct:
        """Return a tagger that multiplies both models' distributions."""
        assert isinstance(baseline, TagModel)
        return TaggerProduct([model, baseline], [1 - weight, weight])

    def best_weight(self, model: Tagger, baseline: nn.Module, data: TaggedCorpus) -> float:
        """Return the weight with the highest metric; of equal ones, the nearest to `USUAL_WEIGHT`.

        The lowest loss would favour the baseline, because networks are too certain of their tags.
        """
        key = self.evaluator.selection(data.vocabulary).key
        values = {0.0: self.evaluator.evaluate(model, data)[key]}
        for weight in BASELINE_WEIGHTS:
            values[weight] = self.evaluator.evaluate(self.blend(model, baseline, weight), data)[key]
        return max(values, key=lambda weight: (values[weight], -abs(weight - USUAL_WEIGHT)))


def defaults(config: Config) -> Config:
    """Fill in the defaults of networks on labelled data.

    Words have no hashed features by default if their characters are not read.
    """
    options = config.model.options
    if options.get("characters") == "none":
        config = with_model(config, options={"word_features": [], **options})
    return network_defaults(config, Options)


def data_defaults(config: Config, train: TaggedCorpus) -> Fields:
    """Return small batches for few sentences, much dropout, and a CRF for tags of chunks without types."""
    fields: Fields = {"training.batch_size": small_batches(len(train.lengths)), "model.dropout": 0.4}
    bare = TagSet.known(train.vocabulary.labels).style == "bare"
    return fields | ({"model.options.output": "crf"} if bare else {})


def open_task(config: Config) -> Task:
    """Compose the parts of tagging with a network."""
    options, _ = split_options(Options, config)
    reader = TaggedReader(config, scheme=options.scheme, reads_characters=options.reads_characters)
    evaluator = TagEvaluator()
    return Task(
        KIND,
        config,
        reader=reader,
        builder=TaggerBuilder(config),
        evaluator=evaluator,
        objective=TaggerObjective(config, evaluator, KIND.items_name),
        predictor=TagPredictor(config),
        blender=TagBlender(evaluator),
        explain=lambda tagger: explain_tagger(
            tagger, functools.partial(reader.sentences, split="test", labels=tagger.vocabulary.labels)
        ),
    )


KIND = TaskKind(
    name="tag",
    summary=TASK_SUMMARIES["tag"],
    open=open_task,
    evaluator=TagEvaluator,
    predictor=TagPredictor,
    usage="seriatim predict {run} SENTENCES",
    caution="It knows the tags it was trained on, and gives one of them to every word.",
    options=Options,
    reference_model="features",
    supports_unidirectional=True,
    items_name="sentences",
    defaults=defaults,
    check_config=lambda config: refuse_contradictions(config, split_options(Options, config)[0]),
    data_defaults=data_defaults,
)
