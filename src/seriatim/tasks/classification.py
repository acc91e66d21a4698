"""Classification: a label for every text."""

import functools
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from ..config import Config, Fields, Rate
from ..config import Tokenizer as TokenizerConfig
from ..core.device_copies import to_device
from ..core.errors import InputError
from ..core.state import State
from ..data.batching import Buckets
from ..data.readers import LABELLED_SUFFIXES, Source
from ..data.repairs import Repairs
from ..data.tables import Labelled, read_labelled, with_spellings
from ..data.tokenizer_factory import fit_tokenizer
from ..data.vocabulary import Vocabulary, check_label
from ..decoding.ensemble import Classifiers
from ..evaluation.intervals import Measure, Metrics
from ..evaluation.label_metrics import Predictions, prediction_measures, prediction_metrics
from ..layers.positions import check_lengths, declared_positions, learned_positions
from ..models import Classifier
from ..models.bag import Bag, BlendedClassifier
from ..models.base_models import drop_words
from ..models.cross_entropy import SMALLEST
from ..models.word_reader import WordOptions, build_reader, refuse_contradictions
from ..training.adaptive_defaults import small_batches
from ..training.data_parts import Part
from ..training.task_data import Metric
from .base_tasks import (
    USUAL_WEIGHT,
    WEIGHTS,
    LabelledTask,
    listed,
    name_unseen,
    token_kind,
    warn_of_unseen,
    with_kind,
    with_model,
)
from .classification_view import ClassifierView
from .documents import DocumentBatch, Documents, batch_of, encode, label_probabilities, predictions
from .overlong import read_lengths, warn_of_long

INDEX_ALONE: Mapping[str, object] = {"characters": "none", "word_features": []}
"""Options of a classifier that reads no more of a token than its index."""
CLEARLY = 2.0
"""The usual weight of the simple baseline is kept unless another has a loss lower by so many standard errors."""
MAX_PROBABILITIES = 1000
"""The largest number of labels whose probabilities an answer gives."""


class Options(WordOptions):
    """Options of a classifier, beside those of its layer.

    The characters and features of words are read by default if the tokens are words.
    """

    word_dropout: Rate = 0.3
    """Rate at which a token that occurs once in the training texts is replaced by the unknown token while training, so
    that the model learns what to do with unknown tokens (Iyyer et al. 2015; Lample et al. 2016)."""
    pooling: Literal["final", "mean", "max", "attention"] = "final"
    """How the outputs of the layer become one vector."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether every class has the same total weight in training (balanced), however rare it is."""


