"""The interface of a task: its data, its model, its loss, its metrics and its answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ..config import BATCH_SIZE, Config, Fields, Section
from ..core.errors import InputError
from ..core.state import State
from ..data.builtin import builtin_task
from ..data.paths import skipped_files
from ..data.readers import read_pieces
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics
from ..models.bounds import no_larger_than
from ..storage.weights import load_weights
from .estimator import Estimator
from .task_answers import TaskAnswers
from .task_data import Metric, MetricsTable, TaskBatch, TaskBatches, TaskData
from .task_view import TaskView

NAMED_ROWS = 3
"""Rows of a batch that a message names."""
Data = TypeVar("Data", bound=TaskData)
Batch = TypeVar("Batch", bound=TaskBatch)
Model = TypeVar("Model", bound=nn.Module)


def chosen_baseline(config: Config) -> Literal["simple", "none"]:
    """Return whether the simple baseline is trained, too: ``training.baseline``, or what the data suggest.

    A synthetic task studies what the network remembers. A baseline that solves it would hide that, unless it is given a
    weight in the answers.
    """
    if config.training.baseline is not None:
        return config.training.baseline
    is_synthetic = builtin_task(config.data.train) is not None
    return "none" if is_synthetic and not config.training.baseline_weight else "simple"


class Task(TaskAnswers[Model], ABC, Generic[Data, Batch, Model]):
    """One kind of work for sequence models. All its results are functions of the configuration.

    The type parameters are what `read` returns, the batches that `loss` takes, and the model.
    """

    selects: ClassVar[str] = "loss"  # key of the metric that selects the best weights; see `selection_metric`
    figures: ClassVar[tuple[Metric, ...]]  # the metrics to display, in order, as far as a model has them
    counts: ClassVar[tuple[str, ...]] = ()  # keys of the counts that are displayed with the metrics
    per_token: ClassVar[tuple[str, ...]] = ()  # keys of metrics that need models with the same tokens to be compared
    baseline_name: ClassVar[str]  # name of the simplest model, to which the metrics are compared
    simple_baseline: ClassVar[str | None] = None  # the standalone model that every other model should exceed
    usual_weight: ClassVar[float] = 0.0  # weight of the simple baseline in answers by default, if no data are held out
    model_name: ClassVar[str] = "a model"  # what the model of a standalone task is called
    usage: ClassVar[str]  # an example command for a trained run; ``{run}`` is replaced by its folder
    caution: ClassVar[str]  # a sentence on the limits of the model, for the model card
    estimator: ClassVar[type[Estimator]]  # the algorithm that fits the model
    learned: ClassVar[str] = "trained"  # how a model is learned: "trained" in steps, "counted", or "fitted" as a whole
    uses_learning_rate: ClassVar[bool] = True  # whether training takes steps, and so has a budget of steps or time
    own_options: ClassVar[type[Section] | None] = None  # fields of ``model.options`` that are not the layer's
    computing_options: ClassVar[frozenset[str]] = frozenset()  # own options that do not change the model
    former_options: ClassVar[Mapping[str, object]] = {}  # options that runs of earlier versions lack, with their values
    evaluation_settings: ClassVar[type[Section]] = Section  # keyword arguments of `evaluate` and `measures`
    answer_settings: ClassVar[type[Section]] = Section  # keyword arguments of `answer`
    items_name: ClassVar[str] = "lines"  # plural noun for the rows of a batch
    answer_batch_size: ClassVar[int] = 256  # items answered at once; more need less padding and delay the first answer
    works_causally: ClassVar[bool] = False  # whether the task can also be done by reading in one direction only
    endpoint: ClassVar[str] = "answer"  # the end of the address at which a server answers: ``/v1/answer``
    continues_text: ClassVar[bool] = False  # whether a model generates text, so that its speed is that of sampling
    timed_work: ClassVar[str] = "reading and answering"  # what a comparison times, in words
    label_unit: ClassVar[str] = "items"  # plural noun for what has a label; see `labels_of`
    max_compared: ClassVar[int] = 1_000  # items whose answers a comparison keeps, at most

    def __init__(self, config: Config) -> None:
        training = config.training.model_copy(update={"baseline": chosen_baseline(config)})
        self.config = self.with_defaults(config.model_copy(update={"training": training}))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(task={self.config.task!r}, layer={self.config.model.layer!r})"

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Return the configuration with the defaults of the task filled in."""
        return config

    def model_view(self, model: Model, vocabulary: Vocabulary) -> TaskView[Model]:
        """Return what inspection and comparison can ask about a model of the task; by default, nothing but words."""
        return TaskView(self.config, model, vocabulary)

    def require_resources(self) -> None:
        """Raise InputError if a training needs something that is missing, such as other machines."""

    @classmethod
    def describe_model(cls) -> dict[str, object]:
        """Return for a model in `seriatim.tasks.STANDALONE` what `seriatim.layers.describe` returns of layers."""
        return {}

    # Data

    @abstractmethod
    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizers and collect the labels from the training data."""

    @abstractmethod
    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Data:
        """Read and encode data.

        Args:
            spec: the name of the data, as ``data.train`` gives it.
            split: the part to read where the data has several: ``train``, ``valid`` or ``test``.
            vocabulary: encodes the data.
            file_format: the format of the files; None for ``data.format`` of the configuration.

        Raises:
            InputError: the data cannot be read.
        """

    def skim(self, spec: str, split: str) -> None:
        """Read data without a vocabulary and discard it, to find errors in it."""
        for _ in read_pieces(self.sources(spec, split)):
            pass

    @abstractmethod
    def batches(self, data: Data) -> TaskBatches[Batch]:
        """Return the batches of some data for training."""

    def name_batch(self, batch: Batch) -> str:
        """Return in words which of the training data is in a batch, counted from 1 like the lines of a file."""
        rows = [f"{row + 1:,}" for row in sorted(batch.rows.tolist())]
        more = f" and {len(rows) - NAMED_ROWS} more" if len(rows) > NAMED_ROWS else ""
        return f"{self.items_name} {', '.join(rows[:NAMED_ROWS])}{more}"

    @abstractmethod
    def describe(self, data: Data) -> str:
        """Return the size of some data in a few words."""

    @abstractmethod
    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of data, by name. The arguments are those of `read`."""

    def report(self, vocabulary: Vocabulary) -> dict[str, dict[str, object]]:
        """Return statistics of the tokenizer and of each part of the data that the configuration names."""
        tokenizer = self.written_by(vocabulary)
        described = {"kind": tokenizer.kind, "vocabulary_size": tokenizer.vocabulary_size}
        parts: dict[str, dict[str, object]] = {"tokenizer": described}
        data = self.config.data
        for part, spec in {"train": data.train, "valid": self.validation_spec(), "test": data.test}.items():
            if spec:
                parts[part] = self.count(spec, part, vocabulary)
                if skipped := skipped_files(spec, self.suffixes):
                    parts[part]["skipped_files"] = skipped
        return parts

    def written_by(self, vocabulary: Vocabulary) -> Tokenizer:
        """Return the tokenizer of what is predicted, or of the inputs if no tokens are predicted."""
        return vocabulary.tokenizer

    def tokenizer_sample(self, train: Data) -> str:
        """Say which part of the training data the tokenizer was learned from; return nothing if that was all."""
        return ""

    def training_statistics(self, train: Data) -> Metrics:
        """Return statistics of the training data that `summary.json` records."""
        return {}

    @property
    def batch_size(self) -> int:
        """Number of sequences of a batch; until it is chosen, the usual number."""
        return self.config.training.batch_size or BATCH_SIZE

    def recipe(self, train: Data) -> Fields:
        """Return defaults for this training data, by dotted name; see `seriatim.training.adaptive_defaults`."""
        return {}

    def check(self, train: Data, valid: Data | None) -> None:
        """Raise InputError if the data and the configuration do not fit each other."""
        self.check_held_out()

    def check_held_out(self) -> None:
        """Raise InputError if the schedule or early stopping needs held-out data and none is given."""
        settings = self.config.training
        stopping = settings.tolerance is not None or settings.patience is not None
        if self.validation_spec() is None and (settings.schedule == "plateau" or stopping):
            key = "tolerance and patience need" if stopping else "schedule: plateau needs"
            raise InputError(f"training.{key} held-out text; give --valid FILE")

    # Model

    @abstractmethod
    def make_model(self, vocabulary: Vocabulary) -> Model:
        """Build the model that the configuration describes, with newly initialized parameters."""

    def load_model(self, vocabulary: Vocabulary, weights: Path) -> Model:
        """Build the model and load its parameters from a file."""
        with no_larger_than(weights):
            model = self.make_model(vocabulary)
        load_weights(model, weights)
        return model

    def carried_state(self, model: Model) -> State | None:
        """Return an example of the state that is carried from batch to batch, or None if none is."""
        return None

    def combine(self, models: Sequence[Model]) -> nn.Module:
        """Combine several models into one that averages their probabilities, if the task supports ensembles."""
        raise InputError(f"ensembles are not supported for {self.config.task}; give one run")

    def card_rows(self, model: Model, summary: Metrics) -> list[tuple[str, str]]:
        """Return the rows of the model card that describe the model and its training: names and values."""
        config, training = self.config.model, self.config.training
        skipped = f" ({summary['skipped_steps']:,} skipped: not finite)" if summary["skipped_steps"] else ""
        steps = f"{summary['steps']:,} steps{skipped}"
        return [
            ("layer", f"{config.layer}, {config.num_layers} × {config.hidden_size}, embedding {config.embedding_size}"),
            ("parameters", f"{summary['parameters']:,}"),
            ("training", f"{summary['tokens']:,} tokens, {steps}, {summary['seconds']:.0f} s"),
            ("optimizer", f"{training.optimizer}, learning rate {training.learning_rate:g}, {training.schedule}"),
            ("precision", f"{summary['precision']} on {summary['device']}, {summary['threads']} threads"),
            ("seed", str(training.seed)),
        ]

    # Loss and metrics

    @property
    def trains_by_steps(self) -> bool:
        """Whether training calls the layer once for each step of a sequence instead of once for all steps."""
        return False

    @abstractmethod
    def loss(
        self, model: Model, batch: Batch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, State | None]:
        """Compute the training loss of a batch.

        Args:
            model: in training mode.
            batch: one of `batches`.
            state: the state carried from the previous batch; None where sequences begin.
            progress: the share of the training budget that is spent, 0 to 1.

        Returns:
            The sum of −log P over the terms of the batch, in nats, and the state to carry on, if any.
        """

    @abstractmethod
    def evaluate(self, model: Model, data: Data, **settings: object) -> Metrics:
        """Compute the metrics of some data, given fields of `evaluation_settings`.

        The model is in evaluation mode during the call.
        """

    @abstractmethod
    def measures(self, model: Model, data: Data, **settings: object) -> dict[str, Measure]:
        """Compute the contribution of every item to each metric, so that two models can be compared item by item.

        The arguments are those of `evaluate`.
        """

    def examine(self, model: Model, data: Data) -> tuple[Metrics, dict[str, Measure]]:
        """Return the results of `evaluate` and `measures`, in one pass where the task can."""
        return self.evaluate(model, data), self.measures(model, data)

    def validate(self, model: Model, data: Data) -> Metrics:
        """Compute the metrics that are measured repeatedly in training, with ``loss`` and `selection_metric`."""
        return self.evaluate(model, data)

    def selection_metric(self, vocabulary: Vocabulary) -> str:
        """Return the key of the metric that selects the best weights."""
        return self.selects

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value of the metric that selects the best weights is better."""
        return any(figure.more_is_better for figure in self.figures if figure.key == self.selects)

    def figures_for(self, vocabulary: Vocabulary) -> tuple[Metric, ...]:
        """Return the figures that data with this vocabulary can have."""
        return self.figures

    @abstractmethod
    def baseline(self, train: Data, valid: Data, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of the simplest model, as far as it has them."""

    def tables(self, metrics: Metrics) -> list[MetricsTable]:
        """Return the metrics that are shown in tables of their own."""
        return []

    def blend(self, model: Model, baseline: nn.Module, weight: float) -> nn.Module | None:
        """Return both models as one, whose probabilities are a mean with this weight of the simple baseline.

        None if the task does not support it.
        """
        return None

    def best_weight(self, model: Any, baseline: Any, data: Data) -> float:
        """Return the weight of the baseline, chosen on held-out data; by default `usual_weight`."""
        return self.usual_weight


AnyTask: TypeAlias = Task[Any, Any, Any]
"""A task whose types of data, batch and model are not known."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put a model in evaluation mode without gradients for the duration, and yield the device it computes on."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        for part in training:
            part.training = True
