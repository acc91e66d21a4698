"""A task as a user would write it outside the package: rating texts with a number from 0 to 1.

A line of the data is a text, a tab and the rating. `outside_layer.py` registers the task, and a cell.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import seriatim
from seriatim.config import Config
from seriatim.core.contract import SequenceLayer
from seriatim.core.errors import InputError
from seriatim.data.batches import Buckets
from seriatim.data.pairs import Side, encode_side
from seriatim.data.sources import find_sources
from seriatim.data.text import read_items
from seriatim.data.vocabulary import Vocabulary, fit_tokenizer
from seriatim.evaluation.intervals import Measure, Measurement, Metric, mean, with_intervals
from seriatim.tasks.task import Evaluator, ModelBuilder, Objective, Predictor, Reader, Task, TaskKind, evaluating


@dataclass
class Rated:
    """Encoded texts, and their ratings ``(texts,)``."""

    texts: Side
    ratings: np.ndarray

    @property
    def key(self) -> str:
        return f"{self.texts.ids.tolist()} {self.texts.lengths.tolist()} {self.ratings.tolist()}"


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


class RatedReader(Reader[Rated]):
    def rows(self, source: str, split: str) -> list[tuple[str, float]]:
        rows = []
        for number, line in enumerate(read_items(find_sources(source, file_format="text", split=split)), 1):
            text, _, rating = line.partition("\t")
            if not rating:
                raise InputError(f"{source}:{number}: no rating; write TEXT<TAB>RATING")
            rows.append((text, float(rating)))
        return rows

    def labelled_items(self, source: str, split: str):
        return ((text, f"{rating:.2f}") for text, rating in self.rows(source, split))

    def learn_vocabulary(self) -> Vocabulary:
        texts = [text for text, _ in self.rows(self.files.training_source(), "train")]
        settings = self.config.tokenizer.model_copy(update={"kind": self.config.tokenizer.kind or "char"})
        return Vocabulary({"tokenizer": fit_tokenizer(settings, texts)})

    def read(self, source: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Rated:
        texts, ratings = zip(*self.rows(source, split), strict=True)
        return Rated(encode_side(texts, vocabulary.tokenizer), np.array(ratings))

    def describe(self, data: Rated) -> str:
        return f"{len(data.ratings):,} texts"

    def count(self, source: str, split: str, vocabulary: Vocabulary):
        return {"texts": len(self.rows(source, split))}


class RaterBuilder(ModelBuilder[Rater]):
    def build(self, vocabulary: Vocabulary) -> Rater:
        model = self.config.model
        layer = seriatim.layer(model.layer, model.embedding_size, model.hidden_size, num_layers=model.num_layers)
        return Rater(layer, vocabulary.tokenizer.vocabulary_size)


def batches_of(data: Rated, size: int) -> Buckets[RatedBatch]:
    def make(rows: np.ndarray) -> RatedBatch:
        return RatedBatch(*data.texts.rows(rows), torch.from_numpy(data.ratings[rows]).float(), rows)

    return Buckets(data.texts.lengths, size, make)


def logits_of(model: Rater, data: Rated) -> np.ndarray:
    batches, logits = batches_of(data, 32), np.zeros(len(data.ratings))
    with evaluating(model):
        for batch in batches.read(batches.in_order()):
            logits[batch.rows] = model(batch.inputs, batch.lengths).numpy()
    return logits


class RatingObjective(Objective[Rated, RatedBatch, Rater]):
    def batches(self, data: Rated) -> Buckets[RatedBatch]:
        return batches_of(data, self.config.training.batch_size)

    def loss(self, model: Rater, batch: RatedBatch, state, *, progress: float = 0.0):
        logits = model(batch.inputs, batch.lengths)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.ratings, reduction="sum"), None


class RatingEvaluator(Evaluator[Rated]):
    baseline_name = "the mean rating"
    metrics = (Metric("loss", "loss (nats per text)", 4, headline=True),)

    def measure(self, model: Rater, data: Rated, **settings: object):
        logits = logits_of(model, data)
        losses = np.logaddexp(0, logits) - data.ratings * logits
        measures = {"loss": Measure(np.stack([losses, np.ones_like(losses)], axis=1), mean)}
        return Measurement(with_intervals(measures), measures)

    def trivial_baseline(self, train: Rated, valid: Rated, vocabulary: Vocabulary):
        p = train.ratings.mean()
        return {"loss": float(-(valid.ratings * np.log(p) + (1 - valid.ratings) * np.log(1 - p)).mean())}


class RatingPredictor(Predictor[Rater]):
    def answer(self, model: Rater, vocabulary: Vocabulary, items, **settings: object):
        data = Rated(encode_side(items, vocabulary.tokenizer), np.zeros(len(items)))
        ratings = 1 / (1 + np.exp(-logits_of(model, data)))
        return [{"text": f"{rating:.2f}", "rating": float(rating)} for rating in ratings]


def open_task(config: Config) -> Task:
    evaluator = RatingEvaluator()
    objective = RatingObjective(config, evaluator, "texts")
    parts = {"reader": RatedReader(config), "builder": RaterBuilder(config), "predictor": RatingPredictor()}
    return Task(RATE, config, evaluator=evaluator, objective=objective, **parts)


RATE = TaskKind(
    name="rate",
    summary="Rate texts.",
    open=open_task,
    evaluator=RatingEvaluator,
    predictor=RatingPredictor,
    usage="seriatim predict {run} TEXTS",
    caution="It rates texts like those it was trained on.",
    items_name="texts",
)