class Classification(LabelledTask[Documents, DocumentBatch, Classifier]):
    """Label texts."""

    options: Options
    selects = "accuracy"
    own_options = Options
    former_options: ClassVar[Mapping[str, object]] = INDEX_ALONE
    works_causally = True
    items_name = "texts"
    suffixes = LABELLED_SUFFIXES
    baseline_name = "the most frequent label of the training data"
    simple_baseline: ClassVar[str | None] = "bag"
    usual_weight = USUAL_WEIGHT
    endpoint = "classify"
    usage = "seriatim predict {run} TEXTS"
    caution = "It knows the labels it was trained on, and gives one of them to every text."
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", 4, headline=True, more_is_better=True),
        Metric("macro_f1", "macro F1", 4, headline=True, more_is_better=True),
        Metric("loss", "loss (nats per text)", 4),
        Metric("calibration_error", "calibration error", 4),
    )
    counts = ("texts", "tokens", "unknown_tokens")
    label_unit = "texts"
    max_compared = 10_000

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults of every labelled task.

        The characters of tokens are not read by default if they are no words.
        """
        config = with_kind(config, "word")
        if token_kind(config) != "word":
            config = with_model(config, options={**INDEX_ALONE, **config.model.options})
        return super().with_defaults(config)

    @property
    def reads_characters(self) -> bool:
        """Whether the model reads characters of words."""
        return self.options.reads_characters

    def model_view(self, model: Classifier, vocabulary: Vocabulary) -> ClassifierView:
        """Return the view of one classifier."""
        read_rows = functools.partial(self.rows, split="test", labels=vocabulary.labels)
        read_documents = functools.partial(self.read, split="test", vocabulary=vocabulary)
        return ClassifierView(self.config, model, vocabulary, read_rows, read_documents)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizer, and the characters of words, and collect the labels in sorted order.

        Models that read no characters have them, too, so that the vocabularies of all classifiers are equal.
        """
        if self.reads_characters:
            refuse_contradictions(self.config, self.options)
        rows = list(self.rows(self.training_spec(), "train"))
        first = {str(row.label): row for row in reversed(rows)}
        for label, row in reversed(first.items()):
            check_label(label, f"{row.name}:{row.line}", "remove it from the label")
        labels = sorted(first)
        if len(labels) < 2:
            raise InputError(f"{rows[0].name}: every text has the label {labels[0]!r}; there is nothing to tell apart")
        tokenizers = {"tokenizer": fit_tokenizer(self.config.tokenizer, (row.text for row in rows))}
        if self.config.tokenizer.kind == "word":
            words = {word for row in rows for word in tokenizers["tokenizer"].prepare(row.text).split()}
            tokenizers["characters"] = fit_tokenizer(TokenizerConfig(kind="char"), sorted(words))
        return Vocabulary(tokenizers, labels)

    def make_model(self, vocabulary: Vocabulary) -> Classifier:
        """Build a classifier."""
        sizes, pooling = (vocabulary.tokenizer.vocabulary_size, len(vocabulary.labels)), self.options.pooling
        reader = build_reader(self.options, vocabulary)
        return Classifier.from_config(
            self.config.model, *sizes, pooling=pooling, options=self.layer_options, characters=reader
        )

    def rows(
        self,
        spec: str,
        split: str,
        file_format: str | None = None,
        repairs: Repairs | None = None,
        labels: Sequence[str] | None = None,
    ) -> Iterator[Labelled]:
        """Read the texts of ``spec`` with their labels; see `with_spellings` for ``labels`` and ``repairs``.

        The rows of a part and of the rest decide together which spellings are one label.
        """
        part, markers = self.part(spec, split), self.markers(spec, split, file_format)

        def read(repairs: Repairs) -> Iterator[Labelled]:
            repairs.markers = markers
            return self.all_rows(part, file_format, repairs)

        exact = self.config.data.spellings == "exact"
        rows = with_spellings(read, labels, repairs or self.new_repairs(), exact=exact)
        return part.chosen(rows, attrgetter("text"), attrgetter("label"))

    def all_rows(self, part: Part, file_format: str | None, repairs: Repairs) -> Iterator[Labelled]:
        """Read the rows of a part and of the rest."""
        data, wanted = self.config.data, file_format or self.config.data.format
        sources = self.sources(part.spec, part.split, wanted)
        return read_labelled(sources, file_format=wanted, text=data.text, label=data.label, repairs=repairs)

    def sides(self, spec: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the texts as they are written."""
        return [(row.text for row in self.all_rows(self.part(spec, split), file_format, Repairs()))]

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield texts with their labels."""
        return ((row.text, str(row.label)) for row in self.rows(spec, split))

    def measured_items(self, vocabulary: Vocabulary, spec: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield texts with their labels as the vocabulary spells them."""
        return ((row.text, (str(row.label),)) for row in self.rows(spec, split, labels=vocabulary.labels))

    def labels_of(self, answer: str) -> tuple[str]:
        """Return the label, which is the whole answer."""
        return (answer,)

    def why_undivided(self, share: str, *, none_held_out: bool) -> str:
        """Say also that the first text of each label, which is trained on, is the only one."""
        rows = set(self.labelled_items(self.training_spec(), "train"))
        texts, labels = ({row[i] for row in rows} for i in (0, 1))
        if none_held_out and len(labels) == len(rows) and len(texts) > 1:
            return "no label has two different texts"
        return super().why_undivided(share, none_held_out=none_held_out)

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Documents:
        """Read and encode labelled texts; warn of repairs, and of labels that never occur in training.

        Texts with such a label count as wrong. A text with more tokens than learned positions is refused.
        """
        repairs, numbers = self.new_repairs(vocabulary), {label: i for i, label in enumerate(vocabulary.labels)}
        texts, labels, digests, first = [], [], array("q"), dict[str, str]()
        for row in self.rows(spec, split, file_format, repairs, vocabulary.labels):
            if row.label not in numbers:
                numbers[row.label] = len(numbers)
                first[row.label] = f"{row.name}:{row.line}"
            texts.append(row.text)
            labels.append(numbers[row.label])
            digests.append(hash(row.text))
        repairs = self.reported(repairs, spec, split)
        data = self.encode(texts, labels, vocabulary)._replace(
            unseen=tuple(first), repairs=repairs, digests=np.array(digests)
        )
        repairs.warn()
        warn_of_long(data.texts.lengths, self.config, name=self.name_of(spec), items="texts")

        def place(index: int) -> str:
            row = next(itertools.islice(self.rows(spec, split, file_format), index, None))
            return f"{row.name}:{row.line}"

        check_lengths(declared_positions(self.config.model.options), data.texts.lengths, place)
        if first:
            count = data.counts()["unseen_labels"]
            if count == len(labels):
                raise InputError(
                    f"{name_unseen('label', first)}, nor does any other here; give data with the same labels"
                )
            warn_of_unseen("label", first, count, f"{count:,} of {len(labels):,} texts")
        return data

    def encode(self, texts: Sequence[str], labels: Sequence[int], vocabulary: Vocabulary) -> Documents:
        """Encode texts, given with the indices of their labels."""
        data = encode(texts, labels, vocabulary, characters=self.reads_characters)
        return data._replace(strings=texts) if self.keeps_strings else data

    @property
    def keeps_strings(self) -> bool:
        """Whether the texts themselves are kept, which a bag of n-grams reads."""
        return self.config.training.baseline == "simple"

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of texts and labels."""
        data = self.read(spec, split, vocabulary)
        names = data.label_names
        labels = Counter(names[label] for label in data.labels.tolist())
        return {
            **data.counts(),
            "longest_text": int(data.texts.lengths.max(initial=0)),
            "empty_texts": int((data.texts.lengths == 0).sum()),
            "labels": listed(labels),
            **(data.repairs.lines() if data.repairs else {}),
        }

    def batches(self, data: Documents) -> Buckets[DocumentBatch]:
        """Return batches of texts of similar length."""
        counts = np.bincount(data.labels, minlength=len(data.vocabulary.labels))
        balanced = len(data.labels) / (np.count_nonzero(counts) * counts.clip(1))
        weights = balanced if self.options.class_weights == "balanced" else None
        tokenizer, ids = data.vocabulary.tokenizer, data.texts.ids
        size = tokenizer.vocabulary_size
        once = None if tokenizer.unknown_id is None else np.bincount(ids, minlength=size)[:size] == 1
        make = functools.partial(batch_of, data, weights=weights, once=once)
        return Buckets(data.texts.lengths, self.batch_size, make)

    def recipe(self, train: Documents) -> Fields:
        """Return small batches for few texts, and much dropout."""
        return {"training.batch_size": small_batches(len(train.labels)), "model.dropout": 0.5}

    def loss(
        self, model: Classifier, batch: DocumentBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the cross-entropy of the labels."""
        device = model.embedding.weight.device
        weights = None if batch.weights is None else to_device(batch.weights, device)
        inputs = to_device(drop_words(batch.inputs, batch.once, self.options.word_dropout), device)
        spellings = batch.spellings and batch.spellings.to(device)
        return model.loss(inputs, batch.lengths, to_device(batch.labels, device), weights, spellings), None

    def evaluate(self, model: Classifier, data: Documents, **settings: object) -> Metrics:
        """Compute the metrics of `seriatim.evaluation.label_metrics`."""
        return _metrics(predictions(model, data), data)

    def measures(self, model: Classifier, data: Documents, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each text."""
        return prediction_measures(predictions(model, data), data.label_names)

    def examine(self, model: Classifier, data: Documents) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results from the same predictions."""
        found = predictions(model, data)
        return _metrics(found, data), prediction_measures(found, data.label_names)

    def combine(self, models: Sequence[Classifier]) -> Classifiers:
        """Return a classifier with the mean of the probabilities."""
        return Classifiers(models)

    def blend(self, model: Classifier, baseline: nn.Module, weight: float) -> BlendedClassifier:
        """Return a classifier with the weighted mean of the probabilities."""
        assert isinstance(baseline, Bag)
        return BlendedClassifier(model, baseline, weight)

    def best_weight(self, model: Classifier, baseline: nn.Module, data: Documents) -> float:
        """Return the weight nearest to `USUAL_WEIGHT` whose loss is not clearly above the lowest one.

        The lowest loss of some hundred texts is noisy, and favours the network, which was selected on the same data.
        """
        assert isinstance(baseline, Bag)
        network, simple = predictions(model, data).of_truth, predictions(baseline, data).of_truth
        known = np.isfinite(network)  # the label occurs in the training data
        shares = {weight: (1 - weight) * network[known] + weight * simple[known] for weight in (0.0, *WEIGHTS)}
        losses = {weight: -np.log(np.maximum(share, SMALLEST)) for weight, share in shares.items()}
        lowest = min(losses.values(), key=np.mean)
        near = [
            weight
            for weight, each in losses.items()
            if (each - lowest).mean() <= CLEARLY * (each - lowest).std() / len(each) ** 0.5
        ]
        return min(near, key=lambda weight: abs(weight - USUAL_WEIGHT))

    def baseline(self, train: Documents, valid: Documents, vocabulary: Vocabulary) -> Metrics:
        """Compute the accuracy of the label that is most frequent in training."""
        return {"accuracy": float((valid.labels == np.bincount(train.labels).argmax()).mean())}

    def describe(self, data: Documents) -> str:
        """Return the number of texts and tokens."""
        counts = data.counts()
        return f"{counts['texts']:,} texts ({counts['tokens']:,} tokens, {counts['unknown_tokens']:,} unknown)"

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[str]:
        """Read lines, or the texts of a table or of JSONL, depending on the name; labels are ignored."""
        wanted, column = file_format or "auto", self.config.data.text
        rows = read_labelled(sources, file_format=wanted, text=column, label=None, repairs=repairs)
        return (row.text for row in rows)

    def answer(
        self, model: Classifier, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Return the most probable label of each text, and the probability of each label; see `overlong`.

        Of more than `MAX_PROBABILITIES` labels, the probabilities of the most probable ones are returned.
        """
        data = self.encode(items, [0] * len(items), vocabulary)
        lengths = read_lengths(items, data.texts.lengths, learned_positions(model))
        warn_of_long(lengths, self.config, name="predict", items="texts")
        answers: list[Metrics] = [{}] * len(items)
        for rows, shares in label_probabilities(model, data._replace(texts=data.texts._replace(lengths=lengths))):
            for row, best, values in zip(rows.tolist(), shares.argmax(1).tolist(), shares, strict=True):
                names = vocabulary.labels
                if len(names) > MAX_PROBABILITIES:
                    order = np.argpartition(-values, MAX_PROBABILITIES)[:MAX_PROBABILITIES]
                    order = order[np.argsort(-values[order])]
                    names, values = [names[i] for i in order.tolist()], values[order]
                named = dict(zip(names, values.tolist(), strict=True))
                answers[row] = {"text": vocabulary.labels[best], "probabilities": named}
        return answers


def _metrics(found: Predictions, data: Documents) -> Metrics:
    metrics = prediction_metrics(found, data.label_names) | data.counts()
    return metrics | (data.repairs.facts() if data.repairs else {})
