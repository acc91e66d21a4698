"""A unigram cache: words of the recent text are likely to occur again.

R. Kuhn and R. De Mori, "A cache-based natural language model for speech recognition", IEEE Trans. PAMI 12(6), 1990.

    P(w | w_<t) = count of w among the last K tokens / number of these tokens

Most words have probability 0, so the cache is used in mixtures only. Before the first token all words are equally
probable.
"""

import torch
from torch import Tensor

from ..core.lengths import check_lengths, zero_padding
from ..core.state import State
from .base_models import TextModel

NO_TOKEN = -1


class RecentTokens(TextModel):
    """A language model whose state is the last ``size`` tokens ``(batch, size)``."""

    gives_log_probabilities = True
    size: int

    def initial_state(self, batch_size: int) -> State:
        """Return a state without tokens: ``(batch, size)`` of `NO_TOKEN`."""
        return torch.full((batch_size, self.size), NO_TOKEN)

    def append(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Join the tokens in the state to new tokens ``(batch, time)``.

        Returns:
            Ids ``(batch, size + time)``, and the next state: the last ``size`` valid tokens of each row.
        """
        lengths = check_lengths(lengths, *tokens.shape)
        before = self.initial_state(len(tokens)) if state is None else state
        assert isinstance(before, Tensor)
        past = torch.cat([before, tokens], dim=1)
        ends = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
        return past, past.gather(1, ends.unsqueeze(1) + torch.arange(before.shape[1]))


class UnigramCache(RecentTokens):
    """Token ids ``(batch, time)`` to log probabilities ``(batch, time, vocabulary)``, with a cache of ``size`` K."""

    def __init__(self, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.vocabulary_size, self.size = vocabulary_size, size  # V and K

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return log probabilities ``(batch, time, vocabulary)`` after ids ``(batch, time)``, and the state."""
        past, state = self.append(tokens, state, lengths)
        windows = past.unfold(1, self.size, 1)[:, 1:]  # (B, T, K)
        counts = torch.zeros(*tokens.shape, self.vocabulary_size + 1)
        counts.scatter_add_(2, windows.clamp_min(NO_TOKEN) + 1, torch.ones(windows.shape))
        counts = counts[:, :, 1:]
        total = counts.sum(2, keepdim=True)
        return torch.where(total > 0, counts / total.clamp_min(1), 1 / self.vocabulary_size).log(), state

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        past, state = self.append(tokens, state, lengths)
        windows = past.unfold(1, self.size, 1)[:, 1:]
        probabilities = torch.zeros(tokens.shape, dtype=torch.float64)
        for row in range(len(tokens)):  # row by row, so that (T, K) and not (B, T, K) values are in memory
            matches = (windows[row] == targets[row].unsqueeze(1)).sum(1, dtype=torch.float64)
            total = (windows[row] != NO_TOKEN).sum(1)
            probabilities[row] = torch.where(total > 0, matches / total.clamp_min(1), 1 / self.vocabulary_size)
        return zero_padding(-probabilities.log(), lengths), state
