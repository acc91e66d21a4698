"""What a kind of work is made of: narrow interfaces, and the frozen values that compose them.

A `TaskKind` is one kind of work for one family of models, such as tagging with networks, or tagging with a CRF that is
fitted directly. It does not depend on a run. `TaskKind.open` composes it for a configuration to a `Task`, whose parts
are each known only to those who need them: the training loop knows the `Objective` alone, the commands `predict` and
`serve` know the `Predictor`, and so on. Kinds of work for different families share readers and evaluators by value.
"""

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from ..config import Config, Section
from ..core.errors import NotSupportedError, UnknownNameError, check_text, nearest
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.repairs import Repairs, with_warnings
from ..data.sources import TEXT_SUFFIXES
from ..data.text import Source, read_chunks, read_items
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measurement, Metric, MetricsTable
from ..models.scheduled_sampling import ScheduledSampling
from ..processes.ranks import RankShard
from ..storage.weights import load_weights, no_larger_than
from .data_files import DataFiles, explain_equal_rows, usual_fraction
from .explainer import ExplainedModel, Explainer

NAMED_ROWS = 3
"""Rows of a batch that a message names."""


# Data and batches


class TaskBatch(Protocol):
    """A batch of sequences, or one window of them."""

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences in the data, from 0 ``(batch,)``; for a running text, the indices of its streams."""

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch, so that no state is carried into it."""

    @property
    def tokens(self) -> int:
        """Number of tokens read, from which the speed is computed."""

    @property
    def terms(self) -> int:
        """Number of terms that the loss sums over, for example tokens or documents."""


class TaskData(Protocol):
    """Data that a task has read."""

    @property
    def key(self) -> str:
        """An identifier that is equal for equal data read in the same way, and only then."""


# The types of a task whose kind is not known are `Any`: each part is only given what the other parts of its task made.
Data = TypeVar("Data", bound=TaskData, default=Any)
Batch = TypeVar("Batch", bound=TaskBatch, default=Any)
BatchRead = TypeVar("BatchRead", bound=TaskBatch, covariant=True)
Model = TypeVar("Model", bound=nn.Module, default=Any)
Options = TypeVar("Options", bound=Section, default=Any)


class TaskBatches(Protocol[BatchRead]):
    """The batches of a data set, in an order that depends only on the seed and the epoch."""

    def shuffled(self, seed: int, epoch: int) -> Sequence[np.ndarray]:
        """Return groups of rows in the order in which an epoch reads them."""

    def windows(self, groups: Sequence[np.ndarray]) -> int:
        """Return the number of batches that the groups make."""

    def read(self, groups: Sequence[np.ndarray], *, skip: int = 0) -> Iterator[BatchRead]:
        """Yield the batches, without the first ``skip``."""

    def read_shard(
        self, groups: Sequence[np.ndarray], shard: RankShard, *, skip: int = 0
    ) -> Iterator[BatchRead | TaskBatch]:
        """Yield the shard of each batch that one of several ranks computes, without the first ``skip``.

        All ranks have equally many batches: if a shard is empty, it is an `IdleBatch`.
        """


# The interfaces of a task's parts


