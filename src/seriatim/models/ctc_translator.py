"""Non-autoregressive sequence to sequence with connectionist temporal classification (CTC).

A. Graves et al., "Connectionist temporal classification", ICML 2006; for translation J. Libovický and J. Helcl,
"End-to-end non-autoregressive neural machine translation with connectionist temporal classification", EMNLP 2018.

    P(Y | X) = Σ over the alignments a of Y of Π_t P(a_t | X)
    h = encoder(each of E[x] repeated k times),  P(a_t | X) = softmax(W h_t + b)

All outputs are predicted at once and no output depends on another. Y is the alignment a after repeated tokens are
merged and blanks are removed. E embedding · k ``upsample``: the number of output positions per source token; a target
must fit into them · the blank is token 0, the boundary symbol, because a target needs no end symbol here: the alignment
determines its length. Simplified: the paper's split of the encoder into two halves is left out.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer
from ..layers.pointwise import make_dropout
from .base_models import NeuralModel


class CTCTranslator(NeuralModel):
    """Source ids to log probabilities of the target tokens at every output position.

    The encoder is any sequence layer; one that reads in both directions usually works best. ``upsample`` is k. Dropout
    applies to the embeddings and before the output layer.
    """

    def __init__(
        self,
        encoder: SequenceLayer,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        upsample: int = 3,
        dropout: float = 0.0,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        self.upsample, self.encoder = upsample, encoder
        self.source_embedding = nn.Embedding(source_vocabulary, encoder.input_size)
        self.copies = nn.Embedding(upsample, encoder.input_size)
        self.dropout = make_dropout(dropout)
        self.output = nn.Linear(encoder.output_size, target_vocabulary, bias=output_bias)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        if output_bias:
            nn.init.zeros_(self.output.bias)

    def forward(self, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probabilities ``(batch, positions, target_vocabulary)`` and each row's positions ``(batch,)``.

        Sources are ids ``(batch, source_time)`` of lengths ``(batch,)``.
        """
        rows, time = source.shape
        inputs = self.source_embedding(source).unsqueeze(2) + self.copies.weight
        inputs = inputs.reshape(rows, time * self.upsample, -1)
        positions = source_lengths * self.upsample
        hidden, _ = self.encoder(self.dropout(inputs), lengths=positions)
        return torch.log_softmax(self.output(self.dropout(hidden)).float(), dim=2), positions

    def losses(self, source: Tensor, source_lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        """Return −log P(target | source) of each row ``(batch,)``, in nats; infinite if a target is too long.

        Targets are ids ``(batch, time)``, without token 0 within their lengths ``(batch,)``; sources as in `forward`.
        """
        log_probabilities, positions = self(source, source_lengths)
        return F.ctc_loss(
            log_probabilities.transpose(0, 1), targets, positions, target_lengths, blank=0, reduction="none"
        )
