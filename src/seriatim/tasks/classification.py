"""Classification: a label for every text."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from ..config import Config, Rate, Section
from ..core.errors import InputError, nearest, shown
from ..core.state import State
from ..data.batching import Buckets
from ..data.readers import LABELLED_SUFFIXES, Source, find_sources
from ..data.tables import Labelled, read_labelled
from ..data.tokenizer_factory import fit_tokenizer
from ..data.vocabulary import Vocabulary, check_label
from ..decoding.ensemble import Classifiers
from ..evaluation.intervals import Measure, Metrics
from ..evaluation.label_metrics import classification_measures, classification_metrics
from ..layers.positions import learned_positions
from ..models import Classifier
from ..models.base_models import drop_words
from ..training.loop import Trainer
from ..training.task import Task
from ..training.task_data import Figure
from .classification_view import ClassifierView
from .documents import DocumentBatch, Documents, batch_of, encode, probabilities
from .options import seeing_everything, settled_options, split_options, with_kind
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


class Classification(Task[Documents, DocumentBatch, Classifier]):
    """Label texts."""

    selects = "accuracy"
    more_is_better = True
    own_options = Options
    works_causally = True
    items_name = "texts"
    suffixes = LABELLED_SUFFIXES
    estimator = Trainer
    baseline_name = "the commonest label"
    usage = "seriatim predict {run} TEXTS"
    caution = "It knows the labels it was trained on, and gives one of them to every text."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("accuracy", "accuracy", 4, headline=True),
        Figure("macro_f1", "macro F1", 4, headline=True),
        Figure("loss", "loss (nats per text)", 4),
        Figure("calibration_error", "calibration error", 4),
    )
    counts = ("texts", "tokens", "unknown_tokens")

    @classmethod
    def settle(cls, config: Config) -> Config:
        """Fill in the defaults: word tokens, layers that read in both directions, and the options of the task."""
        return settled_options(Options, seeing_everything(with_kind(config, "word")))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options, self.layer_options = split_options(Options, self.config)

    def view(self) -> type[ClassifierView]:
        """Return the view of classifiers."""
        return ClassifierView

    def model_view(self, model: Classifier, vocabulary: Vocabulary) -> ClassifierView:
        """Return the view of one classifier."""

        def read_documents(spec: str, file_format: str | None) -> Documents:
            return self.read(spec, "test", vocabulary, file_format=file_format)

        def read_rows(spec: str, file_format: str | None) -> Iterator[Labelled]:
            return self.rows(spec, "test", file_format)

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
        return Classifier.from_config(
            self.config.model,
            vocabulary.tokenizer.vocabulary_size,
            len(vocabulary.labels),
            pooling=self.options.pooling,
            options=self.layer_options,
        )

    def rows(self, spec: str, split: str, file_format: str | None = None) -> Iterator[Labelled]:
        """Read the texts of ``spec`` with their labels."""
        data = self.config.data
        wanted = file_format or data.format
        sources = find_sources(spec, file_format=wanted, split=split, suffixes=self.suffixes)
        return read_labelled(sources, file_format=wanted, text=data.text, label=data.label)

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
        found = encode(texts, labels, vocabulary)
        warn_of_long(found.lengths, self.config, name=spec, items="texts")
        return found

    def skim(self, spec: str, split: str) -> None:
        """Read the data and discard it; see `Task.skim`."""
        for _ in self.rows(spec, split):
            pass

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of texts and labels."""
        documents = self.read(spec, split, vocabulary)
        counts = Counter(vocabulary.labels[label] for label in documents.labels)
        return {
            "texts": len(documents.labels),
            "tokens": int(documents.lengths.sum()),
            "unknown_tokens": documents.unknown(),
            "longest_text": int(documents.lengths.max()),
            "empty_texts": int((documents.lengths == 0).sum()),
            "labels": [f"{label} {count:,}" for label, count in counts.most_common()],
        }

    def batches(self, data: Documents) -> Buckets[DocumentBatch]:
        """Return batches of texts of similar length."""
        counts = np.bincount(data.labels, minlength=len(data.vocabulary.labels))
        balanced = len(data.labels) / (np.count_nonzero(counts) * counts.clip(1))
        weights = balanced if self.options.class_weights == "balanced" else None
        tokenizer = data.vocabulary.tokenizer
        once = None if tokenizer.unknown_id is None else np.bincount(data.ids, minlength=tokenizer.vocabulary_size) == 1
        make = functools.partial(batch_of, data, weights=weights, once=once)
        return Buckets(data.lengths, self.config.training.batch_size, make)

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
        counts = {"texts": len(data.labels), "tokens": int(data.lengths.sum()), "unknown_tokens": data.unknown()}
        return {**metrics, **counts}

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
        return f"{len(data.labels):,} texts ({data.lengths.sum():,} tokens, {data.unknown():,} unknown)"

    def items(self, sources: Sequence[Source], file_format: str | None) -> Iterator[str]:
        """Read lines, or the texts of a table or of JSONL, depending on the name; labels are ignored."""
        rows = read_labelled(sources, file_format=file_format or "auto", text=self.config.data.text, label=None)
        return (row.text for row in rows)

    def answer(
        self, model: Classifier, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Return the most probable label of each text, and the probability of each label; see `overlong`."""
        data = encode(items, [0] * len(items), vocabulary)
        data = data._replace(lengths=read_lengths(data.lengths, learned_positions(model)))
        warn_of_long(data.lengths, self.config, name="predict", items="texts")
        found = probabilities(model, data)
        return [
            {"text": vocabulary.labels[best], "probabilities": dict(zip(vocabulary.labels, shares, strict=True))}
            for best, shares in zip(found.argmax(1).tolist(), found.tolist(), strict=True)
        ]
