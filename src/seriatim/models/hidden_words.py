"""An auxiliary task of models that read words: predict the words that are hidden from them in training.

    x_t = 0 with probability p, independently for each position;  M the positions that are hidden
    L = L_task + λ/p · Σ_{t ∈ M} −log softmax(E W h_t)[w_t]

x_t what the layer reads at position t · h_t its output · w_t the word · E the embedding of the most frequent words,
that of the inputs · λ/p makes the second term λ times the loss of a language model over all positions, on average.

The labels of a small data set say little about a word; its neighbours say much more. M. Rei, "Semi-supervised multitask
learning for sequence labeling", ACL 2017, predicts the next and the previous word, which needs a layer of two separate
directions; hidden words (J. Devlin et al., "BERT", NAACL 2019) do not. Hiding whole positions is a regularizer by
itself: M. Iyyer et al., "Deep unordered composition rivals syntactic methods for text classification", ACL 2015.
"""

import torch
from torch import Tensor, nn

from ..core.lengths import valid_mask
from .cross_entropy import summed_loss

FIRST, MOST = 2, 4096
"""The first id that is a word, after the end and the unknown word; and how many words are predicted, from the most
frequent one on. All other hidden words only regularize."""


class HiddenWords(nn.Module):
    """Hides positions, and computes the loss of their words.

    Args:
        sizes: that of the layer's outputs, and that of the words' embedding.
        rate: p, above 0.
        weight: λ.
    """

    def __init__(self, sizes: tuple[int, int], rate: float, weight: float) -> None:
        super().__init__()
        self.rate, self.weight = rate, weight
        self.map = nn.Linear(*sizes)

    def choose(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the positions to hide ``(batch, time)``, at random."""
        is_valid = valid_mask(lengths.to(words.device), words.shape[1])
        return is_valid & (torch.rand(words.shape, device=words.device) < self.rate)

    def loss(self, outputs: Tensor, words: Tensor, is_hidden: Tensor, embedding: Tensor) -> Tensor:
        """Return λ/p · Σ −log P(word), in nats, over the hidden positions.

        ``outputs`` are those of the layer ``(batch, time, size)``, ``words`` ids ``(batch, time)``, and ``embedding``
        is that of all words ``(vocabulary, size)``.
        """
        predicted = embedding[FIRST : FIRST + MOST]
        is_hidden = is_hidden & (words >= FIRST) & (words < FIRST + len(predicted))
        hidden = self.map(outputs[is_hidden])
        return self.weight / self.rate * summed_loss(hidden, predicted, None, words[is_hidden] - FIRST)
