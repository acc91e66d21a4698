"""Regularization of a language model: dropout of whole words, and penalties on the outputs of its layer.

S. Merity, N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models", ICLR 2018; penalties: S.
Merity, B. McCann and R. Socher, "Revisiting activation regularization for language RNNs", 2017; word dropout: Y. Gal
and Z. Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks", NeurIPS 2016.

    α mean(d(h_t)²) + β mean((h_t − h_{t−1})²)

h_t outputs of the layer · d(h_t) after dropout · α ``activation_regularization`` · β
``temporal_activation_regularization``. The means are taken over features and valid positions.
"""

from torch import Tensor

from ..config import NonNegative, Rate, Section
from ..core.auxiliary_losses import contribute
from ..core.lengths import valid_mask
from ..core.random_masks import dropout_mask


class Regularization(Section):
    """Options of a language model that regularize its training; see this module."""

    embedding_dropout: Rate = 0.0
    """Rate at which words are dropped: a word's embedding is zero wherever it occurs in a batch."""
    activation_regularization: NonNegative = 0.0
    """Weight α of the mean squared output of the layer, after dropout, in the loss."""
    temporal_activation_regularization: NonNegative = 0.0
    """Weight β of the mean squared difference of successive outputs of the layer in the loss."""

    def drop_words(self, embedded: Tensor, tokens: Tensor, vocabulary_size: int) -> Tensor:
        """Drop the embeddings ``(batch, time, size)`` of some of the tokens ``(batch, time)``, of all their places."""
        if not self.embedding_dropout:
            return embedded
        mask = dropout_mask((vocabulary_size,), self.embedding_dropout, embedded)
        return embedded * mask[tokens].unsqueeze(-1)

    def penalize(self, outputs: Tensor, dropped: Tensor, lengths: Tensor | None) -> None:
        """Contribute both penalties to the loss; outputs of the layer ``(batch, time, size)`` before and after dropout.

        ``lengths`` ``(batch,)`` describes the padding, None for none.
        """
        valid = None if lengths is None else valid_mask(lengths, outputs.shape[1])
        if self.activation_regularization:
            contribute(self.activation_regularization * _mean_square(dropped, valid))
        if self.temporal_activation_regularization and outputs.shape[1] > 1:
            differences = outputs[:, 1:] - outputs[:, :-1]
            second = None if valid is None else valid[:, 1:]
            contribute(self.temporal_activation_regularization * _mean_square(differences, second))


def _mean_square(values: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean square of ``(batch, time, size)`` over the valid positions ``(batch, time)``; 0 for none."""
    if valid is None:
        return values.float().square().mean()
    chosen = values[valid].float()
    return chosen.square().sum() / max(1, chosen.numel())
