"""Classification with a linear model of counted n-grams, trained to convergence in seconds."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from ..config import Config, Positive, Section
from ..core.errors import SizeError
from ..core.json_object import JsonObject
from ..counting.bag import Bag, count_features, fit_weights
from ..counting.compiled_bag import compiled_bag
from ..data.vocabulary import Vocabulary
from ..storage.weights import save_tensors
from .classify import LabelEvaluator, LabelPredictor
from .documents import Documents, LabelledTextReader
from .fitted import FittedBuilder, describe_fitted, fitted_defaults, read_options
from .label_explainer import explain_bag
from .task import Fitted, Fitter, Task, TaskKind

MAX_BYTES, MIN_FEATURES = 1 << 26, 1000
"""Size of the weights, for which rare n-grams are left out; and the number of n-grams that a model needs."""
CHARACTERS, MAX_CHARACTERS, MAX_WORDS = 5, 1 << 25, 1 << 28
"""Longest n-grams of characters; the characters of training texts up to which these are counted by default; and those
that are read if only words are counted, in compiled code. Of more characters, a random part of the texts is read."""
MAX_LOGITS = 1 << 28
"""Largest number of training texts times labels."""
FEW_TEXTS = 1000
"""Number of texts from which n-grams of a single text are left out."""
MANY_LABELS = 10
"""Smallest number of labels from which on each label is fitted against all others, which is then more accurate."""


class Options(Section):
    """Options of a bag of n-grams."""

    word_ngrams: Annotated[int, Field(ge=0, le=5, strict=True)] = 2
    """Largest number of words of an n-gram; 0 for none."""
    character_ngrams: Annotated[int, Field(ge=0, le=10, strict=True)] | None = None
    """Largest number of characters of an n-gram within a word, the spaces around it included; 0 for none. The default
    is 5, and 0 if the training texts have more than 33 million characters together."""
    min_texts: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    """Leave out n-grams of fewer training texts; by default 2, and 1 if there are fewer than 1,000 texts."""
    strength: Positive | None = None
    """How strongly the texts pull at the weights; smaller values regularize more. The default is 5 times the square
    root of the number of labels."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether every class has the same total weight in training (balanced), however rare it is."""


