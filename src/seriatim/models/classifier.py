"""A classifier: P(label | x₁…x_T) = softmax(W pool(h₁…h_T) + b) with h = layer([E[x] ; characters(x)])."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Model
from ..core.contract import SequenceLayer
from ..core.errors import RangeError
from ..core.lengths import check_lengths
from ..data.word_forms import Spellings
from ..layers.pointwise import make_dropout
from .base_models import NeuralModel, Pooling, layer_from_config
from .characters import CharacterModel
from .probabilities import softmax


class Classifier(NeuralModel):
    """Token ids ``(batch, time)`` to logits ``(batch, labels)``, with any sequence layer that takes no memory.

    The layer reads the embedding of each token, followed by the vector that ``characters`` computes, None for tokens
    alone. `Pooling` says how the outputs become one vector; ``two_ways`` whether their second half is a backward
    direction.
    Dropout applies to the inputs of the layer and to the pooled vector. InputError is raised if no features are left
    for the tokens.
    """

    def __init__(
        self,
        layer: SequenceLayer,
        vocabulary_size: int,
        num_labels: int,
        *,
        pooling: str,
        two_ways: bool = False,
        dropout: float = 0.0,
        output_bias: bool = True,
        characters: CharacterModel | None = None,
    ) -> None:
        super().__init__()
        width = layer.input_size - (0 if characters is None else characters.output_size)
        if width < 1:
            raise RangeError(f"the layer reads {layer.input_size} features, all of them of characters; make it wider")
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.characters, self.layer = characters, layer
        size = layer.output_size
        self.pool = Pooling(pooling, size, backward_from=size // 2 if two_ways else size)
        self.output = nn.Linear(size, num_labels, bias=output_bias)
        self.dropout = make_dropout(dropout)

    @classmethod
    def from_config(
        cls,
        config: Model,
        vocabulary_size: int,
        num_labels: int,
        *,
        pooling: str,
        options: Mapping[str, object],
        characters: CharacterModel | None = None,
    ) -> Self:
        """Build the model that a configuration describes; ``options`` are the options of the layer."""
        width = config.embedding_size + (characters.output_size if characters else 0)
        return cls(
            layer_from_config(config, options, input_size=width),
            vocabulary_size,
            num_labels,
            pooling=pooling,
            two_ways=bool(config.bidirectional),
            dropout=config.dropout or 0.0,
            output_bias=config.output_bias,
            characters=characters,
        )

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, spellings: Spellings | None = None) -> Tensor:
        """Return the logits ``(batch, labels)`` for ids ``(batch, time)`` of lengths ``(batch,)``, 0 allowed.

        ``spellings`` has the characters of the tokens, if the model reads them.
        """
        inputs, lengths = self.embedding(tokens), check_lengths(lengths, *tokens.shape)
        if self.characters is not None:
            inputs = self.characters.append(inputs, spellings)
        outputs, _ = self.layer(self.dropout(inputs), lengths=lengths)
        logits: Tensor = self.output(self.dropout(self.pool(outputs, lengths)))
        return logits

    def loss(
        self,
        tokens: Tensor,
        lengths: Tensor | None,
        labels: Tensor,
        weights: Tensor | None = None,
        spellings: Spellings | None = None,
        *,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the sum over rows of −log P(label), in nats, each times its weight ``(batch,)``, None for 1.

        ``label_smoothing`` is the share of a label's probability that is spread over all labels (C. Szegedy et al.,
        "Rethinking the Inception architecture for computer vision", CVPR 2016).
        """
        logits = self(tokens, lengths, spellings).float()
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
        return (losses if weights is None else losses * weights).sum()

    @torch.no_grad()
    def probabilities(
        self, tokens: Tensor, lengths: Tensor | None = None, spellings: Spellings | None = None
    ) -> Tensor:
        """Return P(label) ``(batch, labels)``, in float64; the arguments are those of `forward`."""
        return softmax(self(tokens, lengths, spellings))
