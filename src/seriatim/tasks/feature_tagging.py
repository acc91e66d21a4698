"""Tagging with a linear-chain CRF on attributes of words, trained to convergence in seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from ..config import Config, Section
from ..core.errors import InputError
from ..data.batching import Buckets
from ..data.tagged_corpus import TaggedBatch, TaggedCorpus, fit_vocabulary
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Metrics
from ..models.feature_tagger import OFFSETS, FeatureTagger, fit_tagger
from ..storage.weights import save_tensors
from ..training.estimator import ConvergingEstimator, Written
from ..training.task import Task
from .standalone import describe_linear, load_finite, read_options, with_defaults
from .tagging import Tagging

LAYER = "features"
MAX_BYTES, MIN_ATTRIBUTES = 1 << 26, 1000
"""Size of the weights, for which rare attributes are left out; and the number of attributes that a model needs."""
MAX_SCORES = 1 << 28
"""Largest number of words of the training data times tags."""


class Options(Section):
    """Options of a tagger with attributes of words."""

    penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    """Factor λ of the penalty λ ‖w‖² / 2 on the weights, beside the sum of −log P over the sentences."""
    scheme: Literal["bio", "iob1"] = "bio"
    """How the data marks chunks; answers are always in BIO."""


class FeatureTagging(Tagging):
    """Tag words with a CRF on their attributes."""

    options: Options  # type: ignore[assignment]
    estimator = ConvergingEstimator  # type: ignore[assignment]
    learned = "fitted"
    uses_learning_rate = False
    own_options = Options  # type: ignore[assignment]
    works_causally = False
    simple_baseline = None
    model_name = "a CRF on attributes of words"

    def __init__(self, config: Config) -> None:
        Task.__init__(self, config)
        self.options = read_options(Options, self.config)

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults: words, all options, and the precision float32."""
        return with_defaults(Options, config, "word")

    def learn_vocabulary(self) -> Vocabulary:
        """Learn words and tags, and characters, so that the vocabulary is that of other taggers."""
        if self.config.tokenizer.kind != "word":
            raise InputError(
                f"tokenizer.kind: {self.config.tokenizer.kind!r}, but it is words that have tags; leave it out"
            )
        return fit_vocabulary(self.sentences(self.training_spec(), "train"), self.config.tokenizer, characters=True)

    def named_files(self) -> dict[str, str]:
        """Return the files of every task."""
        return Task.named_files(self)

    def training_statistics(self, train: TaggedCorpus) -> Metrics:
        """Return nothing: there are no vectors of words."""
        return {}

    def make_model(self, vocabulary: Vocabulary) -> nn.Module:  # type: ignore[override]
        """Return a model without parameters, since the attributes are not known before counting."""
        return nn.Module()

    def check(self, train: TaggedCorpus, valid: TaggedCorpus | None) -> None:
        """Check the data as every tagger, and refuse so many tags that the training would be too large."""
        super().check(train, valid)
        tags = len(train.vocabulary.labels)
        if room(tags) < MIN_ATTRIBUTES or tags * len(train.words) > MAX_SCORES:
            raise InputError(
                f"model.layer: features computes {tags:,} scores for each of {len(train.words):,} words, and has as "
                "many weights for each attribute, which is too many; take another layer, or fewer tags"
            )

    def batches(self, data: TaggedCorpus) -> Buckets[TaggedBatch]:
        """Return batches of sentences of similar length."""
        return Buckets(data.lengths, self.batch_size, data.batch)

    def write_model(
        self, train: TaggedCorpus, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]
    ) -> Written:
        """Count attributes, fit their weights, and write both."""
        minutes, labels = self.config.training.minutes, vocabulary.labels
        model, ended = fit_tagger(
            train,
            labels,
            decay=self.options.penalty,
            max_attributes=room(len(labels)),
            seconds=None if minutes is None else 60 * minutes,
        )
        save_tensors(model.tensors(), weights, metadata)
        return Written(len(train.words), ended)

    def load_model(self, vocabulary: Vocabulary, weights: Path) -> FeatureTagger:  # type: ignore[override]
        """Read the attributes and their weights."""
        try:
            return FeatureTagger.from_tensors(load_finite(weights), vocabulary.labels)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{weights}: {error}; restore the run's own file") from None

    def combine(self, models: Sequence[nn.Module]) -> nn.Module:  # type: ignore[override]
        """Refuse to combine models."""
        raise InputError("ensembles are not supported for the layer features; give one run")

    def card_rows(self, model: FeatureTagger, summary: Metrics) -> list[tuple[str, str]]:  # type: ignore[override]
        """Return the number of attributes, the penalty and the training; there is no optimizer."""
        return [
            ("model", "conditional random field on attributes of each word and two words on either side"),
            ("attributes", f"{len(model.table.keys):,}"),
            ("penalty", f"{self.options.penalty:g}"),
            ("training", f"{summary['tokens']:,} words, {summary['ended']}, {summary['seconds']:.0f} s"),
        ]

    @classmethod
    def describe_model(cls) -> dict[str, object]:
        """Return what `seriatim.layers.describe` returns of layers."""
        return describe_linear(LAYER, "attributes of 5 words, and the last tag", "Lafferty et al. 2001", Options)


def room(tags: int) -> int:
    """Return the number of attributes whose weights and keys fit into `MAX_BYTES`."""
    return MAX_BYTES // (4 * OFFSETS * tags + 8)
