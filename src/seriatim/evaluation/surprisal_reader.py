"""The surprisal of every token of some texts, and what the model expected before it.

The surprisal of a token is −log₂ P(token | everything before it in its text), in bits; see `token_scores` for sources.
A state is carried from window to window, so that the context is never cut.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.state import State
from ..data.tokenizers import END
from ..models.base_models import TextModel
from ..models.probabilities import token_log_probabilities

MAX_LOGITS = 1 << 21
"""Probabilities that are held at once; limits the memory to about 50 MB."""
MAX_WINDOW = 256
SMALLEST = -600.0
"""The logarithm of a sum of probabilities is computed from their logarithms below it, before the sum becomes 0."""


class Surprisals(NamedTuple):
    """One text: for each of its tokens, and for the end symbol after the last one, ``(tokens + 1,)``, float64."""

    bits: np.ndarray  # surprisal
    entropy: np.ndarray  # of the distribution of the token, in bits, given what comes before it; NaN if there is none
    rank: np.ndarray  # 1 + the number of tokens that were more likely; NaN if every token is impossible
    boundary: np.ndarray  # log₂ of the probability that a new word or the end of the text follows here


class SurprisalReader:
    """Computes the surprisal of texts.

    Args:
        model: a language model in evaluation mode.
        begins_word: which tokens begin a new word or end the text ``(vocabulary,)``, bool.
        begin: the token that begins a text as an input.
        carries: whether the texts are parts of one text, whose context goes on from part to part; else each of them is
            a text of its own.
    """

    def __init__(self, model: TextModel, begins_word: np.ndarray, *, begin: int = END, carries: bool = False) -> None:
        self.model, self.begin, self.carries = model, begin, carries
        self.begins_word = None if begins_word.all() else torch.from_numpy(begins_word).to(model.device)
        self.last, self.state = begin, model.initial_state(1)

    @torch.inference_mode()
    def read(self, texts: Sequence[np.ndarray]) -> list[Surprisals]:
        """Return the surprisals of some texts, given their token ids ``(tokens,)``, without the end symbol."""
        if self.carries:
            return [self._read_part(ids) for ids in texts]
        sizes = np.array([len(ids) + 1 for ids in texts])
        results: list[Surprisals | None] = [None] * len(texts)
        order = np.argsort(-sizes, kind="stable")
        most = max(1, MAX_LOGITS // self.model.vocabulary_size)
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            for group in np.array_split(rows, -(-len(rows) // most)):
                for row, result in zip(group, self._read_batch([texts[row] for row in group]), strict=True):
                    results[row] = result
        return [result for result in results if result is not None]

    def _read_batch(self, texts: list[np.ndarray]) -> list[Surprisals]:
        """Read texts of their own, side by side."""
        lengths = torch.tensor([len(ids) + 1 for ids in texts])
        ids = torch.full((len(texts), int(lengths.max()) + 1), END)
        ids[:, 0] = self.begin
        for row, text in zip(ids, texts, strict=True):
            row[1 : len(text) + 1] = torch.from_numpy(text.astype(np.int64))
        columns, _ = self._columns(ids, self.model.initial_state(len(texts)), lengths)
        return [Surprisals(*row[:, :length].numpy()) for row, length in zip(columns.unbind(1), lengths, strict=True)]

    def _read_part(self, text: np.ndarray) -> Surprisals:
        """Read the next part of a text; the state after it does not include the end symbol."""
        ids = torch.tensor([[self.last, *text.tolist(), END]])
        parts = []
        if len(text):
            columns, self.state = self._columns(ids[:, :-1], self.state)
            parts.append(columns[:, 0])
            self.last = int(text[-1])
        parts.append(self._columns(ids[:, -2:], self.state)[0][:, 0])
        return Surprisals(*torch.cat(parts, dim=1).numpy())

    def _columns(self, ids: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the fields of `Surprisals` for every token after the first ``(4, batch, time)``, and the state."""
        window = max(1, min(MAX_WINDOW, MAX_LOGITS // (self.model.vocabulary_size * len(ids))))
        parts = []
        for start in range(0, ids.shape[1] - 1, window):
            part = ids[:, start : start + window + 1].to(self.model.device)
            valid = None if lengths is None else (lengths - start).clamp(0, part.shape[1] - 1)
            logits, state = self.model(part[:, :-1], state, lengths=valid)
            parts.append(self._measure(logits, part[:, 1:]).cpu())
        return torch.cat(parts, dim=2), state

    def _measure(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the fields of `Surprisals` for logits ``(batch, time, vocabulary)``: ``(4, batch, time)``."""
        nats = token_log_probabilities(self.model, logits)
        probabilities = nats.exp()
        columns = torch.stack([*measures_of(nats, targets), self._boundary(nats, probabilities) / math.log(2)])
        columns[1:3].masked_fill_(probabilities.sum(2) == 0, math.nan)
        return columns

    def _boundary(self, nats: Tensor, probabilities: Tensor) -> Tensor:
        """Return log P of a new word or the end of the text ``(batch, time)``, given log P and P of all tokens."""
        if self.begins_word is None:  # also where every token is impossible
            return torch.zeros_like(nats[:, :, 0])
        logarithms = (probabilities @ self.begins_word.to(probabilities)).clamp(max=1.0).log()
        if bool((logarithms < SMALLEST).any()):
            exact = nats.masked_fill(~self.begins_word, -math.inf).logsumexp(2)
            logarithms = torch.where(logarithms < SMALLEST, exact, logarithms)
        return logarithms


def measures_of(nats: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return bits, entropy and rank of targets ``(...)``, given log P of every token in nats ``(..., vocabulary)``."""
    of_target = nats.gather(-1, targets.unsqueeze(-1))
    probabilities = nats.exp()  # which need not sum to 1 in a table of another program
    entropy = torch.special.entr(probabilities / probabilities.sum(-1, keepdim=True)).sum(-1)
    ranks = (nats > of_target).sum(-1) + 1
    return of_target.squeeze(-1).neg() / math.log(2), entropy / math.log(2), ranks.double()
