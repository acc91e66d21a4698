"""Language modelling: P(w₁…w_T) = Π P(w_t | w_<t), over one running text or over lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import SkipValidation
from torch import Tensor, nn

from ..config import Config, Section
from ..core.errors import InputError
from ..core.state import State
from ..data.batching import Batch, Batches
from ..data.corpus import Corpus, count_text, encode_corpus, fit_corpus_tokenizer
from ..data.encoding import BLOCK
from ..data.readers import Source, find_sources
from ..data.tokenizers import END, Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Measure, Metrics, mean
from ..evaluation.perplexity import WINDOW, block_losses, evaluate_language_model, text_metrics, unigram_metrics
from ..layers import check_options, options_of, split_names
from ..layers.positions import MAX_LENGTH
from ..models import LanguageModel
from ..models.base_models import TextModel
from ..models.mixture import Mixture
from ..models.scheduled_sampling import ScheduledSampling
from ..models.stepping import Stepper, text_stepper
from ..training.estimator import Estimator
from ..training.loop import Trainer
from ..training.task import Task, read_settings
from ..training.task_data import Figure
from .options import split_options, with_kind
from .overlong import warn_of_long
from .text_view import CausalTextView, LanguageModelView

STREAM_WINDOW = 512
"""Default number of inputs that attention reads in a running text."""


class Options(ScheduledSampling):
    """The options of a language model besides those of its layer: scheduled sampling."""


class EvaluationSettings(Section):
    """How a language model is evaluated. ``window`` is the number of tokens read at once."""

    window: SkipValidation[int] = WINDOW  # checked where the text is read


class LanguageModelling(Task[Corpus, Batch, TextModel]):
    """Model the probability of texts."""

    own_options: ClassVar[type[Section] | None] = Options
    continues_text = True
    timed_work = "writing a text"
    evaluation_settings = EvaluationSettings
    estimator: ClassVar[type[Estimator]] = Trainer
    baseline_name = "a unigram"
    usage = "seriatim generate {run} --max-tokens 200"
    caution = (
        "It predicts text like what it was trained on, and repeats whatever that text holds. It knows nothing else."
    )
    per_token = ("loss", "perplexity")
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("loss", "loss (nats per token)", 4),
        Figure("perplexity", "perplexity per token", 2, headline=True),
        Figure("word_perplexity", "perplexity per word", 2),
        Figure("bits_per_byte", "bits per byte", 4, headline=True),
    )
    counts = ("tokens", "words", "lines", "bytes", "unknown_tokens")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.sampling, self.layer_options = split_options(Options, self.config)

    @classmethod
    def settle(cls, config: Config) -> Config:
        """Fill in the defaults: character tokens, one direction, and a window of attention for running text."""
        model = config.model.model_copy(update={"bidirectional": bool(config.model.bidirectional)})
        return with_window(with_kind(config.model_copy(update={"model": model}), "char"))

    def view(self) -> type[CausalTextView[TextModel]]:
        """Return the view of language models."""
        return CausalTextView

    def model_view(self, model: TextModel, vocabulary: Vocabulary) -> CausalTextView[TextModel] | LanguageModelView:
        """Return the view of one language model."""
        assert isinstance(model, LanguageModel)
        return LanguageModelView(self.config, model, vocabulary, self.test_reader(vocabulary))

    def test_reader(self, vocabulary: Vocabulary) -> Callable[[str, str | None], Corpus]:
        """Return a function that reads and encodes test data, in some format."""
        return lambda spec, file_format: self.read(spec, "test", vocabulary, file_format=file_format)

    def learn_vocabulary(self) -> Vocabulary:
        """Learn the tokenizer from the training text."""
        sources = find_sources(self.training_spec(), file_format=self.config.data.format, split="train")
        return Vocabulary({"tokenizer": fit_corpus_tokenizer(sources, self.config.tokenizer, unit=self.unit)})

    def make_model(self, vocabulary: Vocabulary) -> TextModel:
        """Build a language model."""
        return LanguageModel.from_config(self.config.model, vocabulary.tokenizer.vocabulary_size, self.layer_options)

    def stepper(self, model: nn.Module) -> Stepper | None:
        """Return what runs a language model token by token."""
        return text_stepper(model) if isinstance(model, TextModel) else None

    def reading_module(self, model: nn.Module) -> nn.Module:
        """Return the language model itself."""
        return model

    def read(self, spec: str, split: str, vocabulary: Vocabulary, *, file_format: str | None = None) -> Corpus:
        """Read and encode a text; see `Task.read`."""
        sources = find_sources(spec, file_format=file_format or self.config.data.format, split=split)
        corpus = encode_corpus(sources, vocabulary.tokenizer, unit=self.unit)
        refuse_unknown(corpus, vocabulary.tokenizer, sources)
        starts, ends = corpus.spans(1)
        warn_of_long(ends - starts, self.config, name=spec, items="lines" if self.unit == "line" else "texts")
        return corpus

    def count(self, spec: str, split: str, vocabulary: Vocabulary) -> dict[str, object]:
        """Return the statistics of a text."""
        data = self.config.data
        sources = find_sources(spec, file_format=data.format, split=split)
        return count_text(sources, vocabulary.tokenizer, unit=data.unit)

    def batches(self, data: Corpus) -> Batches:
        """Return windows of ``training.sequence_length`` tokens."""
        return Batches(data, self.config.training.batch_size, self.config.training.sequence_length)

    def name_batch(self, batch: Batch) -> str:
        """Return which lines are in a batch; for a running text, which tokens of each of its parts."""
        if self.unit == "line":
            return super().name_batch(batch)
        rows, time = batch.targets.shape
        return f"tokens {batch.start + 1:,} to {batch.start + time:,} of each of {rows} parts of the text"

    def loss(
        self, model: TextModel, batch: Batch, state: State | None, *, progress: float = 0.0
    ) -> tuple[Tensor, State]:
        """Compute the loss by teacher forcing or scheduled sampling, from the state after the previous window."""
        assert isinstance(model, LanguageModel)
        device = model.device
        return model.loss(
            batch.inputs.to(device),
            batch.targets.to(device),
            state,
            lengths=batch.lengths,
            own_predictions=self.sampling.own_predictions(progress),
        )

    def evaluate(self, model: TextModel, data: Corpus, **settings: object) -> Metrics:
        """Compute the metrics of `seriatim.evaluation.perplexity`."""
        return evaluate_language_model(model, data, window=read_settings(EvaluationSettings, settings).window)

    def measures(self, model: TextModel, data: Corpus, **settings: object) -> dict[str, Measure]:
        """Compute the contributions of lines, or of blocks of a running text."""
        return block_measures(*block_losses(model, data, read_settings(EvaluationSettings, settings).window))

    def examine(self, model: TextModel, data: Corpus) -> tuple[Metrics, dict[str, Measure]]:
        """Compute both results in one pass."""
        losses, sizes = block_losses(model, data, WINDOW)
        return text_metrics(losses, sizes, data.statistics), block_measures(losses, sizes)

    def baseline(self, train: Corpus, valid: Corpus, vocabulary: Vocabulary) -> Metrics:
        """Compute the metrics of a unigram model."""
        return unigram_metrics(train, valid, vocabulary.tokenizer.vocabulary_size)

    def describe(self, data: Corpus) -> str:
        """Return the number of tokens and words."""
        counts = data.statistics
        unknown = f", {counts.unknown_tokens:,} tokens unknown" if counts.unknown_tokens else ""
        return f"{counts.tokens:,} tokens ({counts.words:,} words{unknown})"

    def facts(self, train: Corpus) -> Metrics:
        """Return the number of documents; the end of a text is learned from several only."""
        return {"documents": train.statistics.documents}

    def combine(self, models: Sequence[TextModel]) -> TextModel:
        """Return the mixture of the models with equal weights."""
        return Mixture(models)

    def carried(self, model: TextModel) -> State:
        """Return a state of one sequence."""
        return model.initial_state(1)

    def check(self, train: Corpus, valid: Corpus | None) -> None:
        """Check that a stream is long enough for its batches, and that there are enough learned positions.

        Raises:
            InputError: there are not.
        """
        self.check_held_out()
        check_sizes(self.config, train)
        check_positions(self.config, {"data.train": train, "data.valid": valid})

    @property
    def unit(self) -> str:
        """``stream`` for one running text, or ``line``."""
        return self.config.data.unit


def block_measures(losses: np.ndarray, sizes: np.ndarray) -> dict[str, Measure]:
    """Return the measures of blocks from their summed losses and their numbers of tokens."""
    statistics = np.stack([losses, sizes], axis=1)
    return {"loss": Measure(statistics, mean), "perplexity": Measure(statistics, lambda sums: np.exp(mean(sums)))}


def with_window(config: Config) -> Config:
    """Set a window of attention for running text, which has no end, unless one is given.

    Raises:
        InputError: an option that does not exist, or positions that end before the text does.
    """
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
    bounded = config.model.model_copy(update={"options": {**options, "window": STREAM_WINDOW}})
    return config.model_copy(update={"model": bounded})


def refuse_unknown(corpus: Corpus, tokenizer: Tokenizer, sources: Sequence[Source]) -> None:
    """Raise InputError for a text of unknown tokens only."""
    if not corpus.statistics.unknown_tokens:
        return
    blocks = (corpus.ids[start : start + BLOCK] for start in range(0, len(corpus.ids), BLOCK))
    if not any(np.any((block != END) & (block != tokenizer.unknown_id)) for block in blocks):
        raise InputError(
            f"{sources[0].name}: only unknown {tokenizer.kind}s; is it the right file, "
            "and tokenizer.min_count and vocabulary_size fit for it?"
        )


def check_positions(config: Config, corpora: Mapping[str, Corpus | None]) -> None:
    """Raise InputError if a line has more tokens, its end included, than there are learned positions."""
    options = config.model.options
    if options.get("position") != "learned":
        return
    most = options.get("max_length", MAX_LENGTH)
    for name, corpus in corpora.items():
        starts, ends = corpus.spans(1) if corpus is not None else (np.zeros(1), np.zeros(1))
        longest = int((ends - starts).argmax())
        needed = int(ends[longest] - starts[longest])
        if needed > most:
            raise InputError(
                f"{name}: line {longest + 1} has {needed} tokens, its end included, and there are {most} learned "
                f"positions; set model.options.max_length to {needed}, or take position rotary, alibi or sinusoidal"
            )


def check_sizes(config: Config, train: Corpus) -> None:
    """Raise InputError if a stream is too short for its batches."""
    tokens, settings = len(train.ids), config.training
    if config.data.unit == "line":
        return
    if settings.sequence_length > tokens:
        raise InputError(
            f"training.sequence_length: {settings.sequence_length} is longer than the corpus ({tokens} tokens); "
            f"at most {tokens}"
        )
    if settings.batch_size > tokens:
        raise InputError(f"training.batch_size: {settings.batch_size} rows for {tokens} tokens; at most {tokens}")
