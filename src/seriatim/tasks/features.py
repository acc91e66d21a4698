"""Tagging with a linear-chain CRF on attributes of words, trained to convergence in seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from ..config import Config, Section
from ..core.errors import ConflictError, SizeError
from ..core.json_object import JsonObject
from ..counting.feature_tagger import OFFSETS, FeatureTagger, fit_tagger
from ..data.tagged_corpus import TaggedCorpus
from ..data.vocabulary import Vocabulary
from ..storage.weights import save_tensors
from .data_files import DataFiles
from .fitted import FittedBuilder, describe_fitted, fitted_defaults, read_options
from .tag import TagEvaluator, TaggedReader, TagPredictor, check_tags
from .tag_explainer import explain_tagger
from .task import Fitted, Fitter, Task, TaskKind

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


class FeatureTaggerBuilder(FittedBuilder):
    """Opens CRFs on attributes of words, whose weights are written when they are fitted."""

    def open(self, tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> FeatureTagger:
        """Read the attributes and their weights."""
        return FeatureTagger.from_tensors(tensors, vocabulary.labels)

    def card_rows(self, model: nn.Module, summary: JsonObject) -> list[tuple[str, str]]:
        """Return the number of attributes, the penalty and the training; there is no optimizer."""
        assert isinstance(model, FeatureTagger)
        return [
            ("model", "conditional random field on attributes of each word and two words on either side"),
            ("attributes", f"{len(model.table.keys):,}"),
            ("penalty", f"{read_options(Options, self.config).penalty:g}"),
            ("training", f"{summary['tokens']:,} words, {summary['ended']}, {summary['seconds']:.0f} s"),
        ]


class FeatureFitting(Fitter[TaggedCorpus, Options]):
    """Counts attributes, and fits their weights until the loss no longer falls."""

    counts = False

    def check(self, train: TaggedCorpus, valid: TaggedCorpus | None) -> None:
        """Check the data as every tagger, and refuse so many tags that the training would be too large."""
        check_tags(train, valid, DataFiles(self.config).validation_name())
        tags = len(train.vocabulary.labels)
        if max_attributes_for(tags) < MIN_ATTRIBUTES or tags * len(train.words) > MAX_SCORES:
            raise SizeError(
                f"model.layer: features computes {tags:,} scores for each of {len(train.words):,} words, and has as "
                "many weights for each attribute, which is too many; take another layer, or fewer tags"
            )

    def fit(self, train: TaggedCorpus, vocabulary: Vocabulary, weights: Path, metadata: dict[str, str]) -> Fitted:
        """Count attributes, fit their weights, and write both."""
        minutes, labels = self.config.training.minutes, vocabulary.labels
        model, ended = fit_tagger(
            train,
            labels,
            decay=self.options.penalty,
            max_attributes=max_attributes_for(len(labels)),
            seconds=None if minutes is None else 60 * minutes,
        )
        save_tensors(model.tensors(), weights, metadata)
        return Fitted(len(train.words), ended)


def max_attributes_for(tags: int) -> int:
    """Return the number of attributes whose weights and keys fit into `MAX_BYTES`."""
    return MAX_BYTES // (4 * OFFSETS * tags + 8)


def check_config(config: Config) -> None:
    """Raise InputError if the tokens are not words."""
    if config.tokenizer.kind != "word":
        raise ConflictError(f"tokenizer.kind: {config.tokenizer.kind!r}, but tags belong to words; leave it out")


def open_task(config: Config) -> Task:
    """Compose the parts of tagging with a CRF on attributes of words."""
    # Its vocabulary has characters, too, so that it is that of other taggers.
    options = read_options(Options, config)
    reader = TaggedReader(config, scheme=options.scheme, reads_characters=True)
    return Task(
        KIND,
        config,
        reader=reader,
        builder=FeatureTaggerBuilder(config),
        evaluator=TagEvaluator(),
        fitter=FeatureFitting(config, options),
        predictor=TagPredictor(config),
        explain=lambda tagger: explain_tagger(tagger, reader.sentences),
    )


KIND = TaskKind(
    name="tag",
    layer="features",
    summary="Tag words with a CRF on their attributes.",
    open=open_task,
    evaluator=TagEvaluator,
    predictor=TagPredictor,
    usage="seriatim predict {run} SENTENCES",
    caution="It knows the tags it was trained on, and gives one of them to every word.",
    model_name="a CRF on attributes of words",
    fitting="fitted",
    options=Options,
    items_name="sentences",
    defaults=lambda config: fitted_defaults(Options, config, "word"),
    check_config=check_config,
    describe_model=lambda: describe_fitted(
        "features", keeps="attributes of 5 words, and the last tag", paper="Lafferty et al. 2001", section=Options
    ),
)
