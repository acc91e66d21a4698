"""What the views of tasks give: examples, effects on a label, answers that were searched for, readers of states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..core.state import State


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
        first = self.part(range(size))
        return replace(first, targets=first.targets[:size], decoded=self.decoded[:size])

    def repeated(self, copies: int) -> "Example":
        """Return the example with several names for each input, for a model that repeats its inputs."""
        return replace(self, tokens=tuple(name for name in self.tokens for _ in range(copies)))

    def part(self, places: Sequence[int]) -> "Example":
        """Return the inputs at some places, in this order, with their targets if there is one for each input."""
        places = [place for place in places if place < len(self.inputs)]
        aligned = len(self.targets) == len(self.inputs) and not self.decoded
        return replace(
            self,
            inputs=tuple(self.inputs[i] for i in places),
            targets=tuple(self.targets[i] for i in places) if aligned else self.targets,
            tokens=tuple(self.tokens[i * self.copies + copy] for i in places for copy in range(self.copies)),
            words=tuple(self.words[i] for i in places) if self.words else (),
            answers=tuple(self.answers[i] for i in places) if self.answers else (),
        )


@dataclass(frozen=True)
class LabelEffect:
    """How the label that a network predicts for a text depends on its tokens."""

    tokens: list[str]  # as they appear in the text
    labels: list[str]
    full: np.ndarray  # (labels,): P(label) for all tokens
    prefixes: np.ndarray | None  # (tokens, labels): P(label) after each token; None if the model is bidirectional
    without: np.ndarray  # (tokens, labels): P(label) of the text without each token
    blended: np.ndarray | None = None  # (labels,): P(label) of the run, if it answers with its simple baseline, too

    @property
    def predicted(self) -> int:
        """Index of the label that is most likely for the network alone."""
        return int(self.full.argmax())

    @property
    def answer(self) -> np.ndarray:
        """P(label) of what the run answers ``(labels,)``."""
        return self.full if self.blended is None else self.blended

    def bits(self) -> np.ndarray:
        """Return by how much each token raises log₂ P(predicted label), compared with the text without it."""
        least = np.finfo(float).tiny
        others = np.maximum(self.without[:, self.predicted], least)
        return np.asarray(np.log2(max(self.full[self.predicted], least)) - np.log2(others))


class SearchResult(NamedTuple):
    """An answer that was searched for."""

    text: str
    log_probability: float  # of the answer with its end, in nats
    source_tokens: Sequence[str] = ()  # names of the tokens
    target_tokens: Sequence[str] = ()  # names of the tokens, the end included
    weights: Sequence[Sequence[float]] = ()  # attention of each target token to each source token; empty if unknown


class StateReader(NamedTuple):
    """A way to read tokens and keep the state."""

    initial: State  # for one text before its first token
    read: Callable[[int, State], State]  # from a number of tokens and a state to the state after that many tokens
    text: str = "a text"  # what is read
    source: int = 0  # number of tokens of the source that a decoder attends to
