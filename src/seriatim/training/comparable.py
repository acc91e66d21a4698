"""What a comparison of models asks of a task. Every method has a default, which a task may override."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import nn

from ..data.vocabulary import Vocabulary
from ..models.base_models import NeuralModel
from ..models.stepping import Stepper, layer_stepper


class ComparableTask:
    """The part of a task that a comparison of models uses.

    Attributes:
        works_causally: whether the task can also be done by reading in one direction only.
        continues_text: whether a model generates text, so that the time of a token is that of sampling.
        tags_words: whether an answer has one tag for each word of the input.
        timed_work: what the time of a token measures, in words.
    """

    works_causally: ClassVar[bool] = False
    continues_text: ClassVar[bool] = False
    tags_words: ClassVar[bool] = False
    timed_work: ClassVar[str] = "reading and answering"

    def labelled_items(self, spec: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield inputs, as `Task.answer` reads them, with the right answers; nothing where answers have no truth."""
        return iter(())

    def stepper(self, model: nn.Module) -> Stepper | None:
        """Return what runs a model token by token; None where it needs the whole text at once."""
        return layer_stepper(model)

    def reading_module(self, model: nn.Module) -> nn.Module | None:
        """Return the part of a model that reads a text."""
        return model.input_layer if isinstance(model, NeuralModel) else None

    def timed_tokens(self, vocabulary: Vocabulary, text: str, answer: Mapping[str, object]) -> int:
        """Return the number of tokens that the time of an answer is divided by."""
        return len(vocabulary.tokenizer.encode(text))
