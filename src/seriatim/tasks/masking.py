"""Masked language modelling: every token from those before and after it, over windows of a running text or over lines.

J. Devlin et al., "BERT", NAACL 2019: a share of the positions is chosen; of these 80 % become the mask symbol, 10 % a
random token, and 10 % stay; the loss is over them alone. They are chosen again at every step.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..config import Section, read_settings
from ..core.device_copies import to_device
from ..core.errors import InputError
from ..core.state import State
from ..data.batching import Buckets, Windows, cut
from ..data.readers import Source, read_items
from ..data.repairs import Repairs
from ..data.tokenizers import END
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics
from ..evaluation.perplexity import unigram_metrics
from ..evaluation.pseudo_likelihood import evaluate_masked_language_model, pseudo_measures
from ..layers.pointwise import EPSILON
from ..layers.positions import declared_positions
from ..models import MaskedLanguageModel
from ..models.masked_language_model import Frame
from ..training.task import evaluating
from ..training.task_data import Metric
from .base_tasks import LayeredTask, TextTask
from .filling import fill
from .masking_view import MaskedLanguageModelView

MASKED, REPLACED = 0.8, 0.1
FORM = {"transform_activation": "gelu", "transform_epsilon": EPSILON}
"""The options that decide what the model computes, as all earlier models have them."""


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


class EvaluationSettings(Section):
    """How a masked language model is evaluated. ``exact`` masks each token alone."""

    exact: bool = False


class Masking(
    LayeredTask[Windows, WindowBatch, MaskedLanguageModel], TextTask[Windows, WindowBatch, MaskedLanguageModel]
):
    """Predict masked tokens of texts."""

    own_options = Options
    options: Options
    former_options: ClassVar[Mapping[str, object]] = FORM
    shaping_options = tuple(FORM)
    evaluation_settings = EvaluationSettings
    items_name = "windows"
    endpoint = "fill"
    usage = "seriatim predict {run} LINES"
    caution = (
        "It fills each [MASK] of a line with text like what it was trained on. Its figures are pseudo-likelihoods: "
        "every token is predicted from both sides, so they say nothing beside those of a model that reads forwards."
    )
    per_token = ("loss", "perplexity", "accuracy")
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "pseudo-loss (nats per token)", 4),
        Metric("perplexity", "pseudo-perplexity per token", 2, headline=True),
        Metric("accuracy", "accuracy of masked tokens", 4, headline=True, more_is_better=True),
        Metric("bits_per_byte", "pseudo-bits per byte", 4),
    )

    @property
    def length(self) -> int:
        """Largest number of tokens of a window."""
        return self.config.training.sequence_length

    def model_view(self, model: MaskedLanguageModel, vocabulary: Vocabulary) -> MaskedLanguageModelView:
        """Return the view of one masked language model."""
        read_corpus = functools.partial(self.read_corpus, split="test", vocabulary=vocabulary)
        return MaskedLanguageModelView(self.config, model, vocabulary, read_corpus, self.every)

    def make_model(self, vocabulary: Vocabulary) -> MaskedLanguageModel:
        """Build a masked language model."""
        tokenizer, options = vocabulary.tokenizer, self.options
        model = MaskedLanguageModel.from_config(self.config.model, tokenizer.vocabulary_size, self.layer_options)
        frame = Frame(tokenizer.begin, END) if tokenizer.frames else None
        return model.with_form(options.transform_activation, options.transform_epsilon, frame)

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Windows:
        """Read and encode a text in windows of at most ``training.sequence_length`` tokens; see `Task.read`."""
        return cut(self.read_corpus(spec, split, vocabulary, file_format=file_format), self.length)

    def batches(self, data: Windows) -> Buckets[WindowBatch]:
        """Return batches of windows of similar length."""

        def make(rows: np.ndarray) -> WindowBatch:
            lengths = data.lengths[rows]
            terms = max(1, round(self.options.mask_rate * int(lengths.sum())))
            return WindowBatch(rows, torch.from_numpy(data.ids(rows)), torch.from_numpy(lengths), terms)

        return Buckets(data.lengths, self.batch_size, make)

    def loss(
        self, model: MaskedLanguageModel, batch: WindowBatch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, None]:
        """Compute the loss of tokens that PyTorch's generator chooses."""
        masked, positions, targets = choose(batch, model.vocabulary_size)
        device = model.embedding.weight.device
        inputs, positions, targets = (to_device(x, device) for x in (masked, positions, targets))
        return model.loss(inputs, positions, targets, lengths=batch.lengths), None

    def evaluate(self, model: MaskedLanguageModel, data: Windows, **settings: object) -> Metrics:
        """Compute the metrics of `seriatim.evaluation.pseudo_likelihood`.

        As many tokens are masked at once as in training; ``exact`` masks each alone, which takes a pass for each.
        """
        with evaluating(model):
            metrics = evaluate_masked_language_model(model, data, every=self.spacing(settings))
        return metrics | data.corpus.repairs.facts()

    def measures(self, model: MaskedLanguageModel, data: Windows, **settings: object) -> dict[str, Measure]:
        """Compute the contributions of lines, or of blocks of a running text."""
        with evaluating(model):
            return pseudo_measures(model, data, self.spacing(settings))

    def spacing(self, settings: Mapping[str, object]) -> int | None:
        """Return the distance between two tokens that are masked in the same pass; None if each is masked alone."""
        return None if read_settings(EvaluationSettings, settings).exact else self.every

    @property
    def every(self) -> int:
        """The distance between two tokens that are masked in the same pass: as many are masked as in training."""
        return max(1, round(1 / self.options.mask_rate))

    def baseline(self, train: Windows, valid: Windows, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of a unigram model."""
        return unigram_metrics(train.corpus, valid.corpus, vocabulary.tokenizer.vocabulary_size)

    def describe(self, data: Windows) -> str:
        """Return the number of tokens and windows."""
        counts = data.corpus.statistics
        unknown = f", {counts.unknown_tokens:,} tokens unknown" if counts.unknown_tokens else ""
        return f"{counts.tokens:,} tokens ({counts.words:,} words{unknown}) in {len(data.starts):,} windows"

    def check(self, train: Windows, valid: Windows | None) -> None:
        """Raise InputError if a window has more tokens than there are learned positions."""
        self.check_held_out()
        tokenizer = train.corpus.tokenizer
        limit = declared_positions(self.config.model.options)
        around = len(Frame._fields) if tokenizer is not None and tokenizer.frames else 0
        if limit is not None and limit < self.length + around:
            beside = ", two of them for the tokens around a text" if around else ""
            raise InputError(
                f"training.sequence_length: {self.length} tokens and {limit} learned positions{beside}; at most "
                f"{limit - around}, or set model.options.max_length to {self.length + around}"
            )

    def items(
        self, sources: Sequence[Source], file_format: str | None, vocabulary: Vocabulary, repairs: Repairs
    ) -> Iterator[str]:
        """Read lines, since an answer is the line itself."""
        self.refuse_format(file_format)
        return read_items(sources, repairs, one_line=True)

    def answer(
        self, model: MaskedLanguageModel, vocabulary: Vocabulary, items: Sequence[str], **settings: object
    ) -> list[Metrics]:
        """Fill the gaps of each line; see `seriatim.tasks.filling`."""
        with evaluating(model):
            return fill(model, vocabulary.tokenizer, items, unit=self.unit, length=self.length)


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