class Reader(ABC, Generic[Data]):
    """Reads the data of a task: its vocabulary, encoded data, and the inputs of predictions."""

    tags_words: bool = False  # whether each word of an input has an answer, so that no boundary marker is left out

    def __init__(self, config: Config, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> None:
        self.config, self.files = config, DataFiles(config, suffixes)

    @abstractmethod
    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizers and collect the labels from the training data."""

    @abstractmethod
    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Data:
        """Read and encode data.

        Args:
            source: the name of the data, as ``data.train`` gives it.
            split: which split to read where the data has several: ``train``, ``valid`` or ``test``.
            vocabulary: encodes the data.
            file_format: the format of the files; None for ``data.format`` of the configuration.

        Raises:
            InputError: the data cannot be read.
        """

    @abstractmethod
    def describe(self, data: Data) -> str:
        """Return the size of some data in a few words."""

    @abstractmethod
    def count(self, source: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return statistics of data, by name. The arguments are those of `read`."""

    def check_readable(self, source: str, split: str) -> None:
        """Read data without a vocabulary and discard it, to find errors in it."""
        for _ in read_chunks(self.files.sources(source, split)):
            pass

    def tokenizer_sample(self, train: Data) -> str:
        """Say which fraction of the training data the tokenizer was learned from; empty if that was all."""
        return ""

    def training_statistics(self, train: Data) -> JsonObject:
        """Return statistics of the training data that `summary.json` records."""
        return {}

    # The validation split of data that comes without one

    def default_split(self) -> str:
        """Return what is held out by default: a fraction such as ``10%``, or ``none``."""
        return "none"

    def has_content(self, source: str, split: str) -> bool:
        """Return whether a split of the training data has anything to train or to measure with."""
        return True

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Explain why the validation split would be empty (``none_held_out``), or would take everything.

        It is called while ``data.valid`` holds nothing out.
        """
        return "it cannot be divided"

    def texts(self, source: str, split: str, file_format: str | None = None) -> list[Iterable[str]]:
        """Return the texts of some data as they are written, or the sources and the targets; nothing is read before."""
        return []

    # Inputs of predictions, and right answers

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[object]:
        """Read the items to answer: the lines of a text, or the texts of JSONL."""
        self.refuse_format(file_format)
        return read_items(sources, repairs)

    def refuse_format(self, file_format: str | None) -> None:
        """Raise InputError for a format other than plain lines, whose lines would be answered as something else."""
        if file_format not in (None, "auto", "text", "jsonl"):
            raise NotSupportedError(f"--format {file_format}: {self.config.task} answers lines; give text or jsonl")

    def inputs(self, vocabulary: Vocabulary, sources: Sequence[Source], file_format: str | None) -> Iterator[object]:
        """Read the items that a model with this vocabulary answers, and warn of repairs at the end."""
        read = functools.partial(self.items, sources, file_format, vocabulary)
        return with_warnings(read, self.input_repairs(vocabulary, sources, read))

    def input_repairs(
        self, vocabulary: Vocabulary, sources: Sequence[Source], read: Callable[..., Iterable[object]]
    ) -> Repairs:
        """Return a record of repairs for the inputs of a model, which ``read(repairs=...)`` reads from some files."""
        repairs = self.files.new_repairs(vocabulary)
        is_live = any(source.is_live for source in sources)  # then no text can be read twice
        if not self.tags_words:
            with warnings.catch_warnings():  # of what is read again
                warnings.simplefilter("ignore")
                repairs.markers = self.files.markers_in([] if is_live else [map(str, read(repairs=Repairs()))])
        return repairs

    def labelled_items(self, source: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield inputs, as a `Predictor` reads them, with the right answers; nothing where answers have no truth."""
        return iter(())

    def measured_items(self, vocabulary: Vocabulary, source: str, split: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the items that an `Evaluator` counts, as a `Predictor` reads them, each with its right answers.

        Labels are spelled as a model with this vocabulary spells them.
        """
        return ((text, (truth,)) for text, truth in self.labelled_items(source, split))


class LabelledReader(Reader[Data]):
    """Reads data of rows: an input with its right answer. `labelled_items` reads them."""

    def default_split(self) -> str:
        """Return the fraction of the rows."""
        return usual_fraction(sum(1 for _ in self.labelled_items(self.files.training_source(), "train")))

    def has_content(self, source: str, split: str) -> bool:
        """Return whether there is a row."""
        return next(iter(self.labelled_items(source, split)), None) is not None

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Say that all inputs are equal, or that chance puts them on one side."""
        inputs = [row for row, _ in self.labelled_items(self.files.training_source(), "train")]
        return explain_equal_rows(inputs, "inputs", none_held_out=none_held_out)

    def check_readable(self, source: str, split: str) -> None:
        """Read the data and discard it; see `Reader.check_readable`."""
        for _ in self.labelled_items(source, split):
            pass


class ModelBuilder(ABC, Generic[Model]):
    """Builds the model that a configuration describes."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> Model:
        """Build the model with newly initialized parameters."""

    def initialise(self, model: Model, train: Any) -> dict[str, int]:
        """Set parameters of a new model that a training names, such as vectors of words; return counts to report."""
        return {}

    def load(self, vocabulary: Vocabulary, weights: Path) -> nn.Module:
        """Build the model and load its parameters from a file."""
        with no_larger_than(weights):
            model = self.build(vocabulary)
        load_weights(model, weights)
        return model

    def combine(self, models: Sequence[Model]) -> nn.Module:
        """Combine several models into one that averages their probabilities, if the task supports ensembles."""
        raise NotSupportedError(f"ensembles are not supported for {self.config.task}; give one run")

    def card_rows(self, model: nn.Module, summary: JsonObject) -> list[tuple[str, str]]:
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


class Selection(NamedTuple):
    """The metric that selects the best weights: its key, and whether larger values are better."""

    key: str
    more_is_better: bool


class Evaluator(ABC, Generic[Data]):
    """Measures models on data."""

    metrics: tuple[Metric, ...]  # the metrics to display, in order, as far as a model has them
    counts: tuple[str, ...] = ()  # keys of the counts that are displayed with the metrics
    per_token: tuple[str, ...] = ()  # keys of metrics that need models with the same tokens to be compared
    selects: str = "loss"  # key of the metric that selects the best weights; see `selection`
    settings: type[Section] = Section  # keyword arguments of `measure` and `evaluate`
    baseline_name: str  # name of the simplest model, to which the metrics are compared
    chosen: str | None = None  # ``training.metric``, if it is given

    @abstractmethod
    def measure(self, model: Any, data: Data, **settings: object) -> Measurement:
        """Measure a model on some data, given fields of `settings`. The model is in evaluation mode."""

    def evaluate(self, model: Any, data: Data, **settings: object) -> JsonObject:
        """Compute the metrics alone."""
        return self.measure(model, data, **settings).metrics

    @abstractmethod
    def trivial_baseline(self, train: Data, valid: Data, vocabulary: Vocabulary) -> JsonObject:
        """Compute the metrics of the simplest model, `baseline_name`, as far as it has them."""

    def sample(self, data: Data, tokens: int | None) -> Data:
        """Return about so many tokens of a text, which stand for all of it; other data, and None, give all data."""
        return data

    def selection(self, vocabulary: Vocabulary) -> Selection:
        """Return the metric that selects the best weights: the one that is chosen, or the usual one.

        Raises:
            InputError: models with this vocabulary don't have the chosen metric.
        """
        key, metrics = self.chosen or self.usual(vocabulary), {one.key: one for one in self.metrics_for(vocabulary)}
        if self.chosen and key not in metrics:
            raise UnknownNameError(f"training.metric: these data have no {key}; {nearest(key, list(metrics))}")
        return Selection(key, key in metrics and metrics[key].more_is_better)

    def usual(self, vocabulary: Vocabulary) -> str:
        """Return the key of the metric that selects the best weights, unless another one is chosen."""
        return self.selects

    def metrics_for(self, vocabulary: Vocabulary) -> tuple[Metric, ...]:
        """Return the metrics that data with this vocabulary can have."""
        return self.metrics

    def tables(self, metrics: JsonObject) -> list[MetricsTable]:
        """Return the metrics that are shown in tables of their own."""
        return []


class Objective(ABC, Generic[Data, Batch, Model, Options]):
    """What a model is trained for, step by step; the training loop knows nothing else of a task."""

    options: Options
    """The options of the task, if it has any."""

    def __init__(self, config: Config, evaluator: Evaluator[Data], items_name: str, options: Any = None) -> None:
        self.config, self.evaluator, self.items_name, self.options = config, evaluator, items_name, options

    @property
    def by_steps(self) -> bool:
        """Whether training calls the layer once for each step: some read the model's own predictions, known later."""
        return isinstance(self.options, ScheduledSampling) and bool(self.options.scheduled_sampling)

    @abstractmethod
    def batches(self, data: Data) -> TaskBatches[Batch]:
        """Return the batches of some data for training."""

    @abstractmethod
    def loss(
        self, model: Model, batch: Batch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, State | None]:
        """Compute the training loss of a batch.

        Args:
            model: in training mode.
            batch: one of `batches`.
            state: the state carried from the previous batch; None where sequences begin.
            progress: the fraction of the training budget that is spent, 0 to 1.

        Returns:
            The sum of −log P over the terms of the batch, in nats, and the state to carry on, if any.
        """

    def validate(self, model: Model, data: Data) -> JsonObject:
        """Compute the metrics that are measured repeatedly in training, with ``loss`` and the one of `selection`."""
        return self.evaluator.evaluate(model, self.evaluator.sample(data, self.config.training.validate_tokens))

    def carried_state(self, model: Model) -> State | None:
        """Return an example of the state that is carried from batch to batch, or None if none is."""
        return None

    def name_batch(self, batch: Batch) -> str:
        """Return in words which of the training data is in a batch, counted from 1 like the lines of a file."""
        rows = [f"{row + 1:,}" for row in sorted(batch.rows.tolist())]
        more = f" and {len(rows) - NAMED_ROWS} more" if len(rows) > NAMED_ROWS else ""
        return f"{self.items_name} {', '.join(rows[:NAMED_ROWS])}{more}"

    def check(self, train: Data, valid: Data | None) -> None:
        """Raise InputError if the data and the configuration do not fit each other."""


class Fitted(NamedTuple):
    """Facts about a model that was fitted and written: the tokens of its training data, and why the fitting ended."""

    tokens: int
    ended: str


class Fitter(ABC, Generic[Data, Options]):
    """Fits a model directly, without steps of gradient descent: by counting, or until its loss no longer falls."""

    counts: bool = True  # whether it counts in one pass, rather than fits weights until they converge

    def __init__(self, config: Config, options: Options) -> None:
        self.config, self.options = config, options

    @abstractmethod
    def fit(self, train: Data, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]) -> Fitted:
        """Fit the model, and write its weights with the metadata."""

    def check(self, train: Data, valid: Data | None) -> None:
        """Raise InputError if the data are too large for this model, or do not fit it."""

    def require_resources(self) -> None:
        """Raise InputError if a training needs something that is missing, such as other machines."""


class Predictor(ABC, Generic[Model]):
    """Answers items: labels, tags, translations or filled gaps."""

    settings: type[Section] = Section  # keyword arguments of `answer`
    endpoint: str = "answer"  # the end of the address at which a server answers: ``/v1/answer``
    batch_size: int = 256  # items answered at once; more need less padding and delay the first answer
    label_unit: str = "items"  # plural noun for what has a label; see `labels_of`
    max_compared: int = 5_000  # items whose answers a comparison keeps, at most
    timed_work: str = "reading and answering"  # what a comparison times, in words

    @abstractmethod
    def answer(self, model: Any, vocabulary: Vocabulary, items: Sequence[Any], **settings: object) -> list[JsonObject]:
        """Answer each item, a value that `check_item` accepts.

        Args:
            model: of the task, or an ensemble of such models.
            vocabulary: of the model.
            items: the items.
            settings: fields of `settings`.

        Returns:
            For each item ``text``, which the command prints, and details.
        """

    def check_item(self, item: object, name: str) -> None:
        """Raise InputError for an item from Python that `answer` cannot read: by default, anything but a text.

        The message calls the item ``name``.
        """
        check_text(item, name)

    def labels_of(self, answer: str) -> Sequence[str] | None:
        """Return the labels in an answer, or in a right answer of `Reader.labelled_items`; None if it has none.

        Two answers to one input have equal numbers of labels, which a comparison counts by class.
        """
        return None

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens that the time of an answer is divided by."""
        return len(vocabulary.tokenizer.encode(text))


class Blender(Protocol):
    """Joins a network with its simple baseline to one model, whose probabilities are a weighted mean."""

    default_weight: float
    """Weight of the baseline in answers, if no data are held out to choose it."""

    def blend(self, model: Any, baseline: nn.Module, weight: float) -> nn.Module:
        """Return both models as one, in which the baseline has the ``weight``."""

    def best_weight(self, model: Any, baseline: Any, data: Any) -> float:
        """Return the weight of the baseline, chosen on held-out data."""


# The values that compose them


@dataclass(frozen=True)
class Task:
    """One kind of work for one family of models, composed for a configuration."""

    kind: "TaskKind"
    config: Config
    reader: Reader
    builder: ModelBuilder
    evaluator: Evaluator
    objective: Objective | None = None  # None for a model that is fitted directly
    fitter: Fitter | None = None  # None for a model that is trained in steps
    predictor: Predictor | None = None  # None for a model that generates text
    blender: Blender | None = None  # None if the model cannot answer together with a simple baseline
    explain: Callable[[ExplainedModel], Explainer] | None = None  # composes what can be shown of a model

    def __repr__(self) -> str:
        return f"Task({self.config.task!r}, layer={self.config.model.layer!r})"

    @property
    def files(self) -> DataFiles:
        """The files that the configuration names."""
        return self.reader.files

    def explainer(self, model: nn.Module, vocabulary: Vocabulary, answering: nn.Module | None = None) -> Explainer:
        """Return what inspection and comparison can show of a model; by default, nothing but words.

        ``answering`` is the model together with its simple baseline, if both answer.
        """
        explained = ExplainedModel(self.config, model, vocabulary, model if answering is None else answering)
        return Explainer(explained) if self.explain is None else self.explain(explained)

    def check(self, train: Any, valid: Any) -> None:
        """Raise InputError if the data and the configuration do not fit each other."""
        for learner in (self.objective, self.fitter):
            if learner is not None:
                learner.check(train, valid)


@dataclass(frozen=True)
class TaskKind:
    """One kind of work for one family of models, whatever the configuration.

    ``open`` composes the parts for a configuration whose `defaults` are filled in. ``defaults`` fills in what needs no
    data; ``choose`` what the texts of the training data suggest, given also the configuration as the user gave it.
    ``check_config`` then refuses settings that contradict each other, before data are encoded, and ``data_defaults``
    returns values for what is still open, by dotted name, given the encoded training data.
    """

    name: str  # the value of ``task`` in a configuration
    summary: str  # what it does, in one sentence
    open: Callable[[Config], Task]
    evaluator: type[Evaluator]  # its class attributes are known without a configuration
    usage: str  # an example command for a trained run; ``{run}`` is replaced by its folder
    caution: str  # a sentence on the limits of the model, for the model card
    layer: str | None = None  # the value of ``model.layer`` for a model that is not built from layers
    model_name: str = "a network"  # what the model is called, with its article
    fitting: str = "trained"  # how it is learned: "trained" in steps, "counted", or "fitted" as a whole
    options: type[Section] | None = None  # fields of ``model.options`` that are not the layer's
    runtime_options: frozenset[str] = frozenset()  # options that do not change the model
    reference_model: str | None = None  # the layer of the simple baseline that every other model should exceed
    supports_unidirectional: bool = False  # whether the task can also be done by reading in one direction only
    generates_text: bool = False  # whether a model continues a text, so that its speed is that of sampling
    items_name: str = "lines"  # plural noun for the rows of a batch
    learning_rate: float = 3e-3  # with AdamW, for layers that declare no other; see benchmarks/learning_rates.py
    predictor: type[Predictor] | None = None  # its class attributes are known without a configuration
    defaults: Callable[[Config], Config] = lambda config: config
    choose: Callable[[Config, Config, Reader], Config] = lambda given, config, reader: config
    check_config: Callable[[Config], None] = lambda config: None
    data_defaults: Callable[[Config, Any], JsonObject] = lambda config, train: {}
    shared_defaults: Callable[[Config, Any], JsonObject] = lambda config, train: {}  # those that all rows share
    output_tokenizer: Callable[[Vocabulary], Tokenizer] = lambda vocabulary: vocabulary.tokenizer
    describe_model: Callable[[], dict[str, object]] | None = None  # what `seriatim.layers.describe` returns of layers

    @property
    def endpoint(self) -> str:
        """The end of the address at which a server answers."""
        return "completions" if self.predictor is None else self.predictor.endpoint

    @property
    def timed_work(self) -> str:
        """What a comparison times, in words."""
        return "writing a text" if self.predictor is None else self.predictor.timed_work


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put a model in evaluation mode without gradients for the duration, and yield the device it computes on."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        for module in training:
            module.training = True
