"""Masked language modelling: every token from those before and after it, over windows of a running text or over lines.

J. Devlin et al., "BERT", NAACL 2019: a share of the positions is chosen; of these 80 % become the mask symbol, 10 % a
random token, and 10 % stay; the loss is over them alone. They are chosen again at every step.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..config import BATCH_SIZE, Config, Section, read_settings
from ..core.device_copies import to_device
from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batching import Buckets, Windows
from ..data.tokenizers import END
from ..data.vocabulary import Vocabulary
from ..evaluation.displayed_metrics import Metric
from ..evaluation.intervals import Measure
from ..evaluation.perplexity import unigram_metrics
from ..evaluation.pseudo_likelihood import evaluate_masked_language_model, pseudo_measures
from ..layers.pointwise import EPSILON
from ..layers.positions import declared_positions
from ..models import MaskedLanguageModel
from ..models.masked_language_model import Frame
from .defaults import network_defaults, split_options
from .filling import fill
from .masked_explainer import explain_masked_model
from .names import TASK_SUMMARIES
from .task import Evaluator, ModelBuilder, Objective, Predictor, Task, TaskKind, evaluating
from .text import WindowReader

MASKED, REPLACED = 0.8, 0.1
FORM = ("transform_activation", "transform_epsilon")
"""The options that decide what the model computes; a training takes them from its initial run."""


class Options(Section):
    """Options of a masked language model, beside those of its layer."""

    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are predicted at a step."""
    transform_activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"
    """Activation between the layer and the output layer."""
    transform_epsilon: Annotated[float, Field(gt=0, le=1)] = EPSILON
    """Is added to the variance in the norm between the layer and the output layer."""


@dataclass
class WindowBatch:
    """Windows ``rows`` of a text: ids ``(batch, time)`` and lengths ``(batch,)``; ``terms`` tokens are predicted."""

    rows: np.ndarray
    inputs: Tensor
    lengths: Tensor
    terms: int
    fresh: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens, without padding."""
        return int(self.lengths.sum())


class PseudoLikelihoodSettings(Section):
    """How a masked language model is evaluated. ``exact`` masks each token alone."""

    exact: bool = False


class MaskedModelBuilder(ModelBuilder[MaskedLanguageModel]):
    """Builds masked language models."""

    def build(self, vocabulary: Vocabulary) -> MaskedLanguageModel:
        """Build a masked language model."""
        tokenizer, (options, layer_options) = vocabulary.tokenizer, split_options(Options, self.config)
        model = MaskedLanguageModel.from_config(self.config.model, tokenizer.vocabulary_size, layer_options)
        frame = Frame(tokenizer.begin, END) if tokenizer.frames else None
        return model.with_form(options.transform_activation, options.transform_epsilon, frame)


class MaskingObjective(Objective[Windows, WindowBatch, MaskedLanguageModel]):
    """The cross-entropy of tokens that are masked anew at every step."""

    def __init__(self, config: Config, evaluator: Evaluator[Windows], items_name: str) -> None:
        super().__init__(config, evaluator, items_name)
        self.options, _ = split_options(Options, config)

    def batches(self, data: Windows) -> Buckets[WindowBatch]:
        """Return batches of windows of similar length."""

        def make(rows: np.ndarray) -> WindowBatch:
            lengths = data.lengths[rows]
            terms = max(1, round(self.options.mask_rate * int(lengths.sum())))
            return WindowBatch(rows, torch.from_numpy(data.ids(rows)), torch.from_numpy(lengths), terms)

        return Buckets(data.lengths, self.config.training.batch_size or BATCH_SIZE, make)

    def loss(
        self, model: MaskedLanguageModel, batch: WindowBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the loss of tokens that PyTorch's generator chooses."""
        masked, positions, targets = choose(batch, model.vocabulary_size)
        device = model.embedding.weight.device
        inputs, positions, targets = (to_device(x, device) for x in (masked, positions, targets))
        return model.loss(inputs, positions, targets, lengths=batch.lengths), None

    def check(self, train: Windows, valid: Windows | None) -> None:
        """Raise InputError if a window has more tokens than there are learned positions."""
        tokenizer, length = train.corpus.tokenizer, self.config.training.sequence_length
        limit = declared_positions(self.config.model.options)
        around = len(Frame._fields) if tokenizer is not None and tokenizer.frames else 0
        if limit is not None and limit < length + around:
            beside = ", two of them for the tokens around a text" if around else ""
            raise InputError(
                f"training.sequence_length: {length} tokens and {limit} learned positions{beside}; at most "
                f"{limit - around}, or set model.options.max_length to {length + around}"
            )


