"""Base classes of the models, and functions that several models share."""

from collections.abc import Mapping
from typing import ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Model
from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import NotSupportedError, require_known
from ..core.lengths import valid_mask, zero_padding
from ..core.state import OutputsAndState, State
from ..layers import layer
from ..layers.pointwise import make_dropout

ModuleT = TypeVar("ModuleT", bound=nn.Module)
UNKNOWN_TOKEN = 1  # of the tokenizers that have one


class NeuralModel(nn.Module):
    """A model whose layer reads embeddings: see `input_layer` and `input_embedding`."""


class TextModel(nn.Module):
    """A language model: token ids ``(batch, time)`` to logits ``(batch, time, vocabulary)``.

    P(w₁…w_T) = Π P(w_t | w_<t). Every sequence begins with the token ``begin``, by default the boundary symbol. The
    methods have the contract of a sequence layer.
    """

    causal = True
    gives_log_probabilities = False
    """Whether `forward` and `step` return log probabilities instead of logits; see `models.probabilities`."""
    begin: int = 0
    vocabulary_size: int

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first token."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Return the logits ``(batch, time, vocabulary)`` of the token after each of the ids ``(batch, time)``.

        The state after each row's last token is also returned. None as the state to continue from is the initial state.
        The logits on padding, given ``lengths`` ``(batch,)``, are meaningless.
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> OutputsAndState:
        """Read one token per row: ids ``(batch,)`` to logits ``(batch, vocabulary)``."""
        logits, state = self(tokens.unsqueeze(1), state)
        return logits[:, 0], state

    def advance(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> State:
        """Return the state after ids ``(batch, time)``; subclasses may skip the output layer."""
        return self.token_losses(tokens, tokens, state, lengths=lengths)[1]

    def read(self, tokens: Tensor, state: State) -> OutputsAndState:
        """Read ids ``(batch, time)``, at least one: return the logits after the last ``(batch, vocabulary)``.

        The state is also returned. Subclasses may compute both in one pass.
        """
        if tokens.shape[1] > 1:
            state = self.advance(tokens[:, :-1], state)
        return self.step(tokens[:, -1], state)

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> OutputsAndState:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        raise NotImplementedError

    def text_losses(self, ids: np.ndarray) -> np.ndarray | None:
        """Return −log P of every token of a text ``(tokens,)``, boundaries included, or None if windows are as fast."""
        return None


class TokenPredictor(NeuralModel):
    """A model that reads tokens with one sequence layer and predicts tokens of the same vocabulary.

    Args:
        layer: any sequence layer that takes no memory.
        vocabulary_size: number of token ids.
        tie_weights: use the embedding as the weight of the output layer.
        dropout: dropout rate of the embeddings and of the layer's outputs.
        variational: use one dropout mask per sequence instead of one per step.
        output_bias: whether the output layer has the bias b.

    Raises:
        InputError: the layer attends to a memory, or does not fit the model.
    """

    kind: ClassVar[str] = "a language model"
    """The name of the model in messages, with its article."""
    extra_tokens: ClassVar[int] = 0
    """Tokens that are read and never predicted; their ids follow those of the vocabulary."""

    def __init__(
        self,
        layer: SequenceLayer,
        vocabulary_size: int,
        *,
        tie_weights: bool = False,
        dropout: float = 0.0,
        variational: bool = False,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        refuse_memory(layer, self.kind)
        self.vocabulary_size = vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size + self.extra_tokens, layer.input_size)
        self.layer = layer
        self.dropout = make_dropout(dropout, variational=variational)
        self.make_output(tie_weights=tie_weights, bias=output_bias)

    def make_output(self, *, tie_weights: bool, bias: bool) -> None:
        """Create the output layer and initialize all parameters outside the layer."""
        raise NotImplementedError

    def output_tables(self) -> list[Tensor]:
        """Return the parameters of the output layer, which have a row or a number for each token."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: Model, vocabulary_size: int, options: Mapping[str, object]) -> Self:
        """Build the model that a configuration describes; ``options`` are the options of the layer."""
        return cls(
            layer_from_config(config, options),
            vocabulary_size,
            tie_weights=config.tie_weights,
            dropout=config.dropout or 0.0,
            variational=config.variational_dropout,
            output_bias=config.output_bias,
        )


def refuse_memory(layer: SequenceLayer, model: str) -> None:
    """Raise InputError if a layer needs a memory, which ``model``, named with its article, does not have."""
    if isinstance(layer, MemoryLayer):
        raise NotSupportedError(f"model.options.memory_size: {model} has no memory to attend to; leave it out")


def input_layer(model: nn.Module) -> SequenceLayer | None:
    """Return the layer that reads the embedded input tokens; None if the model is no `NeuralModel`."""
    return _first_submodule(model, SequenceLayer, "layer", "encoder")


def input_embedding(model: nn.Module) -> nn.Embedding | None:
    """Return the embedding of the input tokens; None if the model is no `NeuralModel`."""
    return _first_submodule(model, nn.Embedding, "embedding", "source_embedding")


def _first_submodule(model: nn.Module, kind: type[ModuleT], *names: str) -> ModuleT | None:
    submodules = (getattr(model, name, None) for name in names if isinstance(model, NeuralModel))
    return next((submodule for submodule in submodules if isinstance(submodule, kind)), None)


def layer_from_config(
    config: Model,
    options: Mapping[str, object],
    *,
    name: str | None = None,
    input_size: int | None = None,
    hidden_size: int | None = None,
    bidirectional: bool | None = None,
) -> SequenceLayer:
    """Build ``model.layer`` with its options, or another layer with its settings.

    Arguments that are given replace values of ``config``: ``name`` the layer, ``input_size`` the embedding size.

    Raises:
        ValueError: an unknown option, or values that contradict each other.
    """
    return layer(
        name or config.layer,
        input_size or config.embedding_size,
        hidden_size or config.hidden_size,
        num_layers=config.num_layers,
        bidirectional=bool(config.bidirectional if bidirectional is None else bidirectional),
        dropout=config.dropout or 0.0,
        variational_dropout=config.variational_dropout,
        residual=config.residual,
        **options,
    )


def valid_positions(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Drop padding: ``(batch, time, ...)`` to ``(positions, ...)``."""
    return values.flatten(0, 1) if lengths is None else values[valid_mask(lengths, values.shape[1])]


def on_positions(values: Tensor, shape: torch.Size, lengths: Tensor | None) -> Tensor:
    """Undo `valid_positions`: ``(positions,)`` to ``shape`` ``(batch, time)``, zero on padding."""
    if lengths is None:
        return values.view(shape)
    padded = values.new_zeros(shape)
    padded[valid_mask(lengths, shape[1])] = values
    return padded


def drop_words(words: Tensor, rare: Tensor | None, rate: float) -> Tensor:
    """Replace rare words at random by the unknown token, with the probability ``rate``, to train its embedding.

    ``words`` are ids ``(batch, time)``, ``rare`` says which of them occur once in the training text; None for no word.
    G. Lample et al., "Neural architectures for named entity recognition", NAACL 2016.
    """
    if rare is None or not rate:
        return words
    return words.masked_fill(rare & (torch.rand(words.shape, device=words.device) < rate), UNKNOWN_TOKEN)


POOLINGS = ("final", "mean", "max", "attention")


class Pooling(nn.Module):
    """Reduces outputs ``(batch, time, size)`` to ``(batch, size)``; rows of length 0 become zeros.

    The kinds are `POOLINGS`. ``final`` takes the outputs after the whole sequence, see `last_outputs`. ``mean`` and
    ``max`` are taken over the valid positions. ``attention`` is Σ_t α_t h_t with α = softmax_t vᵀ tanh(W h_t) (Z. Yang
    et al., "Hierarchical attention networks for document classification", 2016). An unknown kind raises InputError.
    """

    def __init__(self, kind: str, size: int, *, backward_from: int) -> None:
        super().__init__()
        require_known("pooling", kind, POOLINGS)
        self.kind, self.backward_from = kind, backward_from
        if kind == "attention":
            self.project = nn.Linear(size, size)
            self.score = nn.Linear(size, 1, bias=False)

    def forward(self, outputs: Tensor, lengths: Tensor | None) -> Tensor:
        """Pool over the valid positions; ``lengths`` is ``(batch,)``, or None if all rows are full."""
        batch, time, size = outputs.shape
        if time == 0:
            return outputs.new_zeros(batch, size)
        outputs = zero_padding(outputs, lengths)
        if self.kind == "final" and lengths is None:  # the same as below in fewer operations
            return torch.cat([outputs[:, -1, : self.backward_from], outputs[:, 0, self.backward_from :]], dim=1)
        lengths = (torch.full((batch,), time) if lengths is None else lengths).to(outputs.device)
        if self.kind == "final":
            return last_outputs(outputs, lengths, self.backward_from)
        if self.kind == "mean":
            return outputs.sum(1) / lengths.clamp_min(1).unsqueeze(1)
        padding = ~valid_mask(lengths.clamp_min(1), time).unsqueeze(2)
        if self.kind == "max":
            is_empty = (lengths == 0).unsqueeze(1)
            return outputs.masked_fill(padding, -torch.inf).amax(1).masked_fill(is_empty, 0)
        scores = self.score(torch.tanh(self.project(outputs))).masked_fill(padding, -torch.inf)
        return (torch.softmax(scores, dim=1) * outputs).sum(1)


def last_outputs(outputs: Tensor, lengths: Tensor, backward_from: int) -> Tensor:
    """Return the output of each direction after it has read the whole row ``(batch, size)``.

    This is the output at the last valid position, or the first position of an empty row. The features from
    ``backward_from`` on belong to the backward direction and are taken from the first position.
    """
    rows = torch.arange(outputs.shape[0], device=outputs.device)
    last = outputs[rows, (lengths - 1).clamp_min(0)]
    return torch.cat([last[:, :backward_from], outputs[:, 0, backward_from:]], dim=1)
