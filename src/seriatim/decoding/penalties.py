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
    """The penalized tokens of one text.

    Args:
        sampling: the penalties.
        biases: numbers added to the logits of tokens.
        read: the tokens of the text before the first generated one, for the repetition penalty.
        device: of the logits.
    """

    def __init__(
        self, sampling: Sampling, biases: Mapping[int, float], read: Sequence[int], device: torch.device
    ) -> None:
        self.sampling, self.changes = sampling, bool(biases) or sampling.penalizes
        self.bias_tokens = torch.tensor(list(biases), dtype=torch.long, device=device)
        self.bias_values = torch.tensor(list(biases.values()), device=device)
        known = list(dict.fromkeys(read)) if sampling.repetition_penalty != 1 else []
        # Slot i has a token, whether it is in use, and how often the token was generated.
        self.slots = {token: slot for slot, token in enumerate(known)}
        self.tokens = torch.tensor(known, dtype=torch.long, device=device)
        self.used = torch.ones(len(known), dtype=torch.bool, device=device)
        self.counts = torch.zeros(len(known), device=device)

    def apply(self, logits: Tensor) -> Tensor:
        """Return the changed logits ``(1, vocabulary)``; those given are not modified.

        Raises:
            NotFiniteError: penalties and biases make logits infinite that were finite before.
        """
        if not self.changes:
            return logits
        # The whole vocabulary is copied, but arithmetic is done on the tokens of the text alone.
        given, logits = logits, logits.clone() if logits.dtype.itemsize >= 4 else logits.float()
        if len(self.tokens):
            before = logits[0, self.tokens]
            factor, counts = self.sampling.repetition_penalty, self.counts.to(logits.dtype)
            after = torch.where(before > 0, before / factor, before * factor) if factor != 1 else before
            after = after - self.sampling.frequency_penalty * counts
            after = after - self.sampling.presence_penalty * (counts > 0)
            change = torch.where(self.used & before.isfinite(), after - before, 0.0)
            logits[0].scatter_add_(0, self.tokens, change)
        if len(self.bias_tokens):
            logits.index_add_(1, self.bias_tokens, self.bias_values.to(logits.dtype).unsqueeze(0))

        # Finite settings can be too large together; a model's own NaN and infinities are reported where it is drawn.
        if not bool(logits.amax().isfinite()) and bool(given.amax().isfinite()):
            names = [*self.sampling.penalties, *(["logit_bias"] if len(self.bias_tokens) else [])]
            raise NotFiniteError(f"give values of {', '.join(names)} that are nearer to the defaults")
        return logits

    def add(self, token: int) -> None:
        """Count one more generated token."""
        if not self.sampling.penalizes:
            return
        slot = self.slots.setdefault(token, len(self.slots))
        if slot >= len(self.tokens):  # the memory doubles, so that a token costs the same at any length
            more = max(16, len(self.tokens))
            self.tokens, self.used, self.counts = (
                torch.cat([values, values.new_zeros(more)]) for values in (self.tokens, self.used, self.counts)
            )
        self.tokens[slot], self.used[slot] = token, True
        self.counts[slot] += 1
