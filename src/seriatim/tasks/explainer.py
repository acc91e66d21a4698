"""What can be shown of a model: optional capabilities, composed in one frozen value.

A task composes an `Explainer` for each family of its models. Inspection, comparison and export ask it for one
capability at a time, such as losses or the search for an answer. In place of a capability that a model lacks stands a
`Refusal`, and the page shows its sentence in place of a section.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from ..core.errors import InputError
from ..evaluation.context_use import ContextExcess, ContextUse
from ..evaluation.intervals import Metrics
from ..evaluation.token_losses import TokenLosses
from ..evaluation.token_scores import TokenScores
from ..models.base_models import input_embedding, input_layer
from ..models.exported_forms import ExportedModel
from .capabilities import (
    Example,
    Examples,
    Excerpts,
    ExplainedModel,
    FirstLine,
    LabelEffect,
    LabelledData,
    Losses,
    SearchResult,
    StateReader,
)

Capability = TypeVar("Capability")


class NotOfferedError(InputError):
    """Raised for a capability that an explainer does not have."""


@dataclass(frozen=True)
class Refusal:
    """What stands in place of a capability: what the task does not offer (``no embeddings``), or a whole sentence."""

    missing: str = ""
    sentence: str = ""


NO_STATE = Refusal(sentence="a model that reads from both sides keeps the whole text and has no state to measure")


@dataclass(frozen=True)
class Wording:
    """Words for titles and captions."""

    title: str = "model"  # what the model is called
    prediction: str = "the prediction"  # the distribution that `Explainer.predictions` returns
    correct: str = "answers correct"  # plural of correct answers
    answer: str = "the answer"  # the answer whose probability `Explainer.context_use` measures
    scores: str = "Surprisal"  # heading of the section on `Explainer.token_scores`
    no_alignment: str = "the model has no decoder"  # why a search gives no alignment


@dataclass(frozen=True)
class Explainer:
    """What can be shown of one model; only words for it are needed.

    A section of a page that asks for a capability that is missing is skipped, with the sentence of the `Refusal`.
    """

    explained: ExplainedModel
    wording: Wording = Wording()
    excerpts: Excerpts | None = None  # None for the first line
    who: str = ""  # who offers a capability or not, in sentences; by default the task

    # The text as the model reads it, and how it is differentiated
    inputs: Examples | Refusal = Refusal("no examples to read")
    losses: Losses | Refusal = Refusal("no way to run its model")

    # What it predicts: ``(batch, predictions, outcomes)`` at the end of examples of one length
    predictions: Callable[[Sequence[Example]], Tensor] | Refusal = Refusal("no distribution of its predictions")
    token_scores: Callable[[object], TokenScores] | Refusal = Refusal("no probabilities of single tokens")
    label_effect: Callable[[str], LabelEffect] | None = None  # None if texts as a whole have no labels
    search: Callable[[str, int], SearchResult] | Refusal | None = None  # with a beam; None if no answer is written
    ngram_counts: Callable[[str], Metrics] | Refusal | None = None  # see `counting.ngrams.unseen`

    # The loss when only the last tokens are seen, of an item or of some data, and the losses of single tokens
    context_use: Callable[[object], ContextUse] | Refusal = Refusal("no loss for shorter contexts")
    context_excess: Callable[[str, str | None], ContextExcess] | Refusal = Refusal("no loss for shorter contexts")
    token_losses: Callable[..., TokenLosses] | Refusal = Refusal("no losses of single tokens")

    # Parts of the model; None for those of the layer that reads the inputs
    embeddings: Tensor | Refusal | None = None  # (vocabulary, size)
    states: Callable[[], StateReader] | Refusal | None = None

    export: Callable[[], ExportedModel] | None = None  # functions that other programs run, and what they must know
    labelled: LabelledData | Refusal = Refusal("no list of its mistakes")

    def require(self, capability: Capability | Refusal) -> Capability:
        """Return a capability.

        Raises:
            NotOfferedError: it is missing.
        """
        if isinstance(capability, Refusal):
            who = self.who or f"the task {self.explained.config.task}"
            raise NotOfferedError(capability.sentence or f"{who} offers {capability.missing}")
        return capability

    @property
    def model(self) -> nn.Module:
        """The model without a baseline."""
        model: nn.Module = self.explained.model
        return model

    @property
    def searches(self) -> bool:
        """Whether answers are searched for with a beam."""
        return self.search is not None and not isinstance(self.search, Refusal)

    def chosen_excerpts(self) -> Excerpts:
        """Return what chooses the part of a text that is inspected."""
        return self.excerpts or FirstLine(self.explained.vocabulary.tokenizer)

    def examples(self, item: object) -> list[Example]:
        """Return what the model reads of a text or an item of `LabelledData.held_out`; see `Examples.fitting`."""
        return self.require(self.inputs).fitting(item)

    def embedding_table(self) -> Tensor:
        """Return the embeddings of the input tokens ``(vocabulary, size)``."""
        if self.embeddings is not None:
            return self.require(self.embeddings)
        embedding = input_embedding(self.model)
        return self.require(Refusal("no embeddings") if embedding is None else embedding.weight)

    def state_reader(self) -> StateReader:
        """Return a way to read tokens and keep the state: by default, zeros are read by the layer of the model."""
        if self.states is not None:
            return self.require(self.states)()
        layer = self.require(input_layer(self.model) or Refusal("no state"))
        if not layer.causal:
            self.require(NO_STATE)
        zeros, width = layer.zeros, layer.input_size
        return StateReader(layer.initial_state(1), lambda count, state: layer(zeros(1, count, width), state)[1])

    def exported(self) -> ExportedModel:
        """Return the functions that other programs run."""
        if self.export is None:
            layer = self.explained.config.model.layer
            raise InputError(f"layer {layer}: not a network of layers, which other programs could run")
        return self.export()
