"""What can be shown of a model: optional capabilities, composed in one frozen value.

A task composes an `Explainer` for each family of its models. Inspection, comparison and export ask it for one
capability at a time, such as losses or the search for an answer. In place of a capability that a model lacks stands a
`Refusal`, and the page shows its sentence in place of a section. Larger capabilities are interfaces, smaller ones are
functions; see the fields of `Explainer`.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from ..config import Config
from ..core.errors import EmptyError, InputError, NotSupportedError
from ..core.json_object import JsonObject
from ..core.state import State
from ..counting.ngrams.orders_used import OrdersUsed
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.context_use import ContextExcess
from ..evaluation.error_analysis import Mistakes
from ..evaluation.token_scores import TokenLosses, TokenSurprisals, counted
from ..layers.positions import learned_positions
from ..models.base_models import input_embedding, input_layer
from ..models.exported_forms import ExportedModel

MASK = "[MASK]"
MAX_LINE = 400
"""Largest number of tokens of a line that are inspected."""
ModelT = TypeVar("ModelT", bound=nn.Module, covariant=True, default=Any)


@dataclass(frozen=True)
class ExplainedModel(Generic[ModelT]):
    """A model that is explained, and what answers: ``answering`` is the model, or it with the simple baseline."""

    config: Config
    model: ModelT  # in evaluation mode
    vocabulary: Vocabulary
    answering: Any

    @property
    def is_blended(self) -> bool:
        """Whether the model answers together with a simple baseline."""
        return self.answering is not self.model

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))


# What capabilities take and return


@dataclass(frozen=True)
class Example:
    """One sequence as a model reads it."""

    inputs: tuple[int, ...]  # token ids; for a translator, those of the source
    targets: tuple[int, ...]  # the next tokens, a label, tags, or the target of a translator with its end
    tokens: tuple[str, ...]  # names of the inputs
    decoded: tuple[str, ...] = ()  # names of the tokens that a decoder reads, if there is one
    words: tuple[str, ...] = ()  # the inputs, for models that read the characters of words
    answers: tuple[str, ...] = ()  # names of the targets, one for each input, if they are not those of the vocabulary

    @property
    def shape(self) -> tuple[int, int]:
        """Examples of the same shape can be read as one batch."""
        return len(self.inputs), len(self.targets)

    @property
    def length(self) -> int:
        """Number of inputs, or of tokens that a decoder reads if these are more."""
        return max(len(self.inputs), len(self.decoded))

    @property
    def copies(self) -> int:
        """Number of names for each input; above 1 if a model repeats its inputs."""
        return len(self.tokens) // max(1, len(self.inputs))

    def beginning(self, size: int) -> "Example":
        """Return the first inputs, and the first tokens that a decoder reads."""
        first = self.at(range(size))
        return replace(first, targets=first.targets[:size], decoded=self.decoded[:size])

    def repeated(self, copies: int) -> "Example":
        """Return the example with several names for each input, for a model that repeats its inputs."""
        return replace(self, tokens=tuple(name for name in self.tokens for _ in range(copies)))

    def at(self, positions: Sequence[int]) -> "Example":
        """Return the inputs at some positions, in this order, with their targets if there is one for each input."""
        positions = [position for position in positions if position < len(self.inputs)]
        aligned = len(self.targets) == len(self.inputs) and not self.decoded
        return replace(
            self,
            inputs=tuple(self.inputs[i] for i in positions),
            targets=tuple(self.targets[i] for i in positions) if aligned else self.targets,
            tokens=tuple(self.tokens[i * self.copies + copy] for i in positions for copy in range(self.copies)),
            words=tuple(self.words[i] for i in positions) if self.words else (),
            answers=tuple(self.answers[i] for i in positions) if self.answers else (),
        )


@dataclass(frozen=True)
class LabelEffect:
    """How the label that a network predicts for a text depends on its tokens."""

    tokens: list[str]  # as they appear in the text
    labels: list[str]
    full: np.ndarray  # (labels,): P(label) for all tokens
    without: np.ndarray  # (tokens, labels): P(label) of the text without each token
    answer: np.ndarray  # (labels,): P(label) of what the run answers, with its simple baseline if it has one

    @property
    def predicted(self) -> int:
        """Index of the label that is most likely for the network alone."""
        return int(self.full.argmax())

    def bits(self) -> np.ndarray:
        """Return by how much each token raises log₂ P(predicted label), compared with the text without it."""
        least = np.finfo(float).tiny
        others = np.maximum(self.without[:, self.predicted], least)
        return np.asarray(np.log2(max(self.full[self.predicted], least)) - np.log2(others))


class SearchResult(NamedTuple):
    """An answer that was searched for."""

    text: str
    log_probability: float  # of the answer with its end, in nats; NaN for a model without probabilities


class TextOrders(NamedTuple):
    """Which orders of an n-gram model each token of a text is predicted from, and what its counts lack.

    The ``counts`` of the n-grams that end at each token and those of their contexts, ``(orders, tokens)`` each, are
    those of the training data; None where these are not read. For ``unseen`` see `counting.ngrams.unseen`.
    """

    tokens: list[str]  # names
    used: OrdersUsed
    counts: tuple[np.ndarray, np.ndarray] | None
    unseen: JsonObject


# The interfaces


Excerpt = Callable[[str], tuple[str, list[str]]]
"""Returns the part of a text that is inspected, and sentences on what is left out."""


def first_line(text: str, *, tokenizer: Tokenizer, notes_unknown: bool = True) -> tuple[str, list[str]]:
    """Return at most `MAX_LINE` tokens of the first line that is not blank, and sentences on what is left out.

    Unknown words are counted if the model ``notes_unknown``: if it reads them as unknown.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    notes = []
    if (count := len(lines)) > 1:
        notes.append(f"The text has {count:,} lines; only the first is inspected, since the run reads one line.")
    if (tokens := len(tokenizer.encode(lines[0]))) > MAX_LINE:
        notes.append(f"The line has {tokens:,} tokens; only the first {MAX_LINE:,} are inspected.")
    text = _first_tokens(lines[0], tokenizer, MAX_LINE)
    if notes_unknown:
        notes += note_unknown(tokenizer, tokenizer.encode(text))
    return text, notes