class PseudoLikelihoodEvaluator(Evaluator[Windows]):
    """Pseudo-likelihoods: each token is predicted from both sides.

    ``every`` is the distance between two tokens that are masked in the same pass: as many are masked as in training.
    """

    settings = PseudoLikelihoodSettings
    per_token = ("loss", "perplexity", "accuracy")
    baseline_name = "a unigram"
    counts = ("tokens", "words", "lines", "bytes", "unknown_tokens")
    metrics = (
        Metric("loss", "pseudo-loss (nats per token)", 4),
        Metric("perplexity", "pseudo-perplexity per token", 2, headline=True),
        Metric("accuracy", "accuracy of masked tokens", 4, headline=True, more_is_better=True),
        Metric("bits_per_byte", "pseudo-bits per byte", 4),
    )

    def __init__(self, every: int) -> None:
        self.every = every

    def evaluate(self, model: MaskedLanguageModel, data: Windows, **settings: object) -> JsonObject:
        """Compute the metrics of `seriatim.evaluation.pseudo_likelihood`.

        As many tokens are masked at once as in training; ``exact`` masks each alone, which takes a pass for each.
        """
        with evaluating(model):
            metrics = evaluate_masked_language_model(model, data, every=self.spacing(settings))
        return metrics | data.corpus.repairs.facts()

    def statistics(self, model: MaskedLanguageModel, data: Windows, **settings: object) -> dict[str, Measure]:
        """Compute the contributions of lines, or of blocks of a running text."""
        with evaluating(model):
            return pseudo_measures(model, data, self.spacing(settings))

    def spacing(self, settings: Mapping[str, object]) -> int | None:
        """Return the distance between two tokens that are masked in the same pass; None if each is masked alone."""
        return None if read_settings(PseudoLikelihoodSettings, settings).exact else self.every

    def trivial_baseline(self, train: Windows, valid: Windows, vocabulary: Vocabulary) -> JsonObject:
        """Compute the metrics of a unigram model."""
        return unigram_metrics(train.corpus, valid.corpus, vocabulary.tokenizer.vocabulary_size)


class GapPredictor(Predictor[MaskedLanguageModel]):
    """Fills the gaps of lines."""

    endpoint = "fill"

    def __init__(self, config: Config) -> None:
        self.config = config

    def answer(
        self, model: MaskedLanguageModel, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[JsonObject]:
        """Fill the gaps of each line; see `seriatim.tasks.filling`."""
        unit, length = self.config.data.unit, self.config.training.sequence_length
        with evaluating(model):
            return fill(model, vocabulary.tokenizer, items, unit=unit, length=length)


def choose(batch: WindowBatch, vocabulary_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the tokens to predict, exactly ``batch.terms``, and mask them.

    Returns:
        Ids ``(batch, time)`` with the mask symbol's, ``vocabulary_size``, among them; positions and targets, both
        ``(terms,)``, counted through the rows and in order.
    """
    place = torch.arange(batch.inputs.shape[1])
    valid = (place < batch.lengths.unsqueeze(1)).flatten().nonzero().squeeze(1)
    positions = valid[torch.randperm(len(valid))[: batch.terms]].sort().values
    targets = batch.inputs.flatten()[positions]
    draw, others = torch.rand(batch.terms), torch.randint(vocabulary_size, (batch.terms,))
    read = torch.where(draw < MASKED, vocabulary_size, torch.where(draw < MASKED + REPLACED, others, targets))
    return batch.inputs.flatten().index_copy(0, positions, read).view(batch.inputs.shape), positions, targets


def open_task(config: Config) -> Task:
    """Compose the parts of masked language modelling."""
    reader = WindowReader(config)
    evaluator = PseudoLikelihoodEvaluator(max(1, round(1 / split_options(Options, config)[0].mask_rate)))
    return Task(
        KIND,
        config,
        reader=reader,
        builder=MaskedModelBuilder(config),
        evaluator=evaluator,
        objective=MaskingObjective(config, evaluator, KIND.items_name),
        predictor=GapPredictor(config),
        explain=lambda masked: explain_masked_model(
            masked,
            functools.partial(reader.read_corpus, split="test", vocabulary=masked.vocabulary),
            evaluator.every,
        ),
    )


KIND = TaskKind(
    name="mlm",
    summary=TASK_SUMMARIES["mlm"],
    open=open_task,
    evaluator=PseudoLikelihoodEvaluator,
    predictor=GapPredictor,
    usage="seriatim predict {run} LINES",
    caution=(
        "It fills each [MASK] of a line with text like what it was trained on. Its figures are pseudo-likelihoods: "
        "every token is predicted from both sides, so they say nothing beside those of a model that reads forwards."
    ),
    options=Options,
    items_name="windows",
    defaults=lambda config: network_defaults(config, Options, shaping_options=FORM),
)
