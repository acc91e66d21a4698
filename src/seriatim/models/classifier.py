"""A label for a sequence: P(label | x₁…x_T) = softmax(W pool(h₁…h_T) + b), h = layer(E[x])."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Model
from ..core.contract import SequenceLayer
from ..layers.dropout import dropout as make_dropout
from .build import layer_from_config
from .pooling import Pooling


class Classifier(nn.Module):
    """Token ids ``(batch, time)`` to logits ``(batch, labels)``, by any sequence layer.

    Args:
        layer: any sequence layer; its memory is not used.
        vocabulary_size: number of token ids.
        num_labels: number of classes.
        pooling: how outputs become one vector; see `Pooling`.
        two_ways: whether the second half of the layer's outputs comes from its end.
        dropout: rate on embeddings and on the pooled vector.
        output_bias: whether there is b.
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
        cls, config: Model, vocabulary_size: int, num_labels: int, *, pooling: str, options: Mapping[str, Any]
    ) -> "Classifier":
        """Builds the model that a configuration describes; ``options`` are the layer's own."""
        layer = layer_from_config(config, options)
        two_ways = bool(config.bidirectional)
        return cls(
            layer,
            vocabulary_size,
            num_labels,
            pooling=pooling,
            two_ways=two_ways,
            dropout=config.dropout,
            output_bias=config.output_bias,
        )

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits ``(batch, labels)``; ``lengths`` ``(batch,)``, 0 allowed."""
        outputs, _ = self.layer(self.dropout(self.embedding(tokens)), lengths=lengths)
        logits: Tensor = self.output(self.dropout(self.pool(outputs, lengths)))
        return logits

    def loss(self, tokens: Tensor, lengths: Tensor | None, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The sum over rows of −log P(label), in nats, each times its weight; all ``(batch,)``."""
        losses = F.cross_entropy(self(tokens, lengths).float(), labels, reduction="none")
        return (losses if weights is None else losses * weights).sum()

    @torch.no_grad()
    def probabilities(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """P(label) ``(batch, labels)``, in float64."""
        return torch.softmax(self(tokens, lengths).double(), dim=1)
