"""Classification: a label for every text."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from ..config import Rate, Section
from ..core.errors import InputError, nearest, shown
from ..core.state import State
from ..data.batching import Buckets
from ..data.readers import LABELLED_SUFFIXES, Source
from ..data.tables import Labelled, read_labelled
from ..data.tokenizer_factory import fit_tokenizer
from ..data.vocabulary import Vocabulary, check_label
from ..decoding.ensemble import Classifiers
from ..evaluation.intervals import Measure, Metrics
from ..evaluation.label_metrics import classification_measures, classification_metrics
from ..layers.positions import learned_positions
from ..models import Classifier
from ..models.base_models import drop_words
from ..training.task_data import Metric
from .base_tasks import LabelledTask
from .classification_view import ClassifierView
from .documents import DocumentBatch, Documents, batch_of, encode, probabilities
from .overlong import read_lengths, warn_of_long


class Options(Section):
    """Options of a classifier, beside those of its layer."""

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
    works_causally = True
    items_name = "texts"
    suffixes = LABELLED_SUFFIXES
    baseline_name = "the commonest label"
    usage = "seriatim predict {run} TEXTS"
    caution = "It knows the labels it was trained on, and gives one of them to every text."
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", 4, headline=True, more_is_better=True),
        Metric("macro_f1", "macro F1", 4, headline=True, more_is_better=True),
        Metric("loss", "loss (nats per text)", 4),
        Metric("calibration_error", "calibration error", 4),
    )
    counts = ("texts", "tokens", "unknown_tokens")

    def model_view(self, model: Classifier, vocabulary: Vocabulary) -> ClassifierView:
        """Return the view of one classifier."""
        read_rows = functools.partial(self.rows, split="test")
        read_documents = functools.partial(self.read, split="test", vocabulary=vocabulary)
        return ClassifierView(self.config, model, vocabulary, read_rows, read_documents)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizer, and collect the labels in sorted order."""
        rows = list(self.rows(self.training_spec(), "train"))
        first = {str(row.label): row for row in reversed(rows)}
        for label, row in reversed(first.items()):
            check_label(label, f"{row.name}:{row.line}", "remove it from the label")
        labels = sorted(first)
        if len(labels) < 2:
            raise InputError(f"{rows[0].name}: every text has the label {labels[0]!r}; there is nothing to tell apart")
        return Vocabulary({"tokenizer": fit_tokenizer(self.config.tokenizer, (row.text for row in rows))}, labels)

    def make_model(self, vocabulary: Vocabulary) -> Classifier:
        """Build a classifier."""
        sizes, pooling = (vocabulary.tokenizer.vocabulary_size, len(vocabulary.labels)), self.options.pooling
        return Classifier.from_config(self.config.model, *sizes, pooling=pooling, options=self.layer_options)

    def rows(self, spec: str, split: str, file_format: str | None = None) -> Iterator[Labelled]:
        """Read the texts of ``spec`` with their labels."""
        data = self.config.data
        wanted = file_format or data.format
        return read_labelled(self.sources(spec, split, wanted), file_format=wanted, text=data.text, label=data.label)

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield texts with their labels."""
        return ((row.text, str(row.label)) for row in self.rows(spec, split))

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Documents:
        """Read and encode labelled texts; see `Task.read`."""
        numbers = {label: i for i, label in enumerate(vocabulary.labels)}
        texts, labels = [], []
        for row in self.rows(spec, split, file_format):
            if row.label not in numbers:
                hint = nearest(str(row.label), list(vocabulary.labels))
                raise InputError(f"{row.name}:{row.line}: the label {shown(row.label)} never stood in training; {hint}")
            texts.append(row.text)
            labels.append(numbers[row.label])
        data = encode(texts, labels, vocabulary)
        warn_of_long(data.texts.lengths, self.config, name=spec, items="texts")
        return data

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of texts and labels."""
        data = self.read(spec, split, vocabulary)
        labels = Counter(vocabulary.labels[label] for label in data.labels)
        return {
            **data.counts(),
            "longest_text": int(data.texts.lengths.max()),
            "empty_texts": int((data.texts.lengths == 0).sum()),
            "labels": [f"{label} {count:,}" for label, count in labels.most_common()],
        }

    def batches(self, data: Documents) -> Buckets[DocumentBatch]:
        """Return batches of texts of similar length."""
        counts = np.bincount(data.labels, minlength=len(data.vocabulary.labels))
        balanced = len(data.labels) / (np.count_nonzero(counts) * counts.clip(1))
        weights = balanced if self.options.class_weights == "balanced" else None
        tokenizer, ids = data.vocabulary.tokenizer, data.texts.ids
        once = None if tokenizer.unknown_id is None else np.bincount(ids, minlength=tokenizer.vocabulary_size) == 1
        make = functools.partial(batch_of, data, weights=weights, once=once)
        return Buckets(data.texts.lengths, self.config.training.batch_size, make)

    def loss(
        self, model: Classifier, batch: DocumentBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the cross-entropy of the labels."""
        device = model.embedding.weight.device
        weights = None if batch.weights is None else batch.weights.to(device)
        inputs = drop_words(batch.inputs, batch.once, self.options.word_dropout).to(device)
        return model.loss(inputs, batch.lengths, batch.labels.to(device), weights), None

    def evaluate(self, model: Classifier, data: Documents, **settings: object) -> Metrics:
        """Compute the metrics of `seriatim.evaluation.label_metrics`."""
        metrics = classification_metrics(data.labels, probabilities(model, data), data.vocabulary.labels)
        return metrics | data.counts()

    def measures(self, model: Classifier, data: Documents, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of each text."""
        return classification_measures(data.labels, probabilities(model, data), data.vocabulary.labels)

    def combine(self, models: Sequence[Classifier]) -> Classifiers:
        """Return a classifier with the mean of the probabilities."""
        return Classifiers(models)

    def baseline(self, train: Documents, valid: Documents, vocabulary: Vocabulary) -> Metrics:
        """Compute the accuracy of the label that is most frequent in training."""
        return {"accuracy": float((valid.labels == np.bincount(train.labels).argmax()).mean())}

    def describe(self, data: Documents) -> str:
        """Return the number of texts and tokens."""
        counts = data.counts()
        return f"{counts['texts']:,} texts ({counts['tokens']:,} tokens, {counts['unknown_tokens']:,} unknown)"

    def items(self, sources: Sequence[Source], file_format: str | None) -> Iterator[str]:
        """Read lines, or the texts of a table or of JSONL, depending on the name; labels are ignored."""
        rows = read_labelled(sources, file_format=file_format or "auto", text=self.config.data.text, label=None)
        return (row.text for row in rows)

    def answer(
        self, model: Classifier, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Return the most probable label of each text, and the probability of each label; see `overlong`."""
        data = encode(items, [0] * len(items), vocabulary)
        lengths = read_lengths(data.texts.lengths, learned_positions(model))
        warn_of_long(lengths, self.config, name="predict", items="texts")
        shares = probabilities(model, data._replace(texts=data.texts._replace(lengths=lengths)))
        return [
            {"text": vocabulary.labels[best], "probabilities": dict(zip(vocabulary.labels, row, strict=True))}
            for best, row in zip(shares.argmax(1).tolist(), shares.tolist(), strict=True)
        ]
