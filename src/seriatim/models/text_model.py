"""What every language model is: the contract of a sequence layer, from token ids to logits."""

import numpy as np
import torch
from torch import Tensor, nn

from ..core.state import State


class TextModel(nn.Module):
    """Token ids ``(batch, time)`` to logits ``(batch, time, vocabulary)``: P(w₁…w_T) = Π P(w_t | w_<t).

    A sequence begins with the boundary, token 0.
    """

    causal = True
    vocabulary_size: int

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Logits of the next token after each of ``tokens``.

        Args:
            tokens: ids ``(batch, time)``.
            state: to go on from; None for the initial one.
            lengths: ``(batch,)``; what stands on padding means nothing.

        Returns:
            Logits ``(batch, time, vocabulary)`` and the state after each row's last token.
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row: ids ``(batch,)`` to logits ``(batch, vocabulary)``."""
        logits, state = self(tokens.unsqueeze(1), state)
        return logits[:, 0], state

    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """−log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        raise NotImplementedError

    def text_losses(self, ids: np.ndarray) -> np.ndarray | None:
        """−log P of every token of a text ``(tokens,)``, in nats; None where there is no quicker way than windows.

        Sequences in it end with the boundary.
        """
        return None
