"""Penalties for tokens that the text already has, and biases of single tokens.

The logit l of a token becomes, in this order:

1. l / r if l > 0, else l · r, for tokens in the text so far, the prompt included; r is the repetition penalty;
2. l − f · c − p · [c > 0] for a token generated c times; f is the frequency penalty and p the presence penalty;
3. l + b, where b is the bias of the token.

Only the tokens concerned are changed; there is no arithmetic on the whole vocabulary. N. Keskar et al., "CTRL: a
conditional transformer language model for controllable generation", 2019 (the repetition penalty).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..models.probabilities import NotFiniteError
from .sampling_settings import Sampling


class Penalties:
    """The penalized tokens of each row of a batch; each row has its own.

    Args:
        sampling: the penalties.
        biases: numbers added to the logits of tokens.
        rows: the size of the batch.
        read: the tokens of the text before the first generated one, for the repetition penalty; the same in all rows.
        device: of the logits.
    """

    def __init__(
        self, sampling: Sampling, biases: Mapping[int, float], rows: int, read: Sequence[int], device: torch.device
    ) -> None:
        self.sampling, self.changes = sampling, bool(biases) or sampling.penalizes
        self.bias_tokens = torch.tensor(list(biases), dtype=torch.long, device=device)
        self.bias_values = torch.tensor(list(biases.values()), device=device)
        known = list(dict.fromkeys(read)) if sampling.repetition_penalty != 1 else []
        self.slots: list[dict[int, int]] = [{token: slot for slot, token in enumerate(known)} for _ in range(rows)]
        # Slot i of a row has a token, whether it is in use, and how often the token was generated.
        self.tokens = torch.tensor(known, dtype=torch.long, device=device).repeat(rows, 1)
        self.used = torch.ones(self.tokens.shape, dtype=torch.bool, device=device)
        self.counts = torch.zeros(self.tokens.shape, device=device)

    def apply(self, logits: Tensor) -> Tensor:
        """Return the changed logits ``(batch, vocabulary)``; those given are not modified.

        Raises:
            NotFiniteError: penalties and biases make logits infinite that were finite before.
        """
        if not self.changes:
            return logits
        given, logits = logits, logits.clone() if logits.dtype.itemsize >= 4 else logits.float()
        if self.tokens.shape[1]:
            before = logits.gather(1, self.tokens)
            factor, counts = self.sampling.repetition_penalty, self.counts.to(logits.dtype)
            after = torch.where(before > 0, before / factor, before * factor) if factor != 1 else before
            after = after - self.sampling.frequency_penalty * counts
            after = after - self.sampling.presence_penalty * (counts > 0)
            change = torch.where(self.used & before.isfinite(), after - before, 0.0)
            logits.scatter_add_(1, self.tokens, change)
        if len(self.bias_tokens):
            logits.index_add_(1, self.bias_tokens, self.bias_values.to(logits.dtype).expand(len(logits), -1))
        failed = ~logits.amax(1).isfinite()
        if bool(failed.any()) and bool(given[failed].amax(1).isfinite().any()):
            names = [*self.sampling.penalties, *(["logit_bias"] if len(self.bias_tokens) else [])]
            raise NotFiniteError(f"give values of {', '.join(names)} that are nearer to the defaults")
        return logits

    def add(self, tokens: Sequence[int | None]) -> None:
        """Count one more generated token of every row; None for a row that has ended."""
        if not self.sampling.penalizes:
            return
        rows = [row for row, token in enumerate(tokens) if token is not None]
        new = [token for token in tokens if token is not None]
        slots = [self.slots[row].setdefault(token, len(self.slots[row])) for row, token in zip(rows, new, strict=True)]
        if not slots:
            return
        if max(slots) >= self.tokens.shape[1]:
            self._grow(max(16, self.tokens.shape[1]))
        place = torch.tensor(rows, device=self.tokens.device), torch.tensor(slots, device=self.tokens.device)
        self.tokens[place] = torch.tensor(new, device=self.tokens.device)
        self.used[place] = True
        self.counts[place] += 1

    def _grow(self, more: int) -> None:
        rows = len(self.tokens)
        self.tokens, self.used, self.counts = (
            torch.cat([part, part.new_zeros(rows, more)], dim=1) for part in (self.tokens, self.used, self.counts)
        )
