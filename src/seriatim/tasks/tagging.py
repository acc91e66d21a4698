"""Tagging: a tag for every word of a sentence."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Config, Fields, Section, read_settings
from ..core.errors import InputError
from ..core.state import State
from ..data.arguments import check_text
from ..data.batching import Buckets
from ..data.conll import Sentence, read_untagged, write
from ..data.readers import TAGGED_SUFFIXES, Source
from ..data.repairs import Repairs
from ..data.tag_sets import TagSet, marks_chunks
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus, fit_vocabulary, word_ids
from ..data.vectors import read_vectors
from ..data.vocabulary import Vocabulary
from ..data.word_tokenizer import WordTokenizer
from ..evaluation.intervals import Measure, Metrics, mean, with_interval
from ..evaluation.label_metrics import tagging_measures, tagging_metrics
from ..layers.positions import check_lengths, declared_positions, learned_positions
from ..models.probabilities import checked_losses
from ..models.tagger import Options, Tagger, TagModel, refuse_contradictions, tagger
from ..models.tagger_product import TaggerProduct
from ..training.adaptive_defaults import small_batches
from ..training.task import evaluating
from ..training.task_data import Metric
from .base_tasks import USUAL_WEIGHT, WEIGHTS, listed, warn_of_unseen, with_model
from .overlong import parts_of, warn_of_long
from .tagged_files import TaggedFiles
from .tagging_view import TaggerView, scored_batches, tag_corpus, untagged

Item: TypeAlias = Sentence | str | Sequence[str]
"""What can be tagged: a sentence of a file in columns, a line of text, or a list of words."""


class AnswerSettings(Section):
    """What answers contain."""

    probabilities: bool = True
    """Return the probability of each tag, from a pass forward and backward over the sentence."""


class Tagging(TaggedFiles[TaggedCorpus, TaggedBatch, Tagger]):
    """Tag words."""

    options: Options
    vectors: tuple[list[str], np.ndarray] | None = None
    selects = "accuracy"
    own_options = Options
    former_options: ClassVar[Mapping[str, object]] = {"word_features": []}
    works_causally = True
    tags_words = True
    label_unit = "words"
    max_compared = 2_000
    items_name = "sentences"
    suffixes = TAGGED_SUFFIXES
    baseline_name = "the most frequent tag of each word in the training data"
    simple_baseline: ClassVar[str | None] = "features"
    usual_weight = USUAL_WEIGHT
    answer_batch_size = 1024
    answer_settings = AnswerSettings
    endpoint = "tag"
    usage = "seriatim predict {run} SENTENCES"
    caution = "It knows the tags it was trained on, and gives one of them to every word."
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("f1", "F1", 4, headline=True, more_is_better=True),
        Metric("precision", "precision", 4, more_is_better=True),
        Metric("recall", "recall", 4, more_is_better=True),
        Metric("accuracy", "accuracy", 4, headline=True, more_is_better=True),
        Metric("loss", "loss (nats per word)", 4),
    )
    counts: ClassVar[tuple[str, ...]] = ("sentences", "tokens", "unknown_tokens", "unseen_tags")

    @property
    def scheme(self) -> str:
        """The scheme of tags that mark chunks, an option."""
        return self.options.scheme

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults of every labelled task.

        Words have no hashed features by default if their characters are not read.
        """
        options = config.model.options
        if options.get("characters") == "none":
            config = with_model(config, options={"word_features": [], **options})
        return super().with_defaults(config)

    def model_view(self, model: Tagger, vocabulary: Vocabulary) -> TaggerView:
        """Return the view of one tagger."""
        read_sentences = functools.partial(self.sentences, split="test", labels=vocabulary.labels)
        return TaggerView(self.config, model, vocabulary, read_sentences)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn words, characters and tags from the training sentences, and read the initial vectors, if any."""
        refuse_contradictions(self.config, self.options)
        sentences = self.sentences(self.training_spec(), "train")
        vocabulary = fit_vocabulary(sentences, self.config.tokenizer, characters=self.options.reads_characters)
        if self.options.output is None and TagSet.known(vocabulary.labels).style == "bare":
            self.options = self.options.model_copy(update={"output": "crf"})
            self.config.model.options["output"] = "crf"
        if self.options.vectors is not None:
            tokenizer = vocabulary.tokenizer
            words = {tokenizer.describe(i) for i in range(2, tokenizer.vocabulary_size)}
            repairs = self.new_repairs()
            self.vectors = read_vectors(self.options.vectors, words, repairs)
            repairs.warn()
            width, size = self.vectors[1].shape[1], self.config.model.embedding_size
            if width != size:
                raise InputError(
                    f"{self.options.vectors}: vectors of {width} numbers, model.embedding_size is {size}; "
                    f"set it to {width}"
                )
        return vocabulary

    def make_model(self, vocabulary: Vocabulary) -> Tagger:
        """Build a tagger, with the initial vectors of `learn_vocabulary`, if any."""
        # for chunks without types, the configuration of a run names the CRF, which earlier versions did not choose
        typed = TagSet.known(vocabulary.labels).style == "typed"
        field = typed if self.options.output is None else self.options.output == "crf"
        model = tagger(self.options, self.config.model, self.layer_options, vocabulary, field=field)
        if self.vectors is not None:
            ids, known = self.with_vector(vocabulary)
            model.set_vectors(torch.from_numpy(ids[known]), torch.from_numpy(self.vectors[1][known]))
        return model

    def selection_metric(self, vocabulary: Vocabulary) -> str:
        """Return ``f1`` if the tags mark chunks, else ``accuracy``."""
        return "f1" if TagSet.known(vocabulary.labels).style else "accuracy"

    def figures_for(self, vocabulary: Vocabulary) -> tuple[Metric, ...]:
        """Return the figures without F1, precision and recall where the tags mark no chunks."""
        if TagSet.known(vocabulary.labels).style:
            return self.figures
        return tuple(figure for figure in self.figures if figure.key not in ("f1", "precision", "recall"))

    def named_files(self) -> dict[str, str]:
        """Return the files of every task, and that of the vectors."""
        vectors = self.options.vectors
        return super().named_files() | ({} if vectors is None else {"model.options.vectors": vectors})

    def with_vector(self, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Return the id of each word that has a vector, and whether it is in the vocabulary."""
        assert self.vectors is not None
        ids = word_ids(self.vectors[0], vocabulary.tokenizer).astype(np.int64)
        return ids, ids != WordTokenizer.unknown_id

    def labels_of(self, answer: str) -> list[str]:
        """Return the tag of each word."""
        return answer.split()

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> TaggedCorpus:
        """Read and encode sentences; warn of repairs, and of tags that never occur in training and count as wrong.

        A sentence with more words than learned positions is refused.
        """
        repairs = self.new_repairs(vocabulary)
        corpus = TaggedCorpus(self.sentences(spec, split, file_format, repairs, vocabulary.labels), vocabulary)
        warn_of_long(corpus.lengths, self.config, name=self.name_of(spec), items="sentences")

        def place(index: int) -> str:
            sentences = self.sentences(spec, split, file_format, labels=vocabulary.labels)
            return next(itertools.islice(sentences, index, None)).place(0)

        check_lengths(declared_positions(self.config.model.options), corpus.lengths, place)
        corpus.repairs = self.reported(repairs, spec, split)
        corpus.repairs.warn()
        if corpus.unseen:
            count = corpus.unseen_tags()
            warn_of_unseen("tag", corpus.unseen, count, f"{count:,} word{'s' if count != 1 else ''}")
        return corpus

    def check(self, train: TaggedCorpus, valid: TaggedCorpus | None) -> None:
        """Check that the loss and the metric that selects weights can be measured on the held-out data."""
        super().check(train, valid)
        if valid is None or valid.tags is None:
            return
        if valid.unseen_tags() == len(valid.words):
            raise InputError(
                f"{self.validation_name()}: none of its tags occurs in the training data; give held-out data with the "
                "same tags"
            )
        tags = (valid.tag_names[tag] for tag in valid.tags.tolist())
        if TagSet.known(train.vocabulary.labels).style and not marks_chunks(tags):
            raise InputError(
                f"{self.validation_name()}: no chunks marked there (or more words with other tags), as there are in "
                "training; give held-out data tagged alike"
            )

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of sentences, words and tags."""
        corpus = self.read(spec, split, vocabulary)
        assert corpus.tags is not None
        counts = Counter(corpus.tag_names[tag] for tag in corpus.tags.tolist())
        return {
            "sentences": len(corpus.lengths),
            "tokens": len(corpus.words),
            "unknown_tokens": corpus.unknown_words(),
            "words_seen_once": int(corpus.seen_once().sum()),
            "longest_sentence": int(corpus.lengths.max(initial=0)),
            "unseen_tags": corpus.unseen_tags(),
            **self.training_statistics(corpus),
            "tags": listed(counts),
            **corpus.repairs.lines(),
        }

    def batches(self, data: TaggedCorpus) -> Buckets[TaggedBatch]:
        """Return batches of sentences of similar length, which know the words that occur once."""
        once = data.seen_once() if self.options.word_dropout else None
        return Buckets(data.lengths, self.batch_size, lambda rows: data.batch(rows, once))

    def recipe(self, train: TaggedCorpus) -> Fields:
        """Return small batches for few sentences, and much dropout."""
        return {"training.batch_size": small_batches(len(train.lengths)), "model.dropout": 0.4}

    def loss(
        self, model: Tagger, batch: TaggedBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the cross-entropy of tags, or of sequences of tags."""
        return model.loss(batch.to(model.output.weight.device)), None

    def evaluate(self, model: Tagger, data: TaggedCorpus, **settings: object) -> Metrics:
        """Compute the loss of tags that occur in training (NaN if none does), and `tagging_metrics` of all tags."""
        return _metrics(*self.tagged(model, data), data)

    def measures(self, model: Tagger, data: TaggedCorpus, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each sentence."""
        return _measures(*self.tagged(model, data), data)

    def examine(self, model: Tagger, data: TaggedCorpus) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results from the same answers."""
        answers = self.tagged(model, data)
        return _metrics(*answers, data), _measures(*answers, data)

    def tagged(self, model: Tagger, data: TaggedCorpus) -> tuple[np.ndarray, list[list[str]]]:
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

    def combine(self, models: Sequence[Tagger]) -> TaggerProduct:
        """Return a tagger that multiplies the models' distributions."""
        return TaggerProduct(models)

    def blend(self, model: Tagger, baseline: nn.Module, weight: float) -> TaggerProduct:
        """Return a tagger that multiplies both models' distributions."""
        assert isinstance(baseline, TagModel)
        return TaggerProduct([model, baseline], [1 - weight, weight])

    def best_weight(self, model: Tagger, baseline: nn.Module, data: TaggedCorpus) -> float:
        """Return the weight with the highest metric; of equal ones, the nearest to `USUAL_WEIGHT`.

        The lowest loss would favour the baseline, because networks are too certain of their tags.
        """
        key, values = self.selection_metric(data.vocabulary), {0.0: self.evaluate(model, data)}
        for weight in WEIGHTS:
            both: Any = self.blend(model, baseline, weight)
            values[weight] = self.evaluate(both, data)
        return max(values, key=lambda weight: (values[weight][key], -abs(weight - USUAL_WEIGHT)))

    def baseline(self, train: TaggedCorpus, valid: TaggedCorpus, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of each word's most frequent tag; unknown words get the most frequent of all tags."""
        assert train.tags is not None
        counts = Counter(zip(train.words.tolist(), train.tags.tolist(), strict=True))
        best = {word: tag for (word, tag), _ in reversed(counts.most_common())}
        commonest = int(np.bincount(train.tags).argmax())
        best[WordTokenizer.unknown_id] = commonest
        words = iter(valid.words.tolist())
        tags = [[train.tag_names[best.get(next(words), commonest)] for _ in range(size)] for size in valid.lengths]
        metrics = tagging_metrics(valid.truth(), tags)
        return {figure.key: metrics[figure.key] for figure in self.figures if figure.key in metrics}

    def describe(self, data: TaggedCorpus) -> str:
        """Return the number of sentences and words, and how many words are known."""
        vectors = "".join(f", {count:,} words with a vector" for count in self.training_statistics(data).values())
        return f"{len(data.lengths):,} sentences ({len(data.words):,} words, {data.unknown_words():,} unknown){vectors}"

    def training_statistics(self, train: TaggedCorpus) -> Metrics:
        """Return how many different words have a vector, if vectors were read."""
        if self.vectors is None:
            return {}
        ids, known = self.with_vector(train.vocabulary)
        return {"words_with_vectors": int(np.isin(np.unique(train.words), ids[known]).sum())}

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[Sentence | str]:
        """Read the sentences of files in columns, which the tags of a model help to recognize, or lines of text."""
        column, labels = self.config.data.column, vocabulary.labels
        return read_untagged(sources, file_format=file_format, column=column, labels=labels, repairs=repairs)

    def check_item(self, item: object, name: str) -> None:
        """Accept a line of text, a list of words, or a `Sentence` of a file in columns; see `Task.check_item`."""
        if isinstance(item, Sentence):
            return
        if not isinstance(item, list | tuple):
            check_text(item, name)
            return
        for word in item:
            check_text(word, f"{name}: every word")
            if not word:
                raise InputError(f"{name}: a word is empty; remove it")

    def answer(self, model: Tagger, vocabulary: Vocabulary, items: Sequence[Item], **settings: object) -> list[Metrics]:
        """Tag each item. A `Sentence` gives the lines of its file with new tags, other items one line.

        Where positions are learned, a sentence longer than they are is tagged in parts.
        """
        sentences = [_sentence(item) for item in items]
        limit = learned_positions(model)
        parts = [part for sentence in sentences for part in parts_of(sentence.words, limit)]
        corpus = TaggedCorpus(map(untagged, parts), vocabulary, labelled=False)
        warn_of_long(corpus.lengths, self.config, name="predict", items="sentences")
        wanted = read_settings(AnswerSettings, settings).probabilities
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


def _metrics(losses: np.ndarray, predicted: list[list[str]], data: TaggedCorpus) -> Metrics:
    counts = {"unknown_tokens": data.unknown_words(), "unseen_tags": data.unseen_tags()}
    metrics = {**with_interval("loss", losses, mean), **tagging_metrics(data.truth(), predicted), **counts}
    if data.unseen:
        metrics["unseen"] = list(data.unseen)
    return metrics | data.repairs.facts()


def _measures(losses: np.ndarray, predicted: list[list[str]], data: TaggedCorpus) -> dict[str, Measure]:
    return {"loss": Measure(losses, mean), **tagging_measures(data.truth(), predicted)}


def _sentence(item: Item) -> Sentence:
    if isinstance(item, Sentence):
        return item
    return untagged(item.split() if isinstance(item, str) else item)


def _answer(item: Item, sentence: Sentence, tags: list[str]) -> Metrics:
    """Return the answer to an item; its text is what a command prints, without the last line end."""
    text = write(item, tags).removesuffix("\n") if isinstance(item, Sentence) else " ".join(tags)
    return {"text": text, "words": sentence.words, "tags": tags}
