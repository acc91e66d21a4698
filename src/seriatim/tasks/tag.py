"""Tagging: a tag for every word of a sentence."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..config import BATCH_SIZE, Config, Section, read_settings
from ..core.errors import ConflictError, MalformedError, MismatchError, check_text
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batches import Buckets
from ..data.conll import Sentence, read_sentences, read_untagged, untagged, write
from ..data.repairs import Repairs
from ..data.sources import TAGGED_SUFFIXES
from ..data.tag_sets import TagSet, marks_chunks
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus, fit_vocabulary, word_ids
from ..data.text import Source
from ..data.tokenizers import WordTokenizer
from ..data.vectors import read_vectors
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Measurement, Metric, mean, with_interval
from ..evaluation.label_metrics import measure_tags
from ..layers.positions import learned_positions
from ..models.probabilities import checked_losses
from ..models.tagger import (
    Options,
    Tagger,
    TaggerProduct,
    TagModel,
    refuse_contradictions,
    scored_batches,
    tag_corpus,
    tagger,
)
from .data_files import (
    DataFiles,
    check_lengths,
    declared_positions,
    fraction_of,
    is_held_out,
    listed,
    warn_of_long,
    warn_of_unseen,
)
from .defaults import BASELINE_WEIGHTS, USUAL_WEIGHT, network_defaults, small_batches, split_options, with_model
from .names import TASK_SUMMARIES
from .tag_explainer import explain_tagger
from .task import Evaluator, LabelledReader, ModelBuilder, Objective, Predictor, Task, TaskKind, evaluating


class TaggedReader(LabelledReader[TaggedCorpus]):
    """Reads sentences with tags.

    ``scheme`` is that of tags that mark chunks; see `read_sentences`. ``reads_characters`` says whether the vocabulary
    has the characters of words.
    """

    tags_words = True

    def __init__(self, config: Config, *, scheme: Literal["bio", "iob1"], reads_characters: bool) -> None:
        super().__init__(config, TAGGED_SUFFIXES)
        if (config.data.column or "upos") in config.data.further:
            raise ConflictError("data.features: one of the columns is that of the tags (data.column); leave it out")
        self.scheme, self.reads_characters = scheme, reads_characters

    def learn_vocabulary(self) -> Vocabulary:
        """Learn words, characters and tags from the training sentences."""
        sentences = self.sentences(self.files.training_source(), "train")
        return fit_vocabulary(sentences, self.config.tokenizer, characters=self.reads_characters)

    def sentences(
        self,
        source: str,
        split: str,
        file_format: str | None = None,
        repairs: Repairs | None = None,
        labels: Sequence[str] | None = None,
    ) -> Iterator[Sentence]:
        """Read the sentences of ``source`` with their tags; see `read_sentences` for ``labels`` and ``repairs``."""
        data = self.config.data
        wanted, subset = file_format or data.format, self.files.subset(source, split)
        sentences = read_sentences(
            self.files.sources(subset.source, subset.split, wanted),
            file_format=wanted,
            column=data.column,
            further=data.further,
            scheme=self.scheme,
            labels=labels,
            exact=data.spellings == "exact",
            repairs=repairs or self.files.new_repairs(),
        )
        return subset.chosen(sentences, lambda sentence: " ".join(sentence.words))

    def labelled_items(self, source: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield sentences with their tags, both as words in one line."""
        return ((" ".join(one.words), " ".join(one.tags)) for one in self.sentences(source, split))

    def measured_items(self, vocabulary: Vocabulary, source: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield sentences with their tags as the vocabulary spells them, both as words in one line."""
        sentences = self.sentences(source, split, labels=vocabulary.labels)
        return ((" ".join(one.words), (" ".join(one.tags),)) for one in sentences)

    def has_content(self, source: str, split: str) -> bool:
        """Return whether there is a sentence; held-out ones must have tags that can be measured."""
        if split == "train":
            return super().has_content(source, split)
        trained = {tag for sentence in self.sentences(self.files.training_source(), "train") for tag in sentence.tags}
        labels = sorted(trained)
        held_out = [tag for sentence in self.sentences(source, split, labels=labels) for tag in sentence.tags]
        return not trained.isdisjoint(held_out) and (marks_chunks(held_out) or not TagSet.known(labels).style)

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Say that the split would have no tag in common with the rest, or no chunk; or see `LabelledReader`."""
        rows = (row for row, _ in self.labelled_items(self.files.training_source(), "train"))
        if none_held_out and any(is_held_out(row, fraction_of(fraction)) for row in rows):
            return "none of its tags would be in the rest, or no chunk in it"
        return super().explain_empty_split(fraction, none_held_out=none_held_out)

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> TaggedCorpus:
        """Read and encode sentences; warn of repairs, and of tags that never occur in training and count as wrong.

        A sentence with more words than learned positions is refused.
        """
        repairs = self.files.new_repairs(vocabulary)
        corpus = TaggedCorpus(self.sentences(source, split, file_format, repairs, vocabulary.labels), vocabulary)
        warn_of_long(corpus.lengths, self.config, name=self.files.name_of(source), items="sentences")

        def location(index: int) -> str:
            sentences = self.sentences(source, split, file_format, labels=vocabulary.labels)
            return next(itertools.islice(sentences, index, None)).location(0)

        check_lengths(declared_positions(self.config.model.options), corpus.lengths, location)
        corpus.repairs = self.files.repairs_to_report(repairs, source, split)
        corpus.repairs.warn()
        if corpus.unseen:
            count = corpus.unseen_tags()
            warn_of_unseen("tag", corpus.unseen, count, f"{count:,} word{'s' if count != 1 else ''}")
        return corpus

    def describe(self, data: TaggedCorpus) -> str:
        """Return the number of sentences and words, and how many words are known."""
        return f"{len(data.lengths):,} sentences ({len(data.words):,} words, {data.unknown_words():,} unknown)"

    def count(self, source: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of sentences, words and tags."""
        corpus = self.read(source, split, vocabulary)
        assert corpus.tags is not None
        counts = Counter(corpus.tag_names[tag] for tag in corpus.tags.tolist())
        return {
            "sentences": len(corpus.lengths),
            "tokens": len(corpus.words),
            "unknown_tokens": corpus.unknown_words(),
            "words_seen_once": int(corpus.seen_once().sum()),
            "longest_sentence": int(corpus.lengths.max(initial=0)),
            "unseen_tags": corpus.unseen_tags(),
            "tags": listed(counts),
            **corpus.repairs.lines(),
        }

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[Sentence | str]:
        """Read the sentences of files in columns, which the tags of a model help to recognize, or lines of text."""
        data, labels = self.config.data, vocabulary.labels
        return read_untagged(
            sources, file_format=file_format, column=data.column, further=data.further, labels=labels, repairs=repairs
        )


def segments_of(sentence: Sentence, limit: int | None) -> list[Sentence]:
    """Split a sentence into segments of at most ``limit`` words."""
    step = limit or max(1, len(sentence.words))
    parts = [slice(start, start + step) for start in range(0, len(sentence.words), step)]
    return [untagged(sentence.words[part], sentence.further[part]) for part in parts]


Item: TypeAlias = Sentence | str | Sequence[str]
"""What can be tagged: a sentence of a file in columns, a line of text, or a list of words."""


class TaggerBuilder(ModelBuilder[Tagger]):
    """Builds taggers, and products of them."""

    def build(self, vocabulary: Vocabulary) -> Tagger:
        """Build a tagger; by default it has a CRF where the tags mark chunks."""
        options, layer_options = split_options(Options, self.config)
        field = bool(TagSet.known(vocabulary.labels).style) if options.output is None else options.output == "crf"
        return tagger(options, self.config, layer_options, vocabulary, field=field)

    def initialise(self, model: Tagger, train: TaggedCorpus) -> dict[str, int]:
        """Copy vectors of words into the embedding, if there are any; return how many words of the data have one."""
        options, _ = split_options(Options, self.config)
        if options.vectors is None:
            return {}

        # Only vectors of known words are kept in memory; the first two ids are the boundary and the unknown word.
        tokenizer, repairs = train.vocabulary.tokenizer, DataFiles(self.config).new_repairs()
        wanted = {tokenizer.describe(i) for i in range(2, tokenizer.vocabulary_size)}
        words, vectors = read_vectors(options.vectors, wanted, repairs)
        repairs.warn()
        if vectors.shape[1] != self.config.model.embedding_size:
            raise MismatchError(
                f"{options.vectors}: vectors of {vectors.shape[1]} numbers, model.embedding_size is "
                f"{self.config.model.embedding_size}; set it to {vectors.shape[1]}"
            )

        # A vector never replaces that of the unknown word, which stands for many words.
        ids = word_ids(words, tokenizer).astype(np.int64)
        known = ids != WordTokenizer.unknown_id
        model.set_vectors(torch.from_numpy(ids[known]), torch.from_numpy(vectors[known]))
        return {"words_with_vectors": int(np.isin(np.unique(train.words), ids[known]).sum())}

    def combine(self, models: Sequence[Tagger]) -> TaggerProduct:
        """Return a tagger that multiplies the models' distributions."""
        return TaggerProduct(models)


class TaggerObjective(Objective[TaggedCorpus, TaggedBatch, Tagger, Options]):
    """The cross-entropy of tags, or of sequences of tags."""

    def batches(self, data: TaggedCorpus) -> Buckets[TaggedBatch]:
        """Return batches of sentences of similar length, which know the words that occur once."""
        once = data.seen_once() if self.options.word_dropout else None
        size = self.config.training.batch_size or BATCH_SIZE
        return Buckets(data.lengths, size, lambda rows: data.batch(rows, once), by_tokens=True)

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
        raise MismatchError(
            f"{validation_name}: none of its tags occurs in the training data; give held-out data with the same tags"
        )
    tags = (valid.tag_names[tag] for tag in valid.tags.tolist())
    if TagSet.known(train.vocabulary.labels).style and not marks_chunks(tags):
        raise MismatchError(
            f"{validation_name}: most tags are not those of chunks (such as B-PER), as they are in training; "
            "give held-out data that are tagged in the same way"
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

    def measure(self, model: TagModel, data: TaggedCorpus, **settings: object) -> Measurement:
        """Compute the loss of tags that occur in training (NaN if none does), and `measure_tags` of all tags."""
        losses, predicted = self.tagged(model, data)
        metrics, measures = measure_tags(data.truth(), predicted)
        counts = {"unknown_tokens": data.unknown_words(), "unseen_tags": data.unseen_tags()}
        metrics = {**with_interval("loss", losses, mean), **metrics, **counts}
        if data.unseen:
            metrics["unseen"] = list(data.unseen)
        return Measurement(metrics | data.repairs.facts(), {"loss": Measure(losses, mean), **measures})

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

    def usual(self, vocabulary: Vocabulary) -> str:
        """Return ``f1`` if the tags mark chunks, else ``accuracy``."""
        return "f1" if TagSet.known(vocabulary.labels).style else "accuracy"

    def metrics_for(self, vocabulary: Vocabulary) -> tuple[Metric, ...]:
        """Return the metrics without F1, precision and recall where the tags mark no chunks."""
        if TagSet.known(vocabulary.labels).style:
            return self.metrics
        return tuple(one for one in self.metrics if one.key not in ("f1", "precision", "recall"))

    def trivial_baseline(self, train: TaggedCorpus, valid: TaggedCorpus, vocabulary: Vocabulary) -> JsonObject:
        """Compute the metrics of each word's most frequent tag; unknown words get the most frequent of all tags."""
        assert train.tags is not None
        counts = Counter(zip(train.words.tolist(), train.tags.tolist(), strict=True))
        best = {word: tag for (word, tag), _ in reversed(counts.most_common())}
        commonest = int(np.bincount(train.tags).argmax())
        best[WordTokenizer.unknown_id] = commonest
        words = iter(valid.words.tolist())
        tags = [[train.tag_names[best.get(next(words), commonest)] for _ in range(size)] for size in valid.lengths]
        metrics = measure_tags(valid.truth(), tags).metrics
        return {one.key: metrics[one.key] for one in self.metrics if one.key in metrics}


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

    def __init__(self, config: Config) -> None:
        self.config = config

    def labels_of(self, answer: str) -> list[str]:
        """Return the tag of each word."""
        return answer.split()

    def check_item(self, item: object, name: str) -> None:
        """Accept a line of text, a list of words, or a `Sentence` of a file in columns; see `Predictor.check_item`."""
        if isinstance(item, Sentence):
            return
        if self.config.data.features:
            raise MismatchError(f"{name}: words alone, but the tagger also reads data.features; give a file in columns")
        if not isinstance(item, list | tuple):
            check_text(item, name)
            return
        for word in item:
            check_text(word, f"{name}: every word")
            if not word:
                raise MalformedError(f"{name}: a word is empty; remove it")

    def answer(
        self, model: TagModel, vocabulary: Vocabulary, items: Sequence[Item], **settings: object
    ) -> list[JsonObject]:
        """Tag each item. A `Sentence` gives the lines of its file with new tags, other items one line.

        Where positions are learned, a sentence longer than they are is tagged in segments.
        """
        # The segments of long sentences are tagged like sentences of their own, and their tags are joined at the end.
        sentences = [_sentence(item) for item in items]
        limit = learned_positions(model)
        segments = [segment for sentence in sentences for segment in segments_of(sentence, limit)]
        corpus = TaggedCorpus(segments, vocabulary, labelled=False)
        warn_of_long(corpus.lengths, self.config, name="predict", items="sentences")
        wanted = read_settings(TaggingSettings, settings).probabilities
        tags, confidence = list[list[str]]([[]] * len(segments)), list[list[float]]([[]] * len(segments))
        with evaluating(model):
            for row, best, confidence[row] in tag_corpus(model, corpus, probabilities=wanted):
                tags[row] = [vocabulary.labels[tag] for tag in best]

        # The tags of the segments follow each other, and each sentence takes as many as it has words.
        all_tags, all_confidence, answers = itertools.chain(*tags), itertools.chain(*confidence), list[JsonObject]()
        for item, sentence in zip(items, sentences, strict=True):
            answers.append(_answer(item, sentence, list(itertools.islice(all_tags, len(sentence.words)))))
            if wanted:
                answers[-1]["probabilities"] = list(itertools.islice(all_confidence, len(sentence.words)))
        return answers


def _sentence(item: Item) -> Sentence:
    if isinstance(item, Sentence):
        return item
    return untagged(item.split() if isinstance(item, str) else item)


def _answer(item: Item, sentence: Sentence, tags: list[str]) -> JsonObject:
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
        key, more = self.evaluator.selection(data.vocabulary)
        values = {0.0: self.evaluator.evaluate(model, data)[key]}
        for weight in BASELINE_WEIGHTS:
            values[weight] = self.evaluator.evaluate(self.blend(model, baseline, weight), data)[key]
        return max(values, key=lambda weight: ((1 if more else -1) * values[weight], -abs(weight - USUAL_WEIGHT)))


def defaults(config: Config) -> Config:
    """Fill in the defaults of networks on labelled data.

    Words have no hashed features by default if their characters are not read.
    """
    options = config.model.options
    if options.get("characters") == "none":
        config = with_model(config, options={"word_features": [], **options})
    return network_defaults(config, Options)


def data_defaults(config: Config, train: TaggedCorpus) -> JsonObject:
    """Return small batches for few sentences, much dropout, hidden words, and a CRF for tags of untyped chunks."""
    fields: JsonObject = {"training.batch_size": small_batches(len(train.lengths)), "model.dropout": 0.4}
    fields["model.options.hidden_words"] = 0.15
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
        objective=TaggerObjective(config, evaluator, KIND.items_name, options),
        predictor=TagPredictor(config),
        blender=TagBlender(evaluator),
        explain=lambda tagger: explain_tagger(tagger, reader.sentences),
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
