"""Language modelling: P(w₁…w_T) = Π P(w_t | w_<t), over one running text or over lines."""

import contextlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, SkipValidation, ValidationInfo, field_validator
from torch import Tensor, nn

from ..config import BATCH_SIZE, Config, Rate, Section, Training, read_settings
from ..core.device_copies import to_device
from ..core.errors import ConflictError, MismatchError, RangeError
from ..core.json_object import JsonObject
from ..core.state import State
from ..data.batches import Batch, Batches
from ..data.corpus import Corpus
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Measurement, Metric, mean
from ..evaluation.perplexity import WINDOW, each_loss, sum_blocks, text_metrics, unigram_metrics, window_losses
from ..evaluation.text_sample import sample_text
from ..layers import check_options, options_of, split_names
from ..models import LanguageModel
from ..models.base_models import UNKNOWN_TOKEN, TextModel, drop_words
from ..models.language_model import Regularization
from ..models.mixture import Mixture, fit_weights
from ..models.sampled_softmax import TokenSampler
from ..models.scheduled_sampling import ScheduledSampling
from .data_files import NOTHING
from .defaults import (
    default_rate,
    fill,
    has_budget,
    like_initial,
    planned_passes,
    split_options,
    text_dropout,
    with_kind,
    with_model,
)
from .model_size import count_parameters, size_of
from .names import TASK_SUMMARIES
from .task import Evaluator, ModelBuilder, Objective, Task, TaskKind
from .text import CorpusReader
from .text_explainer import explain_language_model

STREAM_WINDOW = 512
"""Default number of inputs that attention reads in a running text."""
LARGE_VOCABULARY, SAMPLED_TOKENS = 4096, 1024
"""Number of tokens from which the softmax is estimated while training, and the number that it is estimated from."""
LEARNING_RATE = 1e-2
"""For layers that declare no other."""
STEP_TOKENS, SHORT_SEQUENCE, SMALLER_RATE = 512, 32, 0.4
"""Tokens of a step of a model with a large vocabulary, those of a sequence of a stream, and a factor of its rate."""
LONG_AVERAGE, VALIDATED_TOKENS = 0.999, 16_384
"""Decay of the average of weights that take small steps; and tokens of a validation, which computes all logits."""
LONG_LINE = 256
"""Tokens of a line that are read at once, so that few windows are the ends of a few lines."""


