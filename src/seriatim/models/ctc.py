"""A text from a text, all of it at once: P(Y | X) = Σ over alignments of Π_t P(a_t | X), no output seeing another.

A. Graves et al., "Connectionist temporal classification", ICML 2006; for translation J. Libovický and J. Helcl,
"End-to-end non-autoregressive neural machine translation with connectionist temporal classification", EMNLP 2018.

    h = encoder(each of E[x] k times),  P(a_t | X) = softmax(W h_t + b)
    Y is a with repetitions joined and blanks taken out

E embedding · k ``upsample``: there are k places for every token of the source, and a target must fit into them · token
0, the boundary symbol, is the blank: a target has no end to predict, for its length follows from the alignment. Left
out: the paper's split of the encoder into two halves.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer
from ..layers.dropout import dropout as make_dropout


class CTCTranslator(nn.Module):
    """Source ids to log probabilities of target tokens at every place, by any sequence layer.

    Args:
        encoder: best one that sees the whole sequence.
        source_vocabulary: number of token ids of sources.
        target_vocabulary: number of token ids of targets.
        upsample: places for every token of a source.
        dropout: rate on embeddings and before the output layer.
        output_bias: whether the output layer has a bias.
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
        """Log probabilities ``(batch, places, target_vocabulary)`` of ids ``(batch, source_time)``; places."""
        rows, time = source.shape
        inputs = self.source_embedding(source).unsqueeze(2) + self.copies.weight
        inputs = inputs.reshape(rows, time * self.upsample, -1)
        places = source_lengths * self.upsample
        hidden, _ = self.encoder(self.dropout(inputs), lengths=places)
        return torch.log_softmax(self.output(self.dropout(hidden)).float(), dim=2), places

    def losses(self, source: Tensor, source_lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        """−log P(target | source) of each row ``(batch,)``, in nats; infinite where a target does not fit.

        Args:
            source: ids ``(batch, source_time)``.
            source_lengths: ``(batch,)``.
            targets: ids ``(batch, time)``, none of them 0 within its length.
            target_lengths: ``(batch,)``.
        """
        found, places = self(source, source_lengths)
        return F.ctc_loss(found.transpose(0, 1), targets, places, target_lengths, blank=0, reduction="none")
