"""An n-gram language model: P(w_t | w_{t−n+1} … w_{t−1}), read from tables; see `ngrams.smoothing` for the formulas.

It has the contract of every language model. Its state is the last n−1 tokens, which may include a boundary symbol. No
n-gram crosses a boundary, so the model forgets what came before it.

Beside it a unigram cache, for words of the recent text that are likely to occur again (R. Kuhn and R. De Mori, "A
cache-based natural language model for speech recognition", IEEE Trans. PAMI 12(6), 1990):

    P(w | w_<t) = count of w among the last K tokens / number of these tokens

Most words have probability 0 there, so the cache is used in mixtures only. Before the first token all words are equally
probable.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.lengths import check_lengths, zero_padding
from ..core.state import OutputsAndState, State
from ..models.base_models import TextModel
from .ngrams.counts import BOUNDARY
from .ngrams.resources import run_for_all
from .ngrams.table import NgramTable, Order, check_order, orders_from
from .ngrams.unseen import TENSOR_NAMES, Lookups, Seen, count_unseen

NO_TOKEN = -1


class RecentTokens(TextModel):
    """A language model whose state is the last ``size`` tokens ``(batch, size)``."""

    gives_log_probabilities = True
    size: int

    def initial_state(self, batch_size: int) -> State:
        """Return a state without tokens: ``(batch, size)`` of `NO_TOKEN`."""
        return torch.full((batch_size, self.size), NO_TOKEN)

    def append(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> OutputsAndState:
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

    def forward(self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
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
    ) -> OutputsAndState:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        past, state = self.append(tokens, state, lengths)
        windows = past.unfold(1, self.size, 1)[:, 1:]
        probabilities = torch.zeros(tokens.shape, dtype=torch.float64)
        for row in range(len(tokens)):  # row by row, so that (T, K) and not (B, T, K) values are in memory
            matches = (windows[row] == targets[row].unsqueeze(1)).sum(1, dtype=torch.float64)
            total = (windows[row] != NO_TOKEN).sum(1)
            probabilities[row] = torch.where(total > 0, matches / total.clamp_min(1), 1 / self.vocabulary_size)
        return zero_padding(-probabilities.log(), lengths), state


LOOKUP_SIZE = 1 << 18  # tokens of a text that are looked up at once


class NGram(RecentTokens):
    """Token ids ``(batch, time)`` to log probabilities ``(batch, time, vocabulary)``.

    ``orders`` are the tables, shortest first; ``seen`` are the counts of the training text, None if unknown.
    """

    def __init__(self, orders: Sequence[Order], seen: Seen | None = None) -> None:
        super().__init__()
        self.seen = seen
        self.probabilities, self.backoffs, self.keys = (
            nn.ParameterList(nn.Parameter(torch.from_numpy(values), requires_grad=False) for values in arrays)
            for arrays in (
                [order.probability for order in orders],
                [order.backoff for order in orders[:-1]],
                [order.key for order in orders[1:]],
            )
        )
        self.table = NgramTable(orders)
        self.vocabulary_size = self.table.vocabulary_size
        self.order, self.size = len(orders), len(orders) - 1

    def forward(self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Return log probabilities and the state; see `TextModel.forward`."""
        past, state = self.append(tokens, state, lengths)
        if not tokens.shape[1]:
            return torch.empty(*tokens.shape, self.vocabulary_size), state
        windows = past.unfold(1, max(1, self.order - 1), 1)[:, -tokens.shape[1] :]
        before = windows.reshape(-1, windows.shape[2]).numpy()
        logits = self.table.next_log_probabilities(before, torch.get_default_dtype())
        return logits.view(*tokens.shape, self.vocabulary_size), state

    def draw_next(self, state: State, uniform: Tensor, banned: Sequence[int]) -> Tensor:
        """Draw the token after each state, without the logits; see `decoding.sampling.DrawsNext`."""
        return torch.from_numpy(self.table.draw_next(self._context(state), uniform.numpy(), banned))

    def next_logits(self, state: State) -> Tensor:
        """Return the log probabilities of the token after each state ``(batch, vocabulary)``."""
        return self.table.next_log_probabilities(self._context(state), torch.get_default_dtype())

    def advance(self, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> State:
        """Return the state after ids ``(batch, time)``."""
        return self.append(tokens, state, lengths)[1]

    def _context(self, state: State) -> np.ndarray:
        assert isinstance(state, Tensor)
        return (state if state.shape[1] else state.new_full((len(state), 1), NO_TOKEN)).numpy()

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> OutputsAndState:
        """Return −log P(target) of every position ``(batch, time)``, in nats, in float64, and the state."""
        past, state = self.append(tokens, state, lengths)
        losses = -torch.from_numpy(self.table.log_probabilities(past.numpy(), targets.numpy()))
        return zero_padding(losses, lengths), state

    def text_losses(self, ids: np.ndarray) -> np.ndarray:
        """Return −log P of every token of a text ``(tokens,)``, in nats."""
        return self.look_up(ids, counts=False).losses

    def look_up(self, ids: np.ndarray, *, counts: bool = True) -> Lookups:
        """Look up every token of a text ``(tokens,)`` and the n-grams that end with it; only losses without counts."""
        padding, losses = np.full(self.order - 1, NO_TOKEN), np.empty(len(ids))
        starts = range(0, len(ids), LOOKUP_SIZE)
        tallies = np.zeros((len(starts), 3, self.order), np.int64)
        impossible = np.zeros(len(starts), np.int64)

        # Every block reads as many tokens before it as the longest n-gram has, so that blocks can be looked up in
        # parallel.
        def look_up(start: int) -> None:
            before = ids[max(0, start - self.order) : start]
            first = np.append(padding, BOUNDARY)[len(before) :]  # the beginning of the text
            text = np.concatenate([first, before, ids[start : start + LOOKUP_SIZE]]).astype(np.int64, copy=False)
            indices, log_probabilities = self.table.look_up(text)
            losses[start : start + LOOKUP_SIZE] = -log_probabilities[self.order :]
            if not counts:
                return
            if self.seen is not None:
                is_impossible = self.table.impossible(list(indices[:, :-1]), list(indices[:, 1:]), self.seen.tokens)
                impossible[start // LOOKUP_SIZE] = np.count_nonzero(is_impossible[self.order - 1 :])
            tallies[start // LOOKUP_SIZE] = count_unseen(text, indices, self.order, self.seen)

        if len(starts) == 1:
            look_up(0)  # to start a thread takes longer than to look up a line
        else:
            run_for_all(look_up, starts)
        predicted, missing, matched = tallies.sum(0)
        return Lookups(losses, predicted, missing, matched, None if self.seen is None else int(impossible.sum()))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], vocabulary_size: int) -> "NGram":
        """Build a model from its parameters by name; only a sample of large tables is checked.

        Raises:
            ValueError: tables are missing or damaged, or belong to another vocabulary.
        """
        counts = {name: values for name, values in tensors.items() if name in TENSOR_NAMES}
        tensors = {name: values for name, values in tensors.items() if name not in TENSOR_NAMES}
        order = sum(name.startswith("probabilities.") for name in tensors)
        expected = {f"probabilities.{n}" for n in range(order)}
        expected |= {f"{name}.{n}" for name in ("backoffs", "keys") for n in range(order - 1)}
        if not order or expected != set(tensors) or len(counts) not in (0, len(TENSOR_NAMES)):
            raise ValueError("not the tables of an n-gram model")
        for name, values in tensors.items():
            if values.dim() != 1 or values.dtype != (torch.int64 if name.startswith("keys.") else torch.float64):
                raise ValueError(f"{name} has the wrong type or shape")
        if len(tensors["probabilities.0"]) != vocabulary_size:
            raise ValueError("the tables belong to another vocabulary")
        orders = orders_from({name: values.numpy() for name, values in tensors.items()})
        for n in range(1, order + 1):
            check_order(orders[:n], vocabulary_size, longest=n == order)
        return cls(orders, Seen.from_tensors(counts, order, vocabulary_size) if counts else None)
