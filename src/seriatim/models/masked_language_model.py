"""A masked language model: P(w_t | w_s for s ≠ t), with any sequence layer that reads in both directions.

J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: pre-training of deep bidirectional transformers for language
understanding", NAACL 2019.

    h = layer(E[x]),  P(w_t | x) = softmax(W g_t + b)_{w_t},  g_t = LayerNorm(gelu(U h_t + c))

x the text, in which the mask symbol or another token replaces some w_t · E ``embedding``, with one more row than there
are tokens, for the mask symbol, which is never predicted · U, c and the norm ``transform`` · W ``weight``; with tied
weights E without its last row · b ``bias``. `transform` returns vectors of E's width, so that weights can be tied for
every layer width. Simplified: next-sentence prediction, segment embeddings and the embeddings' norm are left out.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import Model
from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..layers.pointwise import dropout as make_dropout
from ..layers.pointwise import norm
from .base_models import LayerModel, layer_from_config
from .softmax import CHUNK_ELEMENTS, CHUNK_ROWS, summed_loss


class MaskedLanguageModel(LayerModel):
    """Token ids ``(batch, time)``, some of them masked, to logits of chosen positions.

    Args:
        layer: any sequence layer that takes no memory.
        vocabulary_size: number of token ids; the id of the mask symbol follows them.
        tie_weights: use the embedding as the weight of the output layer.
        dropout: dropout rate of the embeddings and of the layer's outputs.
        variational: use one dropout mask per sequence instead of one per step.
        output_bias: whether the output layer has the bias b.

    Raises:
        InputError: the layer attends to a memory.
    """

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
        if isinstance(layer, MemoryLayer):
            raise InputError("model.options.memory_size: a masked language model has no memory to attend to")
        size = layer.input_size
        self.vocabulary_size = self.mask = vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size + 1, size)
        self.layer = layer
        self.transform = nn.Sequential(nn.Linear(layer.output_size, size), nn.GELU(), norm("layer", size))
        self.weight = None if tie_weights else nn.Parameter(torch.empty(vocabulary_size, size))
        self.bias = nn.Parameter(torch.zeros(vocabulary_size)) if output_bias else None
        self.dropout = make_dropout(dropout, variational=variational)
        nn.init.normal_(self.embedding.weight)  # the initialization of the layers expects inputs of unit variance
        nn.init.uniform_(self.embedding.weight if self.weight is None else self.weight, -0.1, 0.1)

    @classmethod
    def from_config(cls, config: Model, vocabulary_size: int, options: Mapping[str, object]) -> "MaskedLanguageModel":
        """Build the model that a configuration describes; ``options`` are the options of the layer."""
        return cls(
            layer_from_config(config, options),
            vocabulary_size,
            tie_weights=config.tie_weights,
            dropout=config.dropout,
            variational=config.variational_dropout,
            output_bias=config.output_bias,
        )

    @property
    def output_weight(self) -> Tensor:
        """W ``(vocabulary, size)``."""
        return self.embedding.weight[: self.vocabulary_size] if self.weight is None else self.weight

    def forward(self, tokens: Tensor, positions: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return the logits ``(positions, vocabulary)``.

        Args:
            tokens: ids ``(batch, time)``, including the mask symbol.
            positions: the positions to predict, as indices ``row · time + t``.
            lengths: ``(batch,)``, 0 allowed.
        """
        return F.linear(self.features(tokens, positions, lengths), self.output_weight, self.bias)

    def features(self, tokens: Tensor, positions: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the inputs of the output layer at the chosen positions ``(positions, size)``."""
        hidden, _ = self.layer(self.dropout(self.embedding(tokens)), lengths=lengths)
        features: Tensor = self.transform(self.dropout(hidden).flatten(0, 1)[positions])
        return features

    def loss(self, tokens: Tensor, positions: Tensor, targets: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return the sum over the chosen positions of −log P(target), in nats; the arguments are those of `forward`."""
        return summed_loss(self.features(tokens, positions, lengths), self.output_weight, self.bias, targets)

    @torch.no_grad()
    def judged(
        self, tokens: Tensor, positions: Tensor, targets: Tensor, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return −log P(target) in nats, and whether the target is the most probable token, both ``(positions,)``."""
        features, losses, hits = self.features(tokens, positions, lengths), [], []
        rows = max(CHUNK_ROWS, CHUNK_ELEMENTS // self.vocabulary_size)
        for chunk, target in zip(torch.split(features, rows), torch.split(targets, rows), strict=True):
            logits = F.linear(chunk, self.output_weight, self.bias).float()
            losses.append(F.cross_entropy(logits, target, reduction="none"))
            hits.append(logits.argmax(1) == target)
        return torch.cat(losses), torch.cat(hits)