def _first_tokens(line: str, tokenizer: Tokenizer, limit: int) -> str:
    """Return the beginning of a line, at most ``limit`` tokens."""
    if tokenizer.ends_lines:
        words = line.split()
        return line if len(words) <= limit else " ".join(words[:limit])
    return line[: bisect_right(range(1, len(line) + 1), limit, key=lambda size: len(tokenizer.encode(line[:size])))]


def note_unknown(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """Return a sentence on the unknown tokens among ``ids``, if there are any."""
    unknown = 0 if tokenizer.unknown_id is None else int((ids == tokenizer.unknown_id).sum())
    return (
        [f"Outside the vocabulary, and read as <unk>: {unknown:,} of {counted(len(ids), 'tokens')}."] if unknown else []
    )


class Examples(ABC, Generic[ModelT]):
    """What a model reads of a text, token by token."""

    predicts: Literal["next token", "each token", "sequence"] = "sequence"
    """The targets: the token after each input, a property of each input itself, or an answer to the whole text."""
    masks_targets: bool = False  # whether an input is masked when it is predicted
    is_divisible: bool = False  # whether any stretch of a sequence is an example

    def __init__(self, explained: ExplainedModel[ModelT]) -> None:
        self.explained, self.model, self.vocabulary = explained, explained.model, explained.vocabulary

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the inputs."""
        return self.vocabulary.tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        """Tokenizer of what a decoder writes."""
        return self.tokenizer

    @property
    def running_text(self) -> bool:
        """Whether examples are stretches of one running text."""
        return self.is_divisible and self.explained.config.data.unit == "stream"

    @abstractmethod
    def read(self, item: object) -> list[Example]:
        """Return what the model reads of a text, or of an item of `LabelledData.held_out`."""

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Run the model once over examples of one shape; not every model can be observed while it reads."""
        raise NotOfferedError("this task offers no way to run its model")

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P ``(batch,)`` in nats of the target at one position of each example; differentiable.

        The result is in float64, so that the gradient of an almost certain answer is not rounded to zero. A model with
        one target for a whole text has one loss, whatever the position.
        """
        raise NotOfferedError("this task offers no losses of its targets")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the targets, in the order of their positions: by default, of one for the whole text."""
        return ("the answer",)

    def end_place(self, example: Example, *, at_start: bool = False) -> int:
        """Return the position of the last target, or of the first one."""
        return 0 if at_start else len(example.targets) - 1

    def shortened(self, item: object, max_tokens: int) -> tuple[Example, int]:
        """Return the first tokens of an item without a boundary symbol in front, and how many tokens it has."""
        example = self.fitting(item)[0]
        return example.at(range(max_tokens)), len(example.inputs)

    def fitting(self, item: object) -> list[Example]:
        """Return the examples of an item, cut to the number of learned positions.

        Raises:
            InputError: there is nothing to read in the text.
        """
        examples = [example for example in self.read(item) if example.inputs]
        if not examples:
            raise EmptyError("text: nothing in it to read; give a few words")
        positions = learned_positions(self.model)
        if positions is None:
            return examples
        return [example.beginning(positions // max(1, example.copies)) for example in examples]

    def tensors(self, batch: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of examples of one shape, ``(batch, time)`` each."""
        inputs, targets = [example.inputs for example in batch], [example.targets for example in batch]
        device = self.explained.device
        return torch.tensor(inputs, device=device), torch.tensor(targets, dtype=torch.long, device=device)

    def token_names(self, ids: Sequence[int], tokenizer: Tokenizer | None = None) -> tuple[str, ...]:
        """Return the names of tokens; ids beyond the vocabulary are masks."""
        tokenizer = tokenizer or self.tokenizer
        return tuple(MASK if token >= tokenizer.vocabulary_size else tokenizer.describe(token) for token in ids)


class LabelledData(ABC):
    """Reads data with right answers. The source and the format of the data are those of `Reader.read`."""

    @abstractmethod
    def mistakes(self, source: str, file_format: str | None) -> Mistakes:
        """Return the mistakes on the beginning of some labelled data."""

    def reference_answer(self, text: str, source: str, file_format: str | None) -> Sequence[str] | None:
        """Return the right answer to a text: a label, tags or translations; None if the data do not have it."""
        return None

    def held_out(self, source: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return at most ``count`` items for `Examples.read`; stretches of one text have ``tokens`` tokens."""
        return []


def no_words() -> InputError:
    """Return the error for a text without words."""
    return EmptyError("the text has no words; give some with --text or --text-file")


Capability = TypeVar("Capability")


class NotOfferedError(NotSupportedError):
    """Raised for a capability that an explainer does not have."""


@dataclass(frozen=True)
class Refusal:
    """What stands in place of a capability: the sentence that says why it is missing."""

    sentence: str


NO_STATE = Refusal("a model that reads from both sides keeps the whole text and has no state to measure")


@dataclass(frozen=True)
class Wording:
    """Words for titles and captions."""

    title: str = "model"  # what the model is called
    prediction: str = "the prediction"  # the distribution that `Explainer.predictions` returns
    correct: str = "answers correct"  # plural of correct answers


@dataclass(frozen=True)
class Explainer:
    """What can be shown of one model; only words for it are needed.

    A section of a page that asks for a capability that is missing is skipped, with the sentence of the `Refusal`.
    """

    explained: ExplainedModel
    wording: Wording = Wording()
    excerpt: Excerpt | None = None  # None for the first line

    # The text as the model reads it, and how it is differentiated
    inputs: Examples | Refusal = Refusal("this task offers no examples to read")

    # What it predicts: ``(batch, predictions, outcomes)`` at the end of examples of one length
    predictions: Callable[[Sequence[Example]], Tensor] | Refusal = Refusal(
        "this task offers no distribution of its predictions"
    )
    token_scores: Callable[[object], TokenSurprisals] | Refusal = Refusal(
        "this task offers no probabilities of single tokens"
    )
    label_effect: Callable[[str], LabelEffect] | Refusal = Refusal("this task offers no labels of texts")
    search: Callable[[str, int], SearchResult] | Refusal = Refusal("this task offers no translations")  # with a beam
    ngram_orders: Callable[[str, str | None], TextOrders] | Refusal = Refusal("this model has no counts of n-grams")
    """Of a text, and of the training data, in which its n-grams are counted."""

    # The loss on some data when only the last tokens are seen, and the losses of single tokens
    context_excess: Callable[[str, str | None], ContextExcess] | Refusal = Refusal(
        "this task offers no loss for shorter contexts"
    )
    token_losses: Callable[..., TokenLosses] | Refusal = Refusal("this task offers no losses of single tokens")

    # Parts of the model; None for those of the layer that reads the inputs
    embeddings: Tensor | Refusal | None = None  # (vocabulary, size)
    states: Callable[[int], State] | Refusal | None = None  # after so many tokens; of a decoder, after such a source

    export: Callable[[], ExportedModel] | None = None  # functions that other programs run, and what they must know
    labelled: LabelledData | Refusal = Refusal("this task offers no list of its mistakes")

    def require(self, capability: Capability | Refusal) -> Capability:
        """Return a capability.

        Raises:
            NotOfferedError: it is missing.
        """
        if isinstance(capability, Refusal):
            raise NotOfferedError(capability.sentence)
        return capability

    @property
    def model(self) -> nn.Module:
        """The model without a baseline."""
        model: nn.Module = self.explained.model
        return model

    @property
    def searches(self) -> bool:
        """Whether answers are searched for with a beam."""
        return not isinstance(self.search, Refusal)

    def inspected(self, text: str) -> tuple[str, list[str]]:
        """Return the part of a text that is inspected, and sentences on what is left out."""
        return (self.excerpt or partial(first_line, tokenizer=self.explained.vocabulary.tokenizer))(text)

    def examples(self, item: object) -> list[Example]:
        """Return what the model reads of a text or an item of `LabelledData.held_out`; see `Examples.fitting`."""
        return self.require(self.inputs).fitting(item)

    def embedding_table(self) -> Tensor:
        """Return the embeddings of the input tokens ``(vocabulary, size)``."""
        if self.embeddings is not None:
            return self.require(self.embeddings)
        embedding = input_embedding(self.model)
        return self.require(Refusal("this task offers no embeddings") if embedding is None else embedding.weight)

    def state_after(self, tokens: int) -> State:
        """Return the state after a number of tokens: by default, that of the layer of the model, which reads zeros."""
        if self.states is not None:
            return self.require(self.states)(tokens)
        layer = self.require(input_layer(self.model) or Refusal("this task offers no state"))
        if not layer.causal:
            self.require(NO_STATE)
        state: State = layer(layer.zeros(1, tokens, layer.input_size))[1]
        return state

    def exported(self) -> ExportedModel:
        """Return the functions that other programs run."""
        if self.export is None:
            layer = self.explained.config.model.layer
            raise NotSupportedError(f"model.layer: {layer} is no network to export; give a run of a neural layer")
        return self.export()
