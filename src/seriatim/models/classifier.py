"""A classifier: P(label | x₁…x_T) = softmax(W pool(h₁…h_T) + b) with h = layer(E[x])."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Model
from ..core.contract import SequenceLayer
from ..core.errors import InputError, nearest
from ..core.lengths import valid_mask, zero_padding
from ..layers.pointwise import dropout as make_dropout
from .base_models import LayerModel, layer_from_config

POOLINGS = ("final", "mean", "max", "attention")


class Pooling(nn.Module):
    """Reduces outputs ``(batch, time, size)`` to ``(batch, size)``; rows of length 0 become zeros.

    ``final`` takes the output of each direction after it has read the whole sequence: the output at the last valid
    position, and for the backward direction of a bidirectional layer the output at the first position. ``mean`` and
    ``max`` are taken over the valid positions. ``attention`` is Σ_t α_t h_t with α = softmax_t vᵀ tanh(W h_t)
    (Z. Yang et al., "Hierarchical attention networks for document classification", 2016).

    Args:
        kind: one of `POOLINGS`.
        size: width of the outputs.
        backward_from: the first feature of the backward direction; ``size`` if there is no backward direction.

    Raises:
        InputError: an unknown kind.
    """

    def __init__(self, kind: str, size: int, *, backward_from: int) -> None:
        super().__init__()
        if kind not in POOLINGS:
            raise InputError(f"unknown pooling {kind!r}; {nearest(kind, list(POOLINGS))}")
        self.kind, self.backward_from = kind, backward_from
        if kind == "attention":
            self.project = nn.Linear(size, size)
            self.score = nn.Linear(size, 1, bias=False)

    def forward(self, outputs: Tensor, lengths: Tensor | None) -> Tensor:
        """Pool over the valid positions; ``lengths`` is ``(batch,)``, or None if all rows are full."""
        batch, time, size = outputs.shape
        if time == 0:
            return outputs.new_zeros(batch, size)
        if lengths is None:
            lengths = torch.full((batch,), time)
        lengths = lengths.to(outputs.device)
        outputs = zero_padding(outputs, lengths)
        if self.kind == "final":
            rows = torch.arange(batch, device=outputs.device)
            last = outputs[rows, (lengths - 1).clamp_min(0)]
            return torch.cat([last[:, : self.backward_from], outputs[:, 0, self.backward_from :]], dim=1)
        if self.kind == "mean":
            return outputs.sum(1) / lengths.clamp_min(1).unsqueeze(1)
        padding = ~valid_mask(lengths.clamp_min(1), time).unsqueeze(2)
        if self.kind == "max":
            is_empty = (lengths == 0).unsqueeze(1)
            return outputs.masked_fill(padding, -torch.inf).amax(1).masked_fill(is_empty, 0)
        scores = self.score(torch.tanh(self.project(outputs))).masked_fill(padding, -torch.inf)
        return (torch.softmax(scores, dim=1) * outputs).sum(1)


class Classifier(LayerModel):
    """Token ids ``(batch, time)`` to logits ``(batch, labels)``, with any sequence layer.

    Args:
        layer: any sequence layer that takes no memory.
        vocabulary_size: number of token ids.
        num_labels: number of classes.
        pooling: how the outputs become one vector; see `Pooling`.
        two_ways: whether the second half of the layer's outputs is its backward direction.
        dropout: dropout rate of the embeddings and of the pooled vector.
        output_bias: whether the output layer has the bias b.
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
    ) -> "Classifier":
        """Build the model that a configuration describes; ``options`` are the options of the layer."""
        return cls(
            layer_from_config(config, options),
            vocabulary_size,
            num_labels,
            pooling=pooling,
            two_ways=bool(config.bidirectional),
            dropout=config.dropout,
            output_bias=config.output_bias,
        )

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits ``(batch, labels)``; ``lengths`` is ``(batch,)``, 0 allowed."""
        outputs, _ = self.layer(self.dropout(self.embedding(tokens)), lengths=lengths)
        logits: Tensor = self.output(self.dropout(self.pool(outputs, lengths)))
        return logits

    def loss(self, tokens: Tensor, lengths: Tensor | None, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum over rows of −log P(label), in nats, each times its weight.

        Args:
            tokens: ids ``(batch, time)``.
            lengths: ``(batch,)``, or None if all rows are full.
            labels: ``(batch,)``.
            weights: ``(batch,)``; None for 1.
        """
        losses = F.cross_entropy(self(tokens, lengths).float(), labels, reduction="none")
        return (losses if weights is None else losses * weights).sum()

    @torch.no_grad()
    def probabilities(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return P(label) ``(batch, labels)``, in float64."""
        return torch.softmax(self(tokens, lengths).double(), dim=1)
