"""A classifier: P(label | x₁…x_T) = softmax(W pool(h₁…h_T) + b) with h = layer(E[x])."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Model
from ..core.contract import SequenceLayer
from ..layers.pointwise import make_dropout
from .base_models import NeuralModel, layer_from_config
from .pooling import Pooling


class Classifier(NeuralModel):
    """Token ids ``(batch, time)`` to logits ``(batch, labels)``, with any sequence layer that takes no memory.

    `Pooling` says how the outputs become one vector; ``two_ways`` whether their second half is a backward direction.
    Dropout applies to the embeddings and to the pooled vector.
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
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, layer.input_size)
        self.layer = layer
        size = layer.output_size
        self.pool = Pooling(pooling, size, backward_from=size // 2 if two_ways else size)
        self.output = nn.Linear(size, num_labels, bias=output_bias)
        self.dropout = make_dropout(dropout)

    @classmethod
    def from_config(
        cls, config: Model, vocabulary_size: int, num_labels: int, *, pooling: str, options: Mapping[str, object]
    ) -> Self:
        """Build the model that a configuration describes; ``options`` are the options of the layer."""
        return cls(
            layer_from_config(config, options),
            vocabulary_size,
            num_labels,
            pooling=pooling,
            two_ways=bool(config.bidirectional),
            dropout=config.dropout or 0.0,
            output_bias=config.output_bias,
        )

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits ``(batch, labels)`` for ids ``(batch, time)`` of lengths ``(batch,)``, 0 allowed."""
        outputs, _ = self.layer(self.dropout(self.embedding(tokens)), lengths=lengths)
        logits: Tensor = self.output(self.dropout(self.pool(outputs, lengths)))
        return logits

    def loss(self, tokens: Tensor, lengths: Tensor | None, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum over rows of −log P(label), in nats, each times its weight ``(batch,)``, None for 1."""
        losses = F.cross_entropy(self(tokens, lengths).float(), labels, reduction="none")
        return (losses if weights is None else losses * weights).sum()

    @torch.no_grad()
    def probabilities(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return P(label) ``(batch, labels)``, in float64."""
        return torch.softmax(self(tokens, lengths).double(), dim=1)