class Options(Regularization, ScheduledSampling):
    """The options of a language model besides those of its layer: scheduled sampling and regularization."""

    sampled_softmax: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Estimate the softmax from so many tokens in training, half of them frequent ones and half drawn; 0 for all."""
    logit_cap: Annotated[float, Field(ge=1, le=1e6)] | None = None
    """Bound c of the logits z, which are c · tanh(z / c) then; null for none."""
    word_dropout: Rate = 0.8
    """Rate at which a token that occurs once in the training text is replaced by the unknown token while training, so
    that the model learns where unknown tokens occur; only if the training text itself has no unknown tokens."""

    @field_validator("activation_regularization", "temporal_activation_regularization")
    @classmethod
    def _needs_whole_windows(cls, value: float, others: ValidationInfo) -> float:
        if value and others.data.get("scheduled_sampling"):
            raise ValueError("scheduled sampling runs one step at a time, without this penalty; leave one of them out")
        return value


class PerplexitySettings(Section):
    """How a language model is evaluated. ``window`` is the number of tokens read at once."""

    window: SkipValidation[int] = WINDOW  # checked where the text is read


def defaults(config: Config) -> Config:
    """Fill in the defaults: character tokens, one direction, and a window of attention for running text."""
    config = like_initial(config, reads_forwards=True)
    config = with_model(config, bidirectional=bool(config.model.bidirectional))
    return with_window(with_kind(config, "char"))


def with_window(config: Config) -> Config:
    """Set a window of attention for running text unless one is given, and refuse positions that end before the text."""
    name, options = config.model.layer, config.model.options
    check_options(name, split_options(Options, config)[1])
    known = [options_of(one, options).get("window") for one in split_names(name)]
    if config.data.unit == "stream" and options.get("position") == "learned":
        raise ConflictError(
            "model.options.position: a running text goes beyond any learned positions; choose rotary, alibi or none, "
            "or set data.unit to line"
        )
    if config.data.unit != "stream" or "window" in options or not any(known):
        return config
    return with_model(config, options={**options, "window": STREAM_WINDOW})


def data_defaults(config: Config, train: Corpus) -> JsonObject:
    """Return what suits a large vocabulary, batches that a short stream can fill, and dropout for a small text.

    Raises:
        InputError: the tokenizer is that of a masked language model. No model could be built to count its parameters.
    """
    if train.tokenizer is not None and train.tokenizer.frames:
        raise MismatchError("training.init: a masked language model has no token that ends a line; train mlm from it")
    fields = _for_large_vocabulary(config, train)
    if config.data.unit == "line":
        fields["training.sequence_length"] = LONG_LINE
    else:
        fields |= _batches_of_stream(fill(config, fields).training, len(train.ids))
    if config.model.dropout is not None or train.tokenizer is None:
        return fields

    # How often the budget lets the model read the text decides whether it could learn it by heart.
    settled, tokens = fill(config, fields), len(train.ids)
    training = settled.training
    row = training.sequence_length if train.ends is None else tokens / max(1, len(train.ends))
    step = round((training.batch_size or BATCH_SIZE) * training.accumulate * row)
    parameters = size_of(LanguageModelBuilder(settled), Vocabulary({"tokenizer": train.tokenizer})).parameters
    if settled.model.tie_weights:  # the table is that of the inputs and of the outputs
        parameters += train.tokenizer.vocabulary_size * settled.model.embedding_size
    return fields | {"model.dropout": text_dropout(parameters, tokens, planned_passes(training, tokens, step))}


def shared_defaults(config: Config, train: Corpus) -> JsonObject:
    """Return how rows of a comparison read the text, and whether they tie their weights; their options differ."""
    fields = _for_large_vocabulary(with_model(config, options={}), train)
    return {name: fields[name] for name in ("training.sequence_length", "model.tie_weights") if name in fields}


def _for_large_vocabulary(config: Config, train: Corpus) -> JsonObject:
    """Return tied weights, a softmax that is estimated, and many small steps where most parameters are those of tokens.

    Only a few tokens of a step have a gradient of their own, so that steps of fewer tokens cost little precision.
    """
    tokenizer, model = train.tokenizer, config.model
    if tokenizer is None or tokenizer.vocabulary_size < LARGE_VOCABULARY:
        return {}
    rate = SMALLER_RATE * default_rate(config, LEARNING_RATE)
    rows = (
        STEP_TOKENS // SHORT_SEQUENCE if train.ends is None else round(STEP_TOKENS * len(train.ends) / len(train.ids))
    )
    fields: JsonObject = {"model.options.sampled_softmax": SAMPLED_TOKENS}
    fields |= {"training.batch_size": max(1, rows), "training.learning_rate": round(rate, 6)}
    if not has_budget(config.training) and config.training.average_after is None and config.data.valid != NOTHING:
        fields |= {"training.average": LONG_AVERAGE, "training.validate_tokens": VALIDATED_TOKENS}
    if train.ends is None:
        fields["training.sequence_length"] = SHORT_SEQUENCE
    if not {"tie_weights", "embedding_size"} & model.model_fields_set and model.options.get("vectors") is None:
        tied = {"model.tie_weights": True, "model.embedding_size": model.hidden_size}
        with contextlib.suppress(ValueError):  # the outputs of the layer may have another width
            count_parameters(LanguageModelBuilder(config.replaced(tied)), Vocabulary({"tokenizer": tokenizer}))
            fields |= tied
    return fields


def _batches_of_stream(training: Training, tokens: int) -> JsonObject:
    """Return the window and the number of rows, if they are not given: at most what a short stream fills."""
    fields: JsonObject = {}
    length = training.sequence_length
    if "sequence_length" not in training.model_fields_set and length > tokens:
        fields["training.sequence_length"] = length = tokens
    if training.batch_size is None and tokens < max(BATCH_SIZE, Training().sequence_length):
        fields["training.batch_size"] = max(1, tokens // length)
    return fields


class LanguageModelBuilder(ModelBuilder[LanguageModel]):
    """Builds language models, and mixtures of them."""

    def build(self, vocabulary: Vocabulary) -> LanguageModel:
        """Build a language model."""
        options, layer_options = split_options(Options, self.config)
        model = LanguageModel.from_config(self.config.model, vocabulary.tokenizer.vocabulary_size, layer_options)
        model.regularization = options
        model.output.cap = options.logit_cap
        model.begin = vocabulary.tokenizer.begin
        return model

    def combine(self, models: Sequence[nn.Module]) -> Mixture:
        """Return the mixture of the models with equal weights."""
        return mixture_of(models)


def mixture_of(models: Sequence[nn.Module], weights: Sequence[float] | None = None) -> Mixture:
    """Return the mixture of language models of any family; by default, with equal weights."""
    text_models = [model for model in models if isinstance(model, TextModel)]
    return Mixture(text_models) if weights is None else Mixture(text_models, weights)


class TextObjective(Objective[Corpus, Batch, LanguageModel, Options]):
    """Teacher forcing or scheduled sampling over windows of a text, with the state carried from window to window."""

    def __init__(self, config: Config, evaluator: Evaluator[Corpus], items_name: str, options: Options) -> None:
        super().__init__(config, evaluator, items_name, options)
        self.batch_size = config.training.batch_size or BATCH_SIZE
        self.sampler: TokenSampler | None = None

    def batches(self, data: Corpus) -> Batches:
        """Return windows of ``training.sequence_length`` tokens, which know the tokens that occur once."""
        rare = data.seen_once()
        if data.tokenizer is not None and (size := self.options.sampled_softmax or 0):
            counts = data.counts(data.tokenizer.vocabulary_size).astype(np.float64)
            if rare is not None:
                dropped = self.options.word_dropout * rare
                counts[UNKNOWN_TOKEN] += dropped.sum()  # which occur once
                counts -= dropped
            self.sampler = TokenSampler(counts, size) if size < len(counts) else None
        return Batches(data, self.batch_size, self.config.training.sequence_length, rare=rare)

    def name_batch(self, batch: Batch) -> str:
        """Return which lines are in a batch; for a running text, which tokens of each of its streams."""
        if self.config.data.unit == "line":
            return super().name_batch(batch)
        rows, time = batch.targets.shape
        return f"tokens {batch.start + 1:,} to {batch.start + time:,} of each of {rows} parts of the text"

    def loss(
        self, model: LanguageModel, batch: Batch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, State]:
        """Compute the loss from the state after the previous window."""
        rate = self.options.word_dropout if model.training else 0.0
        tokens = torch.cat([batch.inputs[:, :1], batch.targets], dim=1)  # (B, T + 1)
        tokens = to_device(drop_words(tokens, batch.rare, rate), model.device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        own = self.options.own_predictions(progress)
        sampler = self.sampler
        return model.loss(inputs, targets, state, lengths=batch.lengths, own_predictions=own, sampler=sampler)

    def carried_state(self, model: LanguageModel) -> State:
        """Return a state of one sequence."""
        return model.initial_state(1)

    def check(self, train: Corpus, valid: Corpus | None) -> None:
        """Check that a stream is long enough for its batches."""
        tokens, length = len(train.ids), self.config.training.sequence_length
        if self.config.data.unit == "line":
            return
        if length > tokens:
            raise RangeError(f"training.sequence_length: {length} is longer than the corpus; give at most {tokens}")
        if self.batch_size > tokens:
            raise RangeError(
                f"training.batch_size: {self.batch_size} is more than the tokens of the corpus; give at most {tokens}"
            )


class TextEvaluator(Evaluator[Corpus]):
    """Perplexities of texts under any language model."""

    settings = PerplexitySettings
    per_token = ("loss", "perplexity")
    baseline_name = "a unigram"
    counts = ("tokens", "words", "lines", "bytes", "unknown_tokens")
    metrics = (
        Metric("loss", "loss (nats per token)", 4),
        Metric("perplexity", "perplexity per token", 2, headline=True),
        Metric("word_perplexity", "perplexity per word", 2),
        Metric("bits_per_byte", "bits per byte", 4, headline=True),
    )

    def __init__(self, word_dropout: float) -> None:
        self.word_dropout = word_dropout

    def measure(self, model: TextModel, data: Corpus, **settings: object) -> Measurement:
        """Compute the metrics of `seriatim.evaluation.perplexity`; items are lines, or blocks of a running text."""
        window = read_settings(PerplexitySettings, settings).window
        return measure_blocks(*sum_blocks(data, window_losses(model, data, window)), data)

    def sample(self, data: Corpus, tokens: int | None) -> Corpus:
        """Return lines, or stretches of a running text, that are spread over it."""
        return sample_text(data, tokens)

    def trivial_baseline(self, train: Corpus, valid: Corpus, vocabulary: Vocabulary) -> JsonObject:
        """Compute the metrics of a unigram model."""
        return unigram_metrics(train, valid, vocabulary.tokenizer.vocabulary_size, word_dropout=self.word_dropout)


def measure_blocks(losses: np.ndarray, sizes: np.ndarray, data: Corpus) -> Measurement:
    """Return what follows from the summed losses and the numbers of tokens of the lines or blocks of a text."""
    statistics = np.stack([losses, sizes], axis=1)
    measures = {"loss": Measure(statistics, mean), "perplexity": Measure(statistics, lambda sums: np.exp(mean(sums)))}
    return Measurement(text_metrics(losses, sizes, data.statistics) | data.repairs.facts(), measures)


class TextBlender:
    """Mixes a language model with n-grams."""

    default_weight = 0.0

    def blend(self, model: TextModel, baseline: nn.Module, weight: float) -> Mixture:
        """Return the mixture of both models."""
        return mixture_of([model, baseline], [1 - weight, weight])

    def best_weight(self, model: TextModel, baseline: TextModel, data: Corpus) -> float:
        """Return the weight of the baseline in the mixture with the lowest loss, in hundredths; see `fit_weights`."""
        losses = np.stack([each_loss(model, data), each_loss(baseline, data)])
        return min(round(fit_weights(losses)[1], 2), 0.99)


def open_task(config: Config) -> Task:
    """Compose the parts of language modelling with a network."""
    reader, (options, _) = CorpusReader(config), split_options(Options, config)
    evaluator = TextEvaluator(config.model.options.get("word_dropout", 0.0))
    return Task(
        KIND,
        config,
        reader=reader,
        builder=LanguageModelBuilder(config),
        evaluator=evaluator,
        objective=TextObjective(config, evaluator, KIND.items_name, options),
        blender=TextBlender(),
        explain=lambda network: explain_language_model(network, reader.read),
    )


KIND = TaskKind(
    name="lm",
    summary=TASK_SUMMARIES["lm"],
    learning_rate=LEARNING_RATE,
    open=open_task,
    evaluator=TextEvaluator,
    usage="seriatim generate {run} --max-tokens 200",
    caution=(
        "It predicts text like what it was trained on, and repeats whatever that text holds. It knows nothing else."
    ),
    options=Options,
    reference_model="ngram",
    generates_text=True,
    defaults=defaults,
    data_defaults=data_defaults,
    shared_defaults=shared_defaults,
)