class BagBuilder(FittedBuilder):
    """Opens bags of n-grams, whose weights are written when they are fitted."""

    def open(self, tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> Bag:
        """Read the n-grams and their weights."""
        options = read_options(Options, self.config)
        characters = CHARACTERS if options.character_ngrams is None else options.character_ngrams
        return Bag.from_tensors(tensors, (options.word_ngrams, characters), len(vocabulary.labels))

    def card_rows(self, model: nn.Module, summary: JsonObject) -> list[tuple[str, str]]:
        """Return the number of n-grams, the regularization and the training; there is no optimizer."""
        assert isinstance(model, Bag)
        options, table = read_options(Options, self.config), model.table
        characters = table.longest[1] if len(table.characters) else 0
        longest = f"{options.word_ngrams} words, {characters} characters"
        strength = options.strength or 5 * len(model.bias) ** 0.5
        return [
            ("model", f"linear classifier of n-grams of up to {longest}"),
            ("n-grams", f"{len(table.words):,} of words, {len(table.characters):,} of characters"),
            ("strength", f"{strength:.3g}"),
            ("training", f"{summary['tokens']:,} tokens, {summary['ended']}, {summary['seconds']:.0f} s"),
        ]


class BagFitting(Fitter[Documents, Options]):
    """Counts n-grams, and fits their weights until the loss no longer falls."""

    counts = False

    def check(self, train: Documents, valid: Documents | None) -> None:
        """Refuse so many labels, or texts and labels, that the weights or the training would be too large."""
        labels = len(train.vocabulary.labels)
        if max_features(labels) < MIN_FEATURES:
            raise SizeError(
                f"model.layer: bag keeps a weight for every n-gram and label, too many for {labels:,} labels; "
                "choose another layer, or fewer labels"
            )
        if labels * len(train.labels) > MAX_LOGITS:
            raise SizeError(
                f"model.layer: bag computes {labels:,} logits for {len(train.labels):,} texts at once, which is too "
                "many; take another layer, or fewer texts"
            )

    def fit(self, train: Documents, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]) -> Fitted:
        """Count n-grams, fit their weights, and write both."""
        options, training = self.options, self.config.training
        texts, labels, characters = self.chosen(train)
        classes = len(vocabulary.labels)
        table, features = count_features(
            texts,
            words=options.word_ngrams,
            characters=characters,
            min_texts=options.min_texts or (1 if len(texts) < FEW_TEXTS else 2),
            max_features=max_features(classes),
        )

        # A balanced class has the same total weight as every other one that occurs.
        counts = np.bincount(labels, minlength=classes)
        balanced = len(labels) / (np.count_nonzero(counts) * counts.clip(1))
        fitted = fit_weights(
            features,
            torch.from_numpy(labels),
            classes,
            strength=options.strength or 5 * classes**0.5,
            weights=torch.from_numpy(balanced[labels]) if options.class_weights == "balanced" else None,
            one_versus_rest=classes >= MANY_LABELS,
            seconds=None if training.minutes is None else 60 * training.minutes,
        )
        save_tensors(Bag(table, fitted.weights, fitted.bias).tensors(), weights, metadata)
        return Fitted(int(train.texts.lengths.sum()), fitted.ended)

    def chosen(self, train: Documents) -> tuple[Sequence[str], np.ndarray, int]:
        """Return the training texts, their labels, and the longest n-grams of characters.

        Of texts that are too long together, these are a random part of them.
        """
        assert train.strings is not None
        sizes, characters = np.array([len(text) for text in train.strings]), self.options.character_ngrams
        if characters is None:
            characters = CHARACTERS if sizes.sum() <= MAX_CHARACTERS else 0
        most = MAX_CHARACTERS if characters > 1 or compiled_bag() is None else MAX_WORDS
        if sizes.sum() <= most:
            return train.strings, train.labels, characters
        order = np.random.default_rng(self.config.training.seed).permutation(len(sizes))
        rows = np.sort(order[: max(1, int(np.searchsorted(sizes[order].cumsum(), most)))])
        warnings.warn(
            f"{self.config.data.train}: more than {most:,} characters; bag is trained on {len(rows):,} of "
            f"the {len(sizes):,} texts, drawn at random",
            stacklevel=2,
        )
        return [train.strings[row] for row in rows.tolist()], train.labels[rows], characters


def max_features(labels: int) -> int:
    """Return the number of n-grams whose weights, keys and scales fit into `MAX_BYTES`."""
    return MAX_BYTES // (4 * labels + 16)


def open_task(config: Config) -> Task:
    """Compose the parts of classification with a bag of n-grams."""
    reader = LabelledTextReader(config, reads_characters=False, keeps_strings=True)
    return Task(
        KIND,
        config,
        reader=reader,
        builder=BagBuilder(config),
        evaluator=LabelEvaluator(),
        fitter=BagFitting(config, read_options(Options, config)),
        predictor=LabelPredictor(reader),
        explain=lambda bag: explain_bag(bag, reader),
    )


KIND = TaskKind(
    name="classify",
    layer="bag",
    summary="Label texts with a bag of n-grams.",
    open=open_task,
    evaluator=LabelEvaluator,
    predictor=LabelPredictor,
    usage="seriatim predict {run} TEXTS",
    caution="It knows the labels it was trained on, and gives one of them to every text.",
    model_name="a bag of n-grams",
    fitting="fitted",
    options=Options,
    items_name="texts",
    defaults=lambda config: fitted_defaults(Options, config, "word"),
    describe_model=lambda: describe_fitted(
        "bag", keeps="counts of n-grams in the text", paper="Salton & Buckley 1988", section=Options
    ),
)
