"""A task and a layer as a user would write them outside the package: rating texts with a number from 0 to 1.

A line of the data is a text, a tab and the rating. Importing this module registers both; `tests/conftest.py` removes
them again for the tests that do not ask for them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.contract import RecurrentCell, SequenceLayer, State
from seriatim.core.errors import InputError
from seriatim.data.batching import Buckets, padded
from seriatim.data.readers import find_sources, read_items
from seriatim.data.tokenizer_factory import fit_tokenizer
from seriatim.data.vocabulary import Vocabulary
from seriatim.evaluation.intervals import Measure, Metrics, mean, with_interval
from seriatim.layers.registry import REGISTRY
from seriatim.tasks import TASKS, register
from seriatim.training.loop import Trainer
from seriatim.training.task import Task, evaluating
from seriatim.training.task_data import Metric


class Leaky(RecurrentCell):
    """h_t = a h_{t-1} + (1 - a) W x_t."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.in_proj = nn.Linear(input_size, hidden_size)
        self.decay = nn.Parameter(torch.zeros(hidden_size))

    def initial_state(self, batch_size: int) -> Tensor:
        return self.decay.new_zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.sigmoid(self.decay)
        h = a * state + (1 - a) * self.in_proj(inputs)
        return h, h


@dataclass
class Rated:
    """Encoded texts one after another, and their ratings ``(texts,)``."""

    ids: np.ndarray
    lengths: np.ndarray
    ratings: np.ndarray

    @property
    def key(self) -> str:
        return hashlib.sha256(b"".join(part.tobytes() for part in (self.ids, self.lengths, self.ratings))).hexdigest()


@dataclass
class RatedBatch:
    """Some texts: ids ``(batch, time)``, lengths and ratings ``(batch,)``."""

    inputs: Tensor
    lengths: Tensor
    ratings: Tensor
    rows: np.ndarray
    fresh: bool = True

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def terms(self) -> int:
        return len(self.ratings)


class Rater(nn.Module):
    """The mean output of a layer, projected to the logit of the rating."""

    def __init__(self, layer: SequenceLayer, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, layer.input_size)
        self.layer = layer
        self.output = nn.Linear(layer.output_size, 1)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        outputs, _ = self.layer(self.embedding(inputs), lengths=lengths)
        valid = torch.arange(inputs.shape[1]) < lengths.unsqueeze(1)
        means = (outputs * valid.unsqueeze(2)).sum(1) / lengths.clamp(min=1).unsqueeze(1)
        return self.output(means).squeeze(1)


class Rating(Task[Rated, RatedBatch, Rater]):
    """Rates texts."""

    estimator = Trainer
    baseline_name = "the mean rating"
    usage = "seriatim predict {run} TEXTS"
    caution = "It rates texts like those it was trained on."
    figures: ClassVar[tuple[Metric, ...]] = (Metric("loss", "loss (nats per text)", 4, headline=True),)
    counts = ("texts",)
    items_name = "texts"

    def rows(self, spec: str, split: str) -> list[tuple[str, float]]:
        rows = []
        for number, line in enumerate(read_items(find_sources(spec, file_format="text", split=split)), 1):
            text, _, rating = line.partition("\t")
            if not rating:
                raise InputError(f"{spec}:{number}: no rating; write TEXT<TAB>RATING")
            rows.append((text, float(rating)))
        return rows

    def labelled_items(self, spec: str, split: str):
        return ((text, f"{rating:.2f}") for text, rating in self.rows(spec, split))

    def learn_vocabulary(self) -> Vocabulary:
        texts = [text for text, _ in self.rows(self.training_spec(), "train")]
        settings = self.config.tokenizer.model_copy(update={"kind": self.config.tokenizer.kind or "char"})
        return Vocabulary({"tokenizer": fit_tokenizer(settings, texts)})

    def make_model(self, vocabulary: Vocabulary) -> Rater:
        model = self.config.model
        layer = seriatim.layer(model.layer, model.embedding_size, model.hidden_size, num_layers=model.num_layers)
        return Rater(layer, vocabulary.tokenizer.vocabulary_size)

    def encode(self, rows: Sequence[tuple[str, float]], vocabulary: Vocabulary) -> Rated:
        parts = [vocabulary.tokenizer.encode(text) for text, _ in rows]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        return Rated(np.concatenate(parts), lengths, np.array([rating for _, rating in rows]))

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Rated:
        return self.encode(self.rows(spec, split), vocabulary)

    def batches(self, data: Rated) -> Buckets[RatedBatch]:
        starts = data.lengths.cumsum() - data.lengths

        def make(rows: np.ndarray) -> RatedBatch:
            inputs = torch.from_numpy(padded(data.ids, starts[rows], data.lengths[rows]))
            ratings = torch.from_numpy(data.ratings[rows]).float()
            return RatedBatch(inputs, torch.from_numpy(data.lengths[rows]), ratings, rows)

        return Buckets(data.lengths, self.config.training.batch_size, make)

    def loss(self, model: Rater, batch: RatedBatch, state: State | None, *, progress: float = 0.0):
        logits = model(batch.inputs, batch.lengths)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.ratings, reduction="sum"), None

    def logits(self, model: Rater, data: Rated) -> np.ndarray:
        batches, logits = self.batches(data), np.zeros(len(data.lengths))
        with evaluating(model):
            for batch in batches.read(batches.in_order()):
                logits[batch.rows] = model(batch.inputs, batch.lengths).numpy()
        return logits

    def statistics(self, model: Rater, data: Rated) -> np.ndarray:
        logits = self.logits(model, data)
        losses = np.logaddexp(0, logits) - data.ratings * logits
        return np.stack([losses, np.ones_like(losses)], axis=1)

    def evaluate(self, model: Rater, data: Rated, **settings: object) -> Metrics:
        return {**with_interval("loss", self.statistics(model, data), mean), "texts": len(data.lengths)}

    def measures(self, model: Rater, data: Rated, **settings: object) -> dict[str, Measure]:
        return {"loss": Measure(self.statistics(model, data), mean)}

    def baseline(self, train: Rated, valid: Rated, vocabulary: Vocabulary) -> Metrics:
        p = train.ratings.mean()
        return {"loss": float(-(valid.ratings * np.log(p) + (1 - valid.ratings) * np.log(1 - p)).mean())}

    def describe(self, data: Rated) -> str:
        return f"{len(data.lengths):,} texts"

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        return {"texts": len(self.rows(spec, split))}

    def answer(self, model: Rater, vocabulary: Vocabulary, items: Sequence[str], **settings: object) -> list[Metrics]:
        ratings = 1 / (1 + np.exp(-self.logits(model, self.encode([(item, 0.0) for item in items], vocabulary))))
        return [{"text": f"{rating:.2f}", "rating": float(rating)} for rating in ratings]


def register_both() -> None:
    """Register the layer and the task."""
    seriatim.register("leaky", Leaky)
    register("rate", Rating)


def remove_both() -> None:
    """Undo `register_both`, for tests of every registered layer and task of the library."""
    REGISTRY.pop("leaky", None)
    TASKS.pop("rate", None)


register_both()
