"""What a task gives to the training of a sequence model: its data, its model, its loss and its measure."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Config, Section
from ..core.errors import InputError
from ..core.state import State
from ..data.arguments import check_text
from ..data.paths import skipped_files
from ..data.readers import TEXT_SUFFIXES, Source, find_sources, read_items, read_pieces
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics, written
from ..models.bounds import no_larger_than
from ..storage.weights import load_weights

NAMED = 3
"""Rows of a batch that a message names."""


class Figure(NamedTuple):
    """A metric as people are shown it."""

    key: str
    name: str
    digits: int
    headline: bool = False
    """Whether it is shown after every validation."""

    def of(self, metrics: Metrics) -> str:
        """Its value as a table shows it."""
        return written(metrics[self.key], self.digits)

    def span(self, metrics: Metrics) -> str:
        """Its interval in words; empty where there is none."""
        low, high = metrics.get(f"{self.key}_low"), metrics.get(f"{self.key}_high")
        return "" if low is None or high is None else f"{written(low, self.digits)} to {written(high, self.digits)}"


class MetricsTable(NamedTuple):
    """Metrics that need a table of their own: headings, rows of cells, and a line below."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class TaskBatch(Protocol):
    """Some sequences, or a window of them."""

    @property
    def rows(self) -> np.ndarray:
        """Which of the data's sequences these are, from 0 ``(batch,)``; of a running text which of its parts."""

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin here, so that no state is carried to them."""

    @property
    def tokens(self) -> int:
        """Tokens read, for the speed."""

    @property
    def terms(self) -> int:
        """What the loss is a sum over: tokens, documents."""


class TaskBatches(Protocol):
    """Batches of a data set, in an order that is a function of seed and epoch alone."""

    def shuffled(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Groups of rows, as they are read in an epoch."""

    def windows(self, groups: list[np.ndarray]) -> int:
        """How many batches the groups make."""

    def read(self, groups: list[np.ndarray], *, skip: int = 0) -> Iterator[Any]:
        """The batches, the first ``skip`` left out."""


class TaskData(Protocol):
    """What a task has read: ``key`` is the same for the same data read the same way, and only for it."""

    key: str


