"""Classification: a label for every text."""

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor, nn

from ..config import BATCH_SIZE, Config, Rate
from ..core.device_copies import to_device
from ..core.json_object import JsonObject
from ..core.state import State
from ..counting.bag import Bag, BlendedClassifier
from ..data.batches import Buckets
from ..data.vocabulary import Vocabulary
from ..decoding.ensemble import Classifiers
from ..evaluation.intervals import Measurement, Metric
from ..evaluation.label_metrics import Predictions, prediction_measures, prediction_metrics
from ..layers.positions import learned_positions
from ..models import Classifier
from ..models.base_models import drop_words
from ..models.characters import WordOptions, build_reader, require_words
from ..models.cross_entropy import SMALLEST
from .data_files import read_lengths, warn_of_long
from .defaults import (
    BASELINE_WEIGHTS,
    USUAL_WEIGHT,
    network_defaults,
    small_batches,
    split_options,
    token_kind,
    with_kind,
    with_model,
)
from .documents import (
    AnyClassifier,
    DocumentBatch,
    Documents,
    LabelledTextReader,
    batch_of,
    label_probabilities,
    predictions,
)
from .label_explainer import explain_classifier
from .names import TASK_SUMMARIES
from .task import Evaluator, ModelBuilder, Objective, Predictor, Task, TaskKind

CLEARLY = 2.0
"""The usual weight of the simple baseline is kept unless another has a loss lower by so many standard errors."""
SKEWED = 2 / 3
"""The share of the texts with the most frequent label above which macro F1 is the metric."""
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
    label_smoothing: Rate | None = None
    """Share of the probability of a label that is spread over all labels in the training loss, by default 0.1."""


class ClassifierBuilder(ModelBuilder[Classifier]):
    """Builds classifiers, and ensembles of them."""

    def build(self, vocabulary: Vocabulary) -> Classifier:
        """Build a classifier."""
        options, layer_options = split_options(Options, self.config)
        sizes = (vocabulary.tokenizer.vocabulary_size, len(vocabulary.labels))
        reader = build_reader(options, vocabulary)
        return Classifier.from_config(
            self.config.model, *sizes, pooling=options.pooling, options=layer_options, characters=reader
        )

    def combine(self, models: Sequence[Classifier]) -> Classifiers:
        """Return a classifier with the mean of the probabilities."""
        return Classifiers(models)


