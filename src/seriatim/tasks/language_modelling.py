"""Language modelling: P(w₁…w_T) = Π P(w_t | w_<t), over one running text or over lines."""

import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import SkipValidation, ValidationInfo, field_validator
from torch import Tensor, nn

from ..config import BATCH_SIZE, Config, Fields, Rate, Section, Training, read_settings
from ..core.device_copies import to_device
from ..core.errors import InputError
from ..core.state import State
from ..data.batching import Batch, Batches
from ..data.corpus import Corpus
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics, mean
from ..evaluation.perplexity import WINDOW, block_losses, each_loss, text_metrics, unigram_metrics
from ..layers import check_options, options_of, split_names
from ..layers.positions import check_lengths, declared_positions
from ..models import LanguageModel
from ..models.activation_penalties import Regularization
from ..models.base_models import TextModel, drop_words
from ..models.mixture import Mixture, fit_weights
from ..models.scheduled_sampling import ScheduledSampling
from ..training.adaptive_defaults import planned_passes, text_dropout
from ..training.estimator import Estimator
from ..training.loop import Trainer
from ..training.resource_limits import size_of
from ..training.task_data import Metric
from .base_tasks import TextTask, like_initial, split_options, with_kind, with_model
from .overlong import warn_of_long
from .text_view import CausalTextView, LanguageModelView

STREAM_WINDOW = 512
"""Default number of inputs that attention reads in a running text."""


class Options(Regularization, ScheduledSampling):
    """The options of a language model besides those of its layer: scheduled sampling and regularization."""

    word_dropout: Rate = 0.8
    """Rate at which a token that occurs once in the training text is replaced by the unknown token while training, so
    that the model learns where unknown tokens occur; only if the training text itself has no unknown tokens."""

    @field_validator("activation_regularization", "temporal_activation_regularization")
    @classmethod
    def _needs_whole_windows(cls, value: float, others: ValidationInfo) -> float:
        if value and others.data.get("scheduled_sampling"):
            raise ValueError("scheduled sampling runs one step at a time, without this penalty; leave one of them out")
        return value


class EvaluationSettings(Section):
    """How a language model is evaluated. ``window`` is the number of tokens read at once."""

    window: SkipValidation[int] = WINDOW  # checked where the text is read