class Task(ABC):
    """One kind of work for sequence models. Everything here is a function of the configuration.

    Attributes:
        selects: the metric that says which weights are best.
        more_is_better: of that metric.
        figures: what people are shown of the metrics, in order, as far as they are there.
        counts: what they are shown of the data measured.
        baseline_name: the simplest model that figures are held against.
        usage: what to do with a run, as a command; ``{run}`` stands for its folder.
        caution: what the model card says of its limits.
        settings: what `answer` takes by name.
        own_options: what stands beside the layer's own in ``model.options``.
        items_name: what the rows of a batch are.
        together: items answered at once: more means batches of more alike lengths, and later first answers.
        suffixes: of the files that are read of a folder.
        per_token: metrics that can be compared where the tokens are the same alone.
    """

    selects: str = "loss"
    more_is_better: ClassVar[bool] = False
    figures: ClassVar[tuple[Figure, ...]]
    counts: ClassVar[tuple[str, ...]] = ()
    baseline_name: ClassVar[str]
    usage: ClassVar[str]
    caution: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()
    items_name: ClassVar[str] = "lines"
    together: ClassVar[int] = 256
    suffixes: ClassVar[tuple[str, ...]] = TEXT_SUFFIXES
    per_token: ClassVar[tuple[str, ...]] = ()
    own_options: ClassVar[type[Section] | None] = None
    trainer: ClassVar[type[Any] | None] = None

    def __init__(self, config: Config) -> None:
        self.config = self.settle(config)

    @classmethod
    def settle(cls, config: Config) -> Config:
        """The configuration with what the task implies written out."""
        return config

    @abstractmethod
    def learn_vocabulary(self) -> Vocabulary:
        """Tokenizers and labels of the training data."""

    @abstractmethod
    def make_model(self, vocabulary: Vocabulary) -> nn.Module:
        """The model that the configuration describes, with fresh parameters."""

    def load_model(self, vocabulary: Vocabulary, weights: Path) -> nn.Module:
        """The model with parameters from a file.

        Raises:
            InputError: the file is missing, damaged, or another model's.
        """
        with no_larger_than(weights):
            model = self.make_model(vocabulary)
        load_weights(model, weights)
        return model

    @abstractmethod
    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Any:
        """The data that ``spec`` names; ``file_format`` None is the configuration's."""

    def skim(self, spec: str, split: str) -> None:
        """Reads the data that ``spec`` names and keeps nothing, to find what is wrong without a vocabulary.

        Raises:
            InputError: the data cannot be read.
        """
        wanted = self.config.data.format
        for _ in read_pieces(find_sources(spec, file_format=wanted, split=split, suffixes=self.suffixes)):
            pass

    @abstractmethod
    def batches(self, data: Any) -> TaskBatches:
        """For training."""

    @abstractmethod
    def loss(
        self, model: Any, batch: Any, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, State | None]:
        """The sum over the batch's terms of −log P, in nats, and the state to carry on, if any.

        Args:
            model: in training mode.
            batch: of `batches`.
            state: carried from the batch before; None where sequences begin.
            progress: share of the training's budget that is spent, 0 to 1.
        """

    @abstractmethod
    def evaluate(self, model: Any, data: Any, **settings: Any) -> Metrics:
        """The metrics of some data; the model is put in evaluation mode while this runs."""

    @abstractmethod
    def measures(self, model: Any, data: Any, **settings: Any) -> dict[str, Measure]:
        """Metrics by what every item adds to them, so that two models can be compared item by item."""

    def examine(self, model: Any, data: Any) -> tuple[Metrics, dict[str, Measure]]:
        """What `evaluate` and `measures` give, as far as can be in one pass."""
        return self.evaluate(model, data), self.measures(model, data)

    def tables(self, metrics: Metrics) -> list[MetricsTable]:
        """Metrics that are shown in tables of their own, beside the figures."""
        return []

    def name_batch(self, batch: Any) -> str:
        """What of the training data is in a batch, in words, counted from 1 as lines of a file are."""
        rows = [f"{row + 1:,}" for row in sorted(batch.rows.tolist())]
        more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        return f"{self.items_name} {', '.join(rows[:NAMED])}{more}"

    def validate(self, model: Any, data: Any) -> Metrics:
        """The metrics that are measured again and again while a model trains: ``loss`` and ``selects`` among them."""
        return self.evaluate(model, data)

    @abstractmethod
    def baseline(self, train: Any, valid: Any, vocabulary: Vocabulary) -> Metrics:
        """The metrics of the simplest model, as far as it has them."""

    @abstractmethod
    def describe(self, data: Any) -> str:
        """How much there is of some data, in a few words."""

    @abstractmethod
    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, Any]:
        """What the data that ``spec`` names is like, in numbers."""

    def written_by(self, vocabulary: Vocabulary) -> Tokenizer:
        """The tokenizer whose tokens are predicted, or read where none are."""
        return vocabulary.tokenizer

    def report(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """What the data that the configuration names is like, for ``seriatim check``: a part of it to its counts."""
        tokenizer = self.written_by(vocabulary)
        found: dict[str, Any] = {"tokenizer": {"kind": tokenizer.kind, "vocabulary_size": tokenizer.vocabulary_size}}
        for part in ("train", "valid", "test"):
            if spec := getattr(self.config.data, part):
                found[part] = self.count(spec, part, vocabulary)
                if skipped := skipped_files(spec, self.suffixes):
                    found[part]["skipped_files"] = skipped
        return found

    def named_files(self) -> dict[str, str]:
        """Every file, folder or glob that a training with this configuration reads, by the field that names it."""
        named = {"data.train": self.config.data.train, "data.valid": self.validation_spec()}
        return {field: spec for field, spec in named.items() if spec is not None}

    def facts(self, train: Any) -> Metrics:
        """What `summary.json` says of the training data."""
        return {}

    def check(self, train: Any, valid: Any | None) -> None:
        """Raises InputError where data and configuration do not fit each other."""
        self.check_held_out()

    def carried(self, model: Any) -> State | None:
        """A state of the kind that is carried from batch to batch; None where none is."""
        return None

    def items(self, sources: Sequence[Source], file_format: str | None) -> Iterator[Any]:
        """What is to be answered, one after another: the lines of a text, or the texts of JSONL.

        Raises:
            InputError: another format.
        """
        self.refuse_format(file_format)
        return read_items(sources)

    def refuse_format(self, file_format: str | None) -> None:
        """Raises InputError for a format whose lines, taken as they are, would be answered as something else."""
        if file_format not in (None, "auto", "text", "jsonl"):
            raise InputError(f"--format {file_format}: {self.config.task} answers lines; give text or jsonl")

    def check_item(self, item: Any, name: str) -> None:
        """Refuses an item passed from Python that `answer` cannot read.

        Args:
            item: as the caller gave it.
            name: which item it is, for the message.

        Raises:
            InputError: not a text.
        """
        check_text(item, name)

    def answer(self, model: Any, vocabulary: Vocabulary, items: Sequence[Any], **settings: Any) -> list[Metrics]:
        """An answer to each item: ``text``, what the command prints, and details of it.

        Raises:
            InputError: the task has no answers.
        """
        raise InputError("predict: a language model has no answers to lines; use generate, or score from Python")

    def card_rows(self, model: Any, summary: Metrics) -> list[tuple[str, str]]:
        """What the model card says of the model and of how it was trained: names and values."""
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

    def combine(self, models: Sequence[Any]) -> nn.Module:
        """Several models as one.

        Raises:
            InputError: the task knows no mean of models.
        """
        raise InputError(f"an ensemble of runs trained to {self.config.task} is not to be had; give one run")

    def training_spec(self) -> str:
        """``data.train``.

        Raises:
            InputError: none is named, or it cannot be read as often as it must be.
        """
        data = self.config.data
        if data.train is None:
            raise InputError("data.train: no text to learn from; give --data FILE, or --data builtin:python-docs")
        if data.train == data.valid == "-":
            raise InputError("data.valid: standard input is the training text already; give a file")
        return data.train

    def validation_spec(self) -> str | None:
        """``data.valid``; a built-in corpus brings its own."""
        train = self.config.data.train or ""
        if self.config.data.valid is None and train.startswith("builtin:") and train.count(":") == 1:
            return train
        return self.config.data.valid

    def check_held_out(self) -> None:
        """Raises InputError where a schedule or patience lacks held-out data."""
        settings = self.config.training
        stopping = settings.tolerance is not None or settings.patience is not None
        if self.validation_spec() is None and (settings.schedule == "plateau" or stopping):
            key = "tolerance and patience need" if stopping else "schedule: plateau needs"
            raise InputError(f"training.{key} held-out text; give --valid FILE")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Within it a model is in evaluation mode and without gradients; gives the device it computes on."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        for part in training:
            part.training = True
