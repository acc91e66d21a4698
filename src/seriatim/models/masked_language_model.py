"""A masked language model: P(w_t | w_s for s ≠ t), with any sequence layer that reads in both directions.

J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: pre-training of deep bidirectional transformers for language
understanding", NAACL 2019.

    h = layer(E[x]),  P(w_t | x) = softmax(W g_t + b)_{w_t},  g_t = LayerNorm(gelu(U h_t + c))

x the text, in which the mask symbol or another token replaces some w_t · E ``embedding``, with one more row than there
are tokens, for the mask symbol, which is never predicted · U, c and the norm ``transform`` · W ``weight``; with tied
weights E without its last row · b ``bias``. `transform` returns vectors of E's width, so that weights can be tied for
every layer width. Simplified: next-sentence prediction and segment embeddings are left out.

A model that comes from another library may have learned to read every text between two tokens, [CLS] x₁ … x_T [SEP]:
its ``frame``, which is put around every row here and never predicted.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.pointwise import activation_named, norm_named
from .base_models import TokenPredictor
from .cross_entropy import chunked_logits, summed_loss
from .probabilities import checked_losses


class Frame(NamedTuple):
    """The tokens before and after every text."""

    begin: int
    end: int

    def around(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return ids ``(batch, time + 2)`` and lengths for ids ``(batch, time)`` and lengths ``(batch,)``."""
        framed = F.pad(F.pad(tokens, (1, 0), value=self.begin), (0, 1), value=self.end)
        if lengths is None:
            return framed, None
        return framed.scatter(1, 1 + lengths.to(framed.device).unsqueeze(1), self.end), lengths + 2


class Activation(nn.Module):
    """A function of each value, as one of a sequence of modules."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the function."""
        return self.function(inputs)


class MaskedLanguageModel(TokenPredictor):
    """Token ids ``(batch, time)``, some of them masked, to logits of chosen positions.

    The arguments are those of `TokenPredictor`. The id of the mask symbol is ``vocabulary_size``.
    """

    kind = "a masked language model"
    extra_tokens = 1
    frame: Frame | None = None

    def make_output(self, *, tie_weights: bool, bias: bool) -> None:
        """Create U, c, the norm, W and b, and initialize all parameters outside the layer."""
        vocabulary_size, size = self.vocabulary_size, self.layer.input_size
        self.mask = vocabulary_size
        self.transform = nn.Sequential(nn.Linear(self.layer.output_size, size), nn.GELU(), norm_named("layer", size))
        self.weight = None if tie_weights else nn.Parameter(torch.empty(vocabulary_size, size))
        self.bias = nn.Parameter(torch.zeros(vocabulary_size)) if bias else None
        nn.init.normal_(self.embedding.weight)  # the initialization of the layers expects inputs of unit variance
        nn.init.uniform_(self.embedding.weight if self.weight is None else self.weight, -0.1, 0.1)

    def with_form(self, activation: str, norm_epsilon: float, frame: Frame | None) -> Self:
        """Set the activation and the ε of the transform, and the frame, before training; return the model."""
        self.transform[1] = Activation(activation_named(activation))
        self.transform[2] = norm_named("layer", self.layer.input_size, epsilon=norm_epsilon)
        self.frame = frame
        return self

    def output_tables(self) -> list[Tensor]:
        """Return W, unless it is the embedding, and b."""
        return [table for table in (self.weight, self.bias) if table is not None]

    @property
    def output_weight(self) -> Tensor:
        """W ``(vocabulary, size)``."""
        return self.embedding.weight[: self.vocabulary_size] if self.weight is None else self.weight

    def forward(
        self, tokens: Tensor, positions: Tensor, *, lengths: Tensor | None = None, framed: bool = False
    ) -> Tensor:
        """Return the logits ``(positions, vocabulary)``.

        ``tokens`` are ids ``(batch, time)``, including the mask symbol, of lengths ``(batch,)``, 0 allowed;
        ``positions`` are the positions to predict, as indices ``row · time + t``. ``framed`` says that the frame is
        among the tokens.
        """
        return F.linear(self.features(tokens, positions, lengths, framed=framed), self.output_weight, self.bias)

    def features(self, tokens: Tensor, positions: Tensor, lengths: Tensor | None, *, framed: bool = False) -> Tensor:
        """Return the inputs of the output layer at the chosen positions ``(positions, size)``."""
        if self.frame is not None and not framed:
            rows = positions.div(tokens.shape[1], rounding_mode="floor")
            positions = positions + 2 * rows + 1
            tokens, lengths = self.frame.around(tokens, lengths)
        hidden, _ = self.layer(self.dropout(self.embedding(tokens)), lengths=lengths)
        features: Tensor = self.transform(self.dropout(hidden).flatten(0, 1)[positions])
        return features

    def loss(self, tokens: Tensor, positions: Tensor, targets: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return the sum over the chosen positions of −log P(target), in nats; the arguments are those of `forward`."""
        return summed_loss(self.features(tokens, positions, lengths), self.output_weight, self.bias, targets)

    @torch.no_grad()
    def losses_and_hits(
        self, tokens: Tensor, positions: Tensor, targets: Tensor, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return −log P(target) in nats, and whether the target is the most probable token, both ``(positions,)``."""
        features, losses, hits = self.features(tokens, positions, lengths), [], []
        for logits, target in chunked_logits(features, self.output_weight, self.bias, targets):
            losses.append(F.cross_entropy(logits, target, reduction="none"))
            hits.append(logits.argmax(1) == target)
        return checked_losses(torch.cat(losses)), torch.cat(hits)