class ClassifierObjective(Objective[Documents, DocumentBatch, Classifier, Options]):
    """The cross-entropy of the labels."""

    def batches(self, data: Documents) -> Buckets[DocumentBatch]:
        """Return batches of texts of similar length."""
        counts = np.bincount(data.labels, minlength=len(data.vocabulary.labels))
        balanced = len(data.labels) / (np.count_nonzero(counts) * counts.clip(1))
        weights = balanced if self.options.class_weights == "balanced" else None
        if weights is None and self.config.training.metric == "macro_f1":
            weights = np.sqrt(balanced)  # halfway, as the simple baseline beside it has no weights
        tokenizer, ids = data.vocabulary.tokenizer, data.texts.ids
        size = tokenizer.vocabulary_size
        once = None if tokenizer.unknown_id is None else np.bincount(ids, minlength=size)[:size] == 1
        make = functools.partial(batch_of, data, weights=weights, once=once)
        return Buckets(data.texts.lengths, self.config.training.batch_size or BATCH_SIZE, make)

    def loss(
        self, model: Classifier, batch: DocumentBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the cross-entropy of the labels."""
        device = model.embedding.weight.device
        weights = None if batch.weights is None else to_device(batch.weights, device)
        inputs = to_device(drop_words(batch.inputs, batch.once, self.options.word_dropout), device)
        spellings = batch.spellings and batch.spellings.to(device)
        labels, smoothing = to_device(batch.labels, device), self.options.label_smoothing or 0.0
        return model.loss(inputs, batch.lengths, labels, weights, spellings, label_smoothing=smoothing), None


class LabelEvaluator(Evaluator[Documents]):
    """Accuracy, F1 and calibration of classifiers."""

    selects = "accuracy"
    baseline_name = "the most frequent label of the training data"
    counts = ("texts", "tokens", "unknown_tokens")
    metrics = (
        Metric("accuracy", "accuracy", 4, headline=True, more_is_better=True),
        Metric("macro_f1", "macro F1", 4, headline=True, more_is_better=True),
        Metric("loss", "loss (nats per text)", 4),
        Metric("calibration_error", "calibration error", 4),
    )

    def measure(self, model: AnyClassifier, data: Documents, **settings: object) -> Measurement:
        """Compute the metrics of `seriatim.evaluation.label_metrics`."""
        found = predictions(model, data)
        return Measurement(_metrics(found, data), prediction_measures(found, data.label_names))

    def evaluate(self, model: AnyClassifier, data: Documents, **settings: object) -> JsonObject:
        """Compute the metrics alone, without what each text adds, which is much where there are many labels."""
        return _metrics(predictions(model, data), data)

    def trivial_baseline(self, train: Documents, valid: Documents, vocabulary: Vocabulary) -> JsonObject:
        """Compute the accuracy and macro F1 of the label that is most frequent in training, as the only answer."""
        right = float((valid.labels == np.bincount(train.labels).argmax()).mean())
        return {"accuracy": right, "macro_f1": 2 * right / (1 + right) / max(1, len(np.unique(valid.labels)))}


def _metrics(found: Predictions, data: Documents) -> JsonObject:
    metrics = prediction_metrics(found, data.label_names) | data.counts()
    return metrics | (data.repairs.facts() if data.repairs else {})


class LabelPredictor(Predictor[AnyClassifier]):
    """Labels texts."""

    endpoint = "classify"
    label_unit = "texts"
    max_compared = 10_000

    def __init__(self, reader: LabelledTextReader) -> None:
        self.reader = reader

    def labels_of(self, answer: str) -> tuple[str]:
        """Return the label, which is the whole answer."""
        return (answer,)

    def answer(
        self, model: AnyClassifier, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[JsonObject]:
        """Return the most probable label of each text, and the probability of each label; see `read_lengths`.

        Of more than `MAX_PROBABILITIES` labels, the probabilities of the most probable ones are returned.
        """
        data = self.reader.encode(items, [0] * len(items), vocabulary)
        lengths = read_lengths(items, data.texts.lengths, learned_positions(model))
        warn_of_long(lengths, self.reader.config, name="predict", items="texts")
        answers: list[JsonObject] = [{}] * len(items)
        for rows, probabilities in label_probabilities(
            model, data._replace(texts=data.texts._replace(lengths=lengths))
        ):
            for row, best, values in zip(rows.tolist(), probabilities.argmax(1).tolist(), probabilities, strict=True):
                names = vocabulary.labels
                if len(names) > MAX_PROBABILITIES:
                    # Only those that are shown are sorted, because there may be very many labels.
                    order = np.argpartition(-values, MAX_PROBABILITIES)[:MAX_PROBABILITIES]
                    order = order[np.argsort(-values[order])]
                    names, values = [names[i] for i in order.tolist()], values[order]
                named = dict(zip(names, values.tolist(), strict=True))
                answers[row] = {"text": vocabulary.labels[best], "probabilities": named}
        return answers


class ClassifierBlender:
    """Averages the probabilities of a classifier and a bag of n-grams."""

    default_weight = USUAL_WEIGHT

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
        mixed = {weight: (1 - weight) * network[known] + weight * simple[known] for weight in (0.0, *BASELINE_WEIGHTS)}
        losses = {weight: -np.log(np.maximum(values, SMALLEST)) for weight, values in mixed.items()}
        lowest = min(losses.values(), key=np.mean)
        near = [
            weight
            for weight, each in losses.items()
            if (each - lowest).mean() <= CLEARLY * (each - lowest).std() / len(each) ** 0.5
        ]
        return min(near, key=lambda weight: abs(weight - USUAL_WEIGHT))


def defaults(config: Config) -> Config:
    """Fill in the defaults of networks on labelled data; characters of tokens are not read if these are no words."""
    config = with_kind(config, "word")
    if token_kind(config) != "word":
        config = with_model(config, options={"characters": "none", "word_features": [], **config.model.options})
    return network_defaults(config, Options)


def check_config(config: Config) -> None:
    """Raise InputError if the options of characters contradict the tokens."""
    options, _ = split_options(Options, config)
    if options.reads_characters:
        require_words(config, options)


def data_defaults(config: Config, train: Documents) -> JsonObject:
    """Return small batches for few texts, much dropout and smoothing, and a metric.

    The metric is macro F1 if one label is by far the first: where nearly all texts have one label, a model that always
    answers with it has a high accuracy.
    """
    metric = "macro_f1" if np.bincount(train.labels).max() > SKEWED * len(train.labels) else "accuracy"
    fields = {"training.batch_size": small_batches(len(train.labels)), "training.metric": metric}
    return fields | {"model.dropout": 0.5, "model.options.label_smoothing": 0.1}


def open_task(config: Config) -> Task:
    """Compose the parts of classification with a network."""
    options, _ = split_options(Options, config)
    reader = LabelledTextReader(
        config,
        reads_characters=options.reads_characters,
        keeps_strings=config.training.baseline == "simple",
    )
    evaluator = LabelEvaluator()
    return Task(
        KIND,
        config,
        reader=reader,
        builder=ClassifierBuilder(config),
        evaluator=evaluator,
        objective=ClassifierObjective(config, evaluator, KIND.items_name, options),
        predictor=LabelPredictor(reader),
        blender=ClassifierBlender(),
        explain=lambda network: explain_classifier(network, reader),
    )


KIND = TaskKind(
    name="classify",
    summary=TASK_SUMMARIES["classify"],
    open=open_task,
    evaluator=LabelEvaluator,
    predictor=LabelPredictor,
    usage="seriatim predict {run} TEXTS",
    caution="It knows the labels it was trained on, and gives one of them to every text.",
    options=Options,
    reference_model="bag",
    supports_unidirectional=True,
    items_name="texts",
    defaults=defaults,
    check_config=check_config,
    data_defaults=data_defaults,
)
