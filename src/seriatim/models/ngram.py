"""A language model of counts: P(w_t | w_{t−n+1} … w_{t−1}), read from tables. See `ngrams.smoothing` for how.

It has the contract of any other: its state is the last n−1 tokens, a boundary among them. No n-gram goes across one, so
that what was before it is forgotten.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..core.lengths import check_lengths, valid_mask
from ..core.state import State
from ..storage.weights import stream_tensors
from .ngrams.counts import BOUNDARY
from .ngrams.orders import Order, Part, Piece, check_order
from .ngrams.parallel import for_all
from .ngrams.sparsity import NAMES, Lookups, Seen, unseen
from .ngrams.table import Table
from .text_model import TextModel

NONE = -1
"""In the state, where there is no token yet."""
PARTS: Mapping[Part, str] = {"key": "keys", "probability": "probabilities", "backoff": "backoffs"}
"""Of orders, and what the parameters are called."""
TOGETHER = 1 << 18
"""Tokens of a text that are looked up at once."""


class NGram(TextModel):
    """Token ids ``(batch, time)`` to log probabilities ``(batch, time, vocabulary)``.

    Args:
        orders: shortest first; see `ngrams.orders`.
        seen: what was counted in the training text; None where that is not known.
    """

    def __init__(self, orders: Sequence[Order], seen: Seen | None = None) -> None:
        super().__init__()
        self.seen = seen
        self.probabilities, self.backoffs, self.keys = (
            nn.ParameterList(nn.Parameter(torch.from_numpy(values), requires_grad=False) for values in part)
            for part in (
                [order.probability for order in orders],
                [order.backoff for order in orders[:-1]],
                [order.key for order in orders[1:]],
            )
        )
        self.table = Table(orders)
        self.order, self.vocabulary_size = len(orders), self.table.vocabulary_size

    def initial_state(self, batch_size: int) -> State:
        """No tokens: ``(batch, order − 1)`` of `NONE`."""
        return torch.full((batch_size, self.order - 1), NONE)

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """As of every `TextModel`; logits are logarithms of probabilities."""
        past, state = self.read(tokens, state, lengths)
        if not tokens.shape[1]:
            return torch.empty(*tokens.shape, self.vocabulary_size), state
        windows = past.unfold(1, max(1, self.order - 1), 1)[:, -tokens.shape[1] :]
        found = self.table.distributions(windows.reshape(-1, windows.shape[2]).numpy())
        with np.errstate(divide="ignore"):
            logits = torch.from_numpy(np.log(found)).to(torch.get_default_dtype())
        return logits.view(*tokens.shape, self.vocabulary_size), state

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """−log P(target) of every position ``(batch, time)``, in nats and float64, zero on padding; and the state."""
        past, state = self.read(tokens, state, lengths)
        losses = -torch.from_numpy(self.table.log_probabilities(past.numpy(), targets.numpy()))
        if lengths is not None:
            losses = losses.masked_fill(~valid_mask(lengths, tokens.shape[1]), 0.0)
        return losses, state

    def text_losses(self, ids: np.ndarray) -> np.ndarray:
        """−log P of every token of a text ``(tokens,)``, in nats."""
        return self.look_up(ids).losses

    def look_up(self, ids: np.ndarray) -> Lookups:
        """−log P of every token of a text ``(tokens,)``, and how many of its n-grams the tables lack."""
        none, losses = np.full(self.order - 1, NONE), np.empty(len(ids))
        starts = range(0, len(ids), TOGETHER)
        tallies = np.zeros((len(starts), 2, self.order), np.int64)
        impossible = np.zeros(len(starts), np.int64)

        def look_up(start: int) -> None:
            before = ids[max(0, start - self.order) : start]
            first = np.append(none, BOUNDARY)[len(before) :]  # where a text begins
            text = np.concatenate([first, before, ids[start : start + TOGETHER]]).astype(np.int64, copy=False)
            places = self.table.ending(text[None], self.order)
            contexts, whole = [each[:, :-1] for each in places], [each[:, 1:] for each in places]
            found = self.table.backed_off(contexts, whole)
            losses[start : start + TOGETHER] = -found[0, self.order - 1 :]
            if self.seen is not None:
                zero = self.table.impossible(contexts, whole, self.seen.tokens)
                impossible[start // TOGETHER] = np.count_nonzero(zero[self.order - 1 :])
            tallies[start // TOGETHER] = unseen(text, [each[0] for each in places], self.order, self.seen)

        for_all(look_up, starts)
        predicted, lacking = tallies.sum(0)
        return Lookups(losses, predicted, lacking, None if self.seen is None else int(impossible.sum()))

    def read(self, tokens: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The tokens with those kept before them ``(batch, order − 1 + time)``, and what is kept after them."""
        lengths = check_lengths(lengths, *tokens.shape)
        kept = self.initial_state(len(tokens)) if state is None else state
        assert isinstance(kept, Tensor)
        past = torch.cat([kept, tokens], dim=1)
        size = self.order - 1
        ends = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
        return past, past.gather(1, ends.unsqueeze(1) + torch.arange(size))

    @staticmethod
    def write(
        pieces: Iterable[Piece], path: Path, metadata: Mapping[str, str], seen: Callable[[], Seen] | None = None
    ) -> None:
        """Writes the tables of a model, each piece as it comes; then what ``seen`` gives, once all pieces are made."""

        def arrays() -> Iterator[tuple[str, np.ndarray]]:
            for n, part, values in pieces:
                yield f"{PARTS[part]}.{n - 1 - (part == 'key')}", values
            if seen is not None:
                yield from zip(NAMES, seen(), strict=True)

        stream_tensors(arrays(), path, metadata)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], vocabulary_size: int) -> "NGram":
        """The model whose parameters have these names and values; they are looked at here and there alone.

        Raises:
            ValueError: some are missing, do not fit one another, or are of another vocabulary.
        """
        counted = {name: values for name, values in tensors.items() if name in NAMES}
        tensors = {name: values for name, values in tensors.items() if name not in NAMES}
        order = sum(name.startswith("probabilities.") for name in tensors)
        named = {f"probabilities.{n}" for n in range(order)}
        named |= {f"{part}.{n}" for part in ("backoffs", "keys") for n in range(order - 1)}
        if not order or named != set(tensors) or len(counted) not in (0, len(NAMES)):
            raise ValueError("not the tables of an n-gram model")
        for name, values in tensors.items():
            if values.dim() != 1 or values.dtype != (torch.int64 if name.startswith("keys.") else torch.float64):
                raise ValueError(f"{name} is no table of numbers of its type")
        if len(tensors["probabilities.0"]) != vocabulary_size:
            raise ValueError("tables of another vocabulary")
        orders: list[Order] = []
        for n in range(order):
            probability = tensors[f"probabilities.{n}"].numpy()
            key = tensors[f"keys.{n - 1}"].numpy() if n else np.arange(len(probability))
            backoff = tensors[f"backoffs.{n}"].numpy() if n < order - 1 else np.ones(0)
            orders.append(Order(key, probability, backoff))
            check_order(orders, vocabulary_size, longest=n == order - 1)
        return cls(orders, Seen.from_tensors(counted, order, vocabulary_size) if counted else None)
