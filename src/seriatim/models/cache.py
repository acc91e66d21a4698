"""A unigram of what was just read: what stood in a text lately stands there again.

R. Kuhn and R. De Mori, "A cache-based natural language model for speech recognition", IEEE Trans. PAMI 12(6), 1990.

    P(w | w_<t) = count of w among the last K tokens / how many these are

It gives most words nothing, and is for mixtures. While nothing was read, every word is equally likely.
"""

import torch
from torch import Tensor

from ..core.lengths import check_lengths, valid_mask
from ..core.state import State
from .text_model import TextModel

NONE = -1


class UnigramCache(TextModel):
    """Token ids ``(batch, time)`` to log probabilities ``(batch, time, vocabulary)``; its state is the last K tokens.

    Args:
        vocabulary_size: number of token ids.
        size: K.
    """

    def __init__(self, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.vocabulary_size, self.size = vocabulary_size, size

    def initial_state(self, batch_size: int) -> State:
        """No tokens: ``(batch, size)`` of `NONE`."""
        return torch.full((batch_size, self.size), NONE)

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Ids ``(batch, time)`` to logarithms of probabilities ``(batch, time, vocabulary)``, and the state."""
        past, state = self.read(tokens, state, lengths)
        windows = past.unfold(1, self.size, 1)[:, 1:]  # (B, T, K)
        counts = torch.zeros(*tokens.shape, self.vocabulary_size + 1)
        counts.scatter_add_(2, windows.clamp_min(NONE) + 1, torch.ones(windows.shape))
        counts = counts[:, :, 1:]
        total = counts.sum(2, keepdim=True)
        found = torch.where(total > 0, counts / total.clamp_min(1), 1 / self.vocabulary_size)
        return found.log(), state

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """−log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        past, state = self.read(tokens, state, lengths)
        windows = past.unfold(1, self.size, 1)[:, 1:]
        found = torch.zeros(tokens.shape, dtype=torch.float64)
        for row in range(len(tokens)):  # (T, K) at once, not (B, T, K)
            same = (windows[row] == targets[row].unsqueeze(1)).sum(1, dtype=torch.float64)
            total = (windows[row] != NONE).sum(1)
            found[row] = torch.where(total > 0, same / total.clamp_min(1), 1 / self.vocabulary_size)
        losses = -found.log()
        if lengths is not None:
            losses = losses.masked_fill(~valid_mask(lengths, tokens.shape[1]), 0.0)
        return losses, state

    def read(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The tokens with those kept before them ``(batch, size + time)``, and what is kept after them."""
        lengths = check_lengths(lengths, *tokens.shape)
        kept = self.initial_state(len(tokens)) if state is None else state
        assert isinstance(kept, Tensor)
        past = torch.cat([kept, tokens], dim=1)
        ends = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
        return past, past.gather(1, ends.unsqueeze(1) + torch.arange(self.size))
