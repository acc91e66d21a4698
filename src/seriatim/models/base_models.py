"""Base classes of the models, and functions that several models share."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Model
from ..core.contract import SequenceLayer
from ..core.lengths import valid_mask
from ..core.state import State
from ..layers import layer, split_names

UNKNOWN_TOKEN = 1
"""The unknown token of the tokenizers that have one."""


class NeuralModel(nn.Module):
    """A model that is trained by gradients: a sequence layer reads embeddings of the input tokens."""

    @property
    def input_embedding(self) -> nn.Embedding:
        """The embedding of the input tokens."""
        raise NotImplementedError

    @property
    def input_layer(self) -> SequenceLayer:
        """The layer that reads the embedded input tokens."""
        raise NotImplementedError


class LayerModel(NeuralModel):
    """A model with one sequence layer: language models, classifiers and taggers."""

    embedding: nn.Embedding
    layer: SequenceLayer

    @property
    def input_embedding(self) -> nn.Embedding:
        """The embedding of the input tokens."""
        return self.embedding

    @property
    def input_layer(self) -> SequenceLayer:
        """The model's only sequence layer."""
        return self.layer


class SourceModel(NeuralModel):
    """A model that reads a source sequence with an encoder and writes a target sequence."""

    source_embedding: nn.Embedding
    encoder: SequenceLayer
    output: nn.Linear

    @property
    def input_embedding(self) -> nn.Embedding:
        """The embedding of the source tokens."""
        return self.source_embedding

    @property
    def input_layer(self) -> SequenceLayer:
        """The encoder."""
        return self.encoder


class TextModel(nn.Module):
    """A language model: token ids ``(batch, time)`` to logits ``(batch, time, vocabulary)``.

    P(w₁…w_T) = Π P(w_t | w_<t). Every sequence begins with the boundary symbol, token 0. The methods have the contract
    of a sequence layer.
    """

    causal = True
    vocabulary_size: int

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first token."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return the logits of the token after each of ``tokens``.

        Args:
            tokens: ids ``(batch, time)``.
            state: the state to continue from; None for the initial state.
            lengths: ``(batch,)``; the logits on padding are meaningless.

        Returns:
            Logits ``(batch, time, vocabulary)`` and the state after each row's last token.
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row: ids ``(batch,)`` to logits ``(batch, vocabulary)``."""
        logits, state = self(tokens.unsqueeze(1), state)
        return logits[:, 0], state

    def advance(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> State:
        """Return the state after ids ``(batch, time)``; subclasses may skip the output layer."""
        return self.token_losses(tokens, tokens, state, lengths=lengths)[1]

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        raise NotImplementedError

    def text_losses(self, ids: np.ndarray) -> np.ndarray | None:
        """Return −log P of every token of a text ``(tokens,)``, in nats, or None if windows are as fast.

        Every sequence in the text ends with the boundary symbol.
        """
        return None


def layer_from_config(config: Model, options: Mapping[str, object], *, input_size: int | None = None) -> SequenceLayer:
    """Build ``model.layer``.

    Args:
        config: names, sizes and rates.
        options: the options of the layer.
        input_size: width of the layer's inputs; None for ``embedding_size``.

    Raises:
        ValueError: an unknown option, or values that contradict each other.
    """
    return layer(
        ",".join(split_names(config.layer)),  # runs of earlier versions may have a former name
        config.embedding_size if input_size is None else input_size,
        config.hidden_size,
        num_layers=config.num_layers,
        bidirectional=bool(config.bidirectional),
        dropout=config.dropout,
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
    """Replace rare words by the unknown token at random, so that its embedding is trained, too.

    G. Lample et al., "Neural architectures for named entity recognition", NAACL 2016.

    Args:
        words: ids ``(batch, time)``.
        rare: which words occur once in the training text ``(batch, time)``; None for no word.
        rate: the probability with which a rare word is replaced.
    """
    if rare is None or not rate:
        return words
    return words.masked_fill(rare & (torch.rand(words.shape, device=words.device) < rate), UNKNOWN_TOKEN)