class LanguageModelling(TextTask[Corpus, Batch, TextModel]):
    """Model the probability of texts."""

    own_options: ClassVar[type[Section] | None] = Options
    continues_text = True
    simple_baseline: ClassVar[str | None] = "ngram"
    timed_work = "writing a text"
    evaluation_settings = EvaluationSettings
    estimator: ClassVar[type[Estimator]] = Trainer
    endpoint = "completions"
    usage = "seriatim generate {run} --max-tokens 200"
    caution = (
        "It predicts text like what it was trained on, and repeats whatever that text holds. It knows nothing else."
    )
    per_token = ("loss", "perplexity")
    figures: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "loss (nats per token)", 4),
        Metric("perplexity", "perplexity per token", 2, headline=True),
        Metric("word_perplexity", "perplexity per word", 2),
        Metric("bits_per_byte", "bits per byte", 4, headline=True),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.task_options, self.layer_options = split_options(Options, self.config)

    @classmethod
    def with_defaults(cls, config: Config) -> Config:
        """Fill in the defaults: character tokens, one direction, and a window of attention for running text."""
        config = like_initial(config, reads_forwards=True)
        config = with_model(config, bidirectional=bool(config.model.bidirectional))
        return with_window(with_kind(config, "char"))

    def model_view(self, model: TextModel, vocabulary: Vocabulary) -> CausalTextView[TextModel] | LanguageModelView:
        """Return the view of one language model."""
        assert isinstance(model, LanguageModel)
        read_corpus = functools.partial(self.read, split="test", vocabulary=vocabulary)
        return LanguageModelView(self.config, model, vocabulary, read_corpus)

    def make_model(self, vocabulary: Vocabulary) -> TextModel:
        """Build a language model."""
        model = LanguageModel.from_config(self.config.model, vocabulary.tokenizer.vocabulary_size, self.layer_options)
        model.regularization = self.task_options
        model.begin = vocabulary.tokenizer.begin
        return model

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Corpus:
        """Read and encode a text, and refuse lines with more tokens than learned positions; see `Task.read`."""
        corpus = self.read_corpus(spec, split, vocabulary, file_format=file_format)
        lengths, items = corpus.lengths(1), "lines" if self.unit == "line" else "texts"
        warn_of_long(lengths, self.config, name=self.name_of(spec), items=items)
        place = functools.partial(self.place, corpus, spec=spec, split=split, file_format=file_format)
        check_lengths(declared_positions(self.config.model.options), lengths, place)
        return corpus

    def batches(self, data: Corpus) -> Batches:
        """Return windows of ``training.sequence_length`` tokens, which know the tokens that occur once."""
        rare = data.seen_once()
        return Batches(data, self.batch_size, self.config.training.sequence_length, rare=rare)

    def name_batch(self, batch: Batch) -> str:
        """Return which lines are in a batch; for a running text, which tokens of each of its parts."""
        if self.unit == "line":
            return super().name_batch(batch)
        rows, time = batch.targets.shape
        return f"tokens {batch.start + 1:,} to {batch.start + time:,} of each of {rows} parts of the text"

    def recipe(self, train: Corpus) -> Fields:
        """Return dropout for a model that is large beside its text."""
        if self.config.model.dropout is not None or train.tokenizer is None:
            return {}
        training, tokens = self.config.training, len(train.ids)
        row = training.sequence_length if train.ends is None else tokens / max(1, len(train.ends))
        passes = planned_passes(training, tokens, round(self.batch_size * training.accumulate * row))
        parameters = size_of(self, Vocabulary({"tokenizer": train.tokenizer})).parameters
        return {"model.dropout": text_dropout(parameters, tokens, passes)}

    @property
    def trains_by_steps(self) -> bool:
        """Whether some steps read the model's own predictions, which are known one step later."""
        return bool(self.task_options.scheduled_sampling)

    def loss(
        self, model: TextModel, batch: Batch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, State]:
        """Compute the loss by teacher forcing or scheduled sampling, from the state after the previous window."""
        assert isinstance(model, LanguageModel)
        rate = self.task_options.word_dropout if model.training else 0.0
        tokens = torch.cat([batch.inputs[:, :1], batch.targets], dim=1)
        tokens = to_device(drop_words(tokens, batch.rare, rate), model.device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        share = self.task_options.own_predictions(progress)
        return model.loss(inputs, targets, state, lengths=batch.lengths, own_predictions=share)

    def evaluate(self, model: TextModel, data: Corpus, **settings: object) -> Metrics:
        """Compute the metrics of `seriatim.evaluation.perplexity`."""
        return self.examine(model, data, **settings)[0]

    def measures(self, model: TextModel, data: Corpus, **settings: object) -> dict[str, Measure]:
        """Compute the contributions of lines, or of blocks of a running text."""
        return self.examine(model, data, **settings)[1]

    def examine(self, model: TextModel, data: Corpus, **settings: object) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results in one pass."""
        losses, sizes = block_losses(model, data, read_settings(EvaluationSettings, settings).window)
        return text_metrics(losses, sizes, data.statistics) | data.repairs.facts(), block_measures(losses, sizes)

    def baseline(self, train: Corpus, valid: Corpus, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of a unigram model."""
        rate = self.config.model.options.get("word_dropout", 0.0)
        return unigram_metrics(train, valid, vocabulary.tokenizer.vocabulary_size, word_dropout=rate)

    def describe(self, data: Corpus) -> str:
        """Return the number of tokens and words."""
        counts = data.statistics
        unknown = f", {counts.unknown_tokens:,} tokens unknown" if counts.unknown_tokens else ""
        return f"{counts.tokens:,} tokens ({counts.words:,} words{unknown})"

    def training_statistics(self, train: Corpus) -> Metrics:
        """Return the number of documents; the end of a text is learned from several only."""
        return {"documents": train.statistics.documents}

    def combine(self, models: Sequence[TextModel]) -> TextModel:
        """Return the mixture of the models with equal weights."""
        return Mixture(models)

    def blend(self, model: TextModel, baseline: nn.Module, weight: float) -> Mixture:
        """Return the mixture of both models."""
        assert isinstance(baseline, TextModel)
        return Mixture([model, baseline], [1 - weight, weight])

    def best_weight(self, model: TextModel, baseline: TextModel, data: Corpus) -> float:
        """Return the weight of the baseline in the mixture with the lowest loss, in hundredths; see `fit_weights`."""
        losses = np.stack([each_loss(model, data), each_loss(baseline, data)])
        return min(round(fit_weights(losses)[1], 2), 0.99)

    def carried_state(self, model: TextModel) -> State:
        """Return a state of one sequence."""
        return model.initial_state(1)

    def check(self, train: Corpus, valid: Corpus | None) -> None:
        """Check that a stream is long enough for its batches.

        Before, sizes of the batches that the user left open are set for a stream that is shorter than they are.
        """
        self.check_held_out()
        if train.tokenizer is not None and train.tokenizer.frames:
            raise InputError("training.init: a masked language model has no token that ends a line; train mlm from it")
        tokens, settings = len(train.ids), self.config.training
        if self.unit != "line":
            self.fit_batches(tokens)
        if self.unit != "line" and settings.sequence_length > tokens:
            raise InputError(
                f"training.sequence_length: {settings.sequence_length} is longer than the corpus ({tokens} tokens); "
                f"at most {tokens}"
            )
        if self.unit != "line" and self.batch_size > tokens:
            raise InputError(f"training.batch_size: {self.batch_size} rows for {tokens} tokens; at most {tokens}")

    def fit_batches(self, tokens: int) -> None:
        """Set the window and the number of rows, if they are not given, in place: at most what a short stream fills."""
        settings = self.config.training
        if "sequence_length" not in settings.model_fields_set and settings.sequence_length > tokens:
            settings.sequence_length = tokens
        if settings.batch_size is None and tokens < max(BATCH_SIZE, Training().sequence_length):
            settings.batch_size = max(1, tokens // settings.sequence_length)


def block_measures(losses: np.ndarray, sizes: np.ndarray) -> dict[str, Measure]:
    """Return the measures of blocks from their summed losses and their numbers of tokens."""
    statistics = np.stack([losses, sizes], axis=1)
    return {"loss": Measure(statistics, mean), "perplexity": Measure(statistics, lambda sums: np.exp(mean(sums)))}


def with_window(config: Config) -> Config:
    """Set a window of attention for running text unless one is given, and refuse positions that end before the text."""
    name, options = config.model.layer, config.model.options
    check_options(name, split_options(Options, config)[1])
    known = [options_of(one, options).get("window") for one in split_names(name)]
    if config.data.unit == "stream" and options.get("position") == "learned":
        raise InputError(
            "model.options.position: a running text goes beyond any learned positions; take rotary, alibi or none, or "
            "data.unit line"
        )
    if config.data.unit != "stream" or "window" in options or not any(known):
        return config
    return with_model(config, options={**options, "window": STREAM_WINDOW})
