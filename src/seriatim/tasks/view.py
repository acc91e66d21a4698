"""What inspection and comparison need of a task: words for it, examples, losses, predictions and mistakes.

Each task has a view beside it in `seriatim.tasks`, which implements the methods that make sense for it. The others
raise `NotOfferedError`, and a page shows its message in place of a section.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from ..config import Config
from ..core.errors import InputError
from ..data.tokenizers import Tokenizer
from ..data.vocabulary import Vocabulary
from ..evaluation.context_use import ContextExcess, ContextUse
from ..evaluation.error_analysis import Mistakes
from ..evaluation.intervals import Metrics
from ..evaluation.token_losses import TokenLosses
from ..evaluation.token_scores import ALTERNATIVES, TokenScores
from ..layers.positions import learned_positions
from ..models.base_models import input_embedding, input_layer
from ..models.exported_forms import ExportedModel
from .view_types import Example, LabelEffect, SearchResult, StateReader

MASK = "[MASK]"
ModelT = TypeVar("ModelT", bound=nn.Module, covariant=True, default=Any)


class NotOfferedError(InputError):
    """Raised by a view that does not offer what a section of a page needs."""


@dataclass(frozen=True)
class View(Generic[ModelT]):
    """What inspection and comparison ask of a task.

    The class attributes describe the task; an object answers questions about one model.
    """

    config: Config
    model: ModelT  # in evaluation mode
    vocabulary: Vocabulary
    blended: nn.Module | None = field(default=None, kw_only=True)

    title: ClassVar[str] = "model"  # what the model is called
    prediction_name: ClassVar[str] = "the prediction"  # the distribution that `predictions` returns, in words
    correct_name: ClassVar[str] = "answers correct"  # plural of correct answers, in words
    context_name: ClassVar[str] = "the answer"  # the answer whose probability `context_use` measures, in words
    first_section: ClassVar[str] = "surprisal"  # of a page: ``surprisal``, ``certainty`` or ``label-effect``
    sections: ClassVar[tuple[str, ...]] = ()  # names of further sections that only this task has
    max_tokens: ClassVar[int] = 400  # largest number of tokens of a text that are inspected
    windowed: ClassVar[bool] = False  # whether any stretch of a sequence is an example
    two_ends: ClassVar[bool] = False  # whether the loss can be taken at both ends of a sequence
    beam_search: ClassVar[bool] = False  # whether answers are searched for with a beam
    target_place: ClassVar[Literal["after", "at", "apart"]] = "apart"
    """Where a target is: the token after an input, a property of the input itself, or an answer to the whole text."""
    masks: ClassVar[bool] = False  # whether an input is masked when it is predicted
    no_alignment: ClassVar[str] = "the model has no decoder"  # why a search gives no alignment

    @property
    def answering(self) -> Any:
        """What answers: the model, or the model together with the simple baseline of its run."""
        return self.model if self.blended is None else self.blended

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the inputs."""
        return self.vocabulary.tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        """Tokenizer of what a decoder writes."""
        return self.tokenizer

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def running_text(self) -> bool:
        """Whether examples are stretches of one running text."""
        return False

    # A text as it is inspected.

    def excerpt(self, text: str) -> tuple[str, list[str]]:
        """Return the part of a text that is inspected, and sentences on what is left out.

        By default this is the first line that is not blank, and at most `max_tokens` tokens of it.
        """
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        notes = []
        if (count := len(lines)) > 1:
            notes.append(f"The text has {count:,} lines; only the first is inspected, since the run reads one line.")
        if (tokens := len(self.tokenizer.encode(lines[0]))) > self.max_tokens:
            notes.append(f"The line has {tokens:,} tokens; only the first {self.max_tokens:,} are inspected.")
        text = _first_tokens(lines[0], self.tokenizer, self.max_tokens)
        return text, notes + self.note_unknown(self.tokenizer.encode(text))

    def note_unknown(self, ids: np.ndarray) -> list[str]:
        """Return a sentence on the unknown tokens among ``ids``, if there are any."""
        unknown = 0 if self.tokenizer.unknown_id is None else int((ids == self.tokenizer.unknown_id).sum())
        if not unknown:
            return []
        tokens = (
            "One token is outside the vocabulary and is"
            if unknown == 1
            else f"{unknown:,} tokens are outside the vocabulary and are"
        )
        return [f"{tokens} read as <unk>."]

    def token_count(self, text: str) -> int:
        """Return the number of tokens of a text that are inspected."""
        return len(self.tokenizer.encode(text))

    # Examples: what the model reads, and its loss and predictions at the end.

    def examples(self, item: object) -> list[Example]:
        """Return what the model reads of a text or an item of `held_out`, cut to the number of learned positions.

        Raises:
            InputError: there is nothing to read in the text.
        """
        examples = [example for example in self.read(item) if example.inputs]
        if not examples:
            raise InputError("text: nothing in it to read; give a few words")
        positions = learned_positions(self.model)
        if positions is None:
            return examples
        return [example.beginning(positions // max(1, example.copies)) for example in examples]

    def read(self, item: object) -> list[Example]:
        """Return what the model reads of a text; see `examples`."""
        raise self.not_offered("no examples to read")

    def shortened(self, item: object, max_tokens: int) -> tuple[Example, int]:
        """Return the first tokens of an item without a boundary symbol in front, and how many tokens it has."""
        example = self.examples(item)[0]
        return example.part(range(max_tokens)), len(example.inputs)

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Run the model once over examples of one shape."""
        raise self.not_offered("no way to run its model")

    def end_losses(self, batch: Sequence[Example], *, at_start: bool = False) -> Tensor:
        """Return −log P ``(batch,)`` in nats at the end of each example, or at its start; differentiable.

        The result is in float64, so that the gradient of an almost certain answer is not rounded to zero.
        """
        raise self.not_offered("no loss")

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P ``(batch,)`` in nats of the target at one place of each example; differentiable, in float64.

        A model with one target for a whole text has the place 0 only.
        """
        return self.end_losses(batch)

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the targets whose losses `place_losses` returns, in the order of their places."""
        raise self.not_offered("no targets")

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return the probabilities ``(batch, predictions, outcomes)`` at the end of some examples of one length.

        There is one prediction for each example, or one for each token of the answer.
        """
        raise self.not_offered("no distribution of its predictions")

    def tensors(self, batch: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of examples of one shape, ``(batch, time)`` each."""
        inputs, targets = [example.inputs for example in batch], [example.targets for example in batch]
        return torch.tensor(inputs, device=self.device), torch.tensor(targets, dtype=torch.long, device=self.device)

    def token_names(self, ids: Sequence[int], tokenizer: Tokenizer | None = None) -> tuple[str, ...]:
        """Return the names of tokens; ids beyond the vocabulary are masks."""
        tokenizer = tokenizer or self.tokenizer
        return tuple(MASK if token >= tokenizer.vocabulary_size else tokenizer.describe(token) for token in ids)

    # Measurements of one text.

    def token_scores(self, item: object, *, alternatives: int = ALTERNATIVES) -> TokenScores:
        """Return the surprisal of each token of an excerpt, of the answer to it, or of its tags.

        The item is a text, or another one that `read` reads. For each place, the ``alternatives`` most likely tokens or
        tags are listed.
        """
        raise self.not_offered("no probabilities of single tokens")

    def label_effect(self, text: str) -> LabelEffect:
        """Return how the predicted label depends on each token."""
        raise self.not_offered("no labels of whole texts")

    def search(self, text: str, beam: int) -> SearchResult:
        """Return the answer that a search with this beam finds."""
        raise self.not_offered("no translations")

    def context_use(self, item: object) -> ContextUse:
        """Return the loss when only the last tokens are seen: of the text itself, or of the model's answer.

        The item is a text, or an item that `read` reads.
        """
        raise self.not_offered("no loss for shorter contexts")

    def context_excess(self, spec: str, file_format: str | None) -> ContextExcess:
        """Return by how much the loss on some data is higher with short contexts; the arguments as in `Task.read`."""
        raise self.not_offered("no loss for shorter contexts")

    def token_losses(self, data: Any, train: Any) -> TokenLosses:
        """Return the losses of single tokens of a part of some data; both arguments are results of `Task.read`."""
        raise self.not_offered("no losses of single tokens")

    def ngram_counts(self, text: str) -> Metrics:
        """Return how many n-grams of a text the training text lacks; see `seriatim.models.ngrams.unseen`."""
        raise NotOfferedError("the run does not count n-grams")

    # Parts of the model.

    def embeddings(self) -> Tensor:
        """Return the embeddings of the input tokens ``(vocabulary, size)``."""
        embedding = input_embedding(self.model)
        if embedding is None:
            raise self.not_offered("no embeddings")
        return embedding.weight

    def exported(self) -> ExportedModel:
        """Return the functions that other programs run, and what they must know beside them."""
        raise InputError(f"layer {self.config.model.layer}: not a network of layers, which other programs could run")

    def state_reader(self) -> StateReader:
        """Return a way to read tokens and keep the state: by default, zeros are read by the layer of the model."""
        layer = input_layer(self.model)
        if layer is None:
            raise self.not_offered("no state")
        if not layer.causal:
            raise no_state()
        zeros, width = layer.zeros, layer.input_size
        return StateReader(layer.initial_state(1), lambda count, state: layer(zeros(1, count, width), state)[1])

    # Labelled data.

    def mistakes(self, spec: str, file_format: str | None) -> Mistakes:
        """Return the mistakes on the beginning of some labelled data; the arguments are as in `Task.read`."""
        raise self.not_offered("no list of its mistakes")

    def gold(self, text: str, spec: str, file_format: str | None) -> Sequence[str] | None:
        """Return the gold answer of a text in labelled data: a label, tags or a translation; None if it is not there.

        The other arguments are as in `Task.read`.
        """
        return None

    def held_out(self, spec: str, file_format: str | None, *, count: int, tokens: int) -> Sequence[object]:
        """Return at most ``count`` items of some data for `examples`; stretches of one text have ``tokens`` tokens."""
        return []

    def not_offered(self, missing: str) -> NotOfferedError:
        """Return the error for something that the task does not offer, such as ``no embeddings``."""
        return NotOfferedError(f"the task {self.config.task} offers {missing}")


def no_words() -> InputError:
    """Return the error for a text without words."""
    return InputError("the text has no words; give some with --text or --text-file")


def no_state() -> InputError:
    """Return the error for a model without a state that goes from token to token."""
    return InputError("a model that reads from both sides keeps the whole text and has no state to measure")


def _first_tokens(line: str, tokenizer: Tokenizer, limit: int) -> str:
    """Return the beginning of a line, at most ``limit`` tokens."""
    if tokenizer.ends_lines:
        words = line.split()
        return line if len(words) <= limit else " ".join(words[:limit])
    return line[: bisect_right(range(1, len(line) + 1), limit, key=lambda size: len(tokenizer.encode(line[:size])))]
