"""Copying from the source: a step either generates a token of the vocabulary or repeats a token of the source.

A. See, P. Liu and C. Manning, "Get to the point: summarization with pointer-generator networks", ACL 2017.

    g = σ(u·h + b),  k_n = (1 − g) α_n if the token x_n of the source is also in the target vocabulary, else 0
    P(y) = (1 − Σ_n k_n) P_v(y) + Σ_{n: x_n = y} k_n

h output of the decoder · α where the decoder attends · P_v softmax of the output layer · g gate. In the paper, tokens
of the source extend the vocabulary; here, attention to a token outside the vocabulary generates, so that P sums to one.

A decoder with one head of attention gives its own α, as in the paper. Any other decoder gets a head of its own, which
reads h (bilinear score).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.lengths import check_lengths, valid_mask
from ..core.state import State
from ..data.tokenizers import END, Tokenizer
from .attention_decoder import Memory, MemoryAttention

SMALLEST = 1e-30
"""Added to a probability before its logarithm, whose gradient is then finite even where nothing is copied."""
NOT_COPIED = -1


class CopyState(NamedTuple):
    """The state of a model that copies."""

    decoder: State
    tokens: Tensor  # the target id of each token of the source, or NOT_COPIED (batch, source_time)
    memory: State  # (batch, source_time, memory_size), or () if the decoder gives the weights
    keys: State  # the keys of the memory (batch, source_time, size), or ()


class CopyMixture(NamedTuple):
    """The terms of P for some steps, apart from P_v."""

    copied: Tensor  # k (batch, time, source_time)
    generated: Tensor  # 1 − Σ_n k_n, computed without cancellation (batch, time)
    tokens: Tensor  # those of the state (batch, source_time)

    def token_losses(self, logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return −log P of each target ``(batch, time)``, in nats, for logits ``(batch, time, vocabulary)``.

        ``label_smoothing`` is the share of each target that is spread over P_v.
        """
        # Both ways to a target are added as logarithms. The probability of a rare token is below what float32 can hold,
        # and log P_v from logits has the full precision and gradient there, which log of a sum would not have.
        log_v = torch.log_softmax(logits.to(self.generated), dim=2)
        copied = (self.copied * (self.tokens.unsqueeze(1) == targets.unsqueeze(2))).sum(2)
        generated = log_v.gather(2, targets.unsqueeze(2)).squeeze(2) + torch.log(self.generated + SMALLEST)
        losses = -torch.logaddexp(generated, torch.log(copied + SMALLEST))
        return torch.lerp(losses, -log_v.mean(2), label_smoothing) if label_smoothing else losses

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return log P of all tokens ``(batch, time, vocabulary)`` for logits of the same shape."""
        indices = self.tokens.clamp(min=0).unsqueeze(1).expand(self.copied.shape)
        logits = logits.to(self.generated)
        copied = torch.zeros_like(logits).scatter_add(2, indices, self.copied)
        generated = torch.log_softmax(logits, dim=2) + torch.log(self.generated + SMALLEST).unsqueeze(2)
        return torch.logaddexp(generated, torch.log(copied + SMALLEST))


class Copying(nn.Module):
    """Mixes the distribution of the output layer with copies of the source.

    Args:
        size: width of the decoder's outputs.
        table: the target id of every source id, or `NOT_COPIED` ``(source_vocabulary,)``; see `copied_tokens`.
        memory_size: width of the encoder's outputs if the decoder gives no weights, else None.
    """

    table: Tensor

    def __init__(self, size: int, table: Tensor, memory_size: int | None) -> None:
        super().__init__()
        self.gate = nn.Linear(size, 1)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.attend = None if memory_size is None else MemoryAttention(size, memory_size, score="bilinear")
        self.register_buffer("table", table, persistent=False)

    def begin(self, decoder: State, source: Tensor, memory: Tensor, lengths: Tensor | None) -> CopyState:
        """Return the state before the first step, for ids ``(batch, source_time)`` of lengths ``(batch,)``."""
        tokens, lengths = self.table[source], check_lengths(lengths, *source.shape)
        if lengths is not None:
            tokens = tokens.masked_fill(~valid_mask(lengths, source.shape[1]).to(tokens.device), NOT_COPIED)
        if self.attend is None:
            return CopyState(decoder, tokens, (), ())
        return CopyState(decoder, tokens, memory, self.attend.keys(memory))

    def mix(self, hidden: Tensor, weights: Tensor | None, state: State) -> CopyMixture:
        """Return the terms of the mixture for steps of the decoder.

        Args:
            hidden: its outputs ``(batch, time, size)``.
            weights: its α ``(batch, time, source_time)``, or None if it gives none.
            state: before or after these steps.
        """
        assert isinstance(state, CopyState)

        # A decoder without a single α gets one here, over those tokens alone that can be copied. The α of a decoder
        # that gives one covers all tokens, since its context needs them.
        is_copied = (state.tokens >= 0).unsqueeze(1)  # (B, 1, S)
        if self.attend is not None:
            assert isinstance(state.memory, Tensor)
            memory = Memory(state.memory, state.keys if isinstance(state.keys, Tensor) else state.memory, ~is_copied)
            weights = self.attend(hidden, memory)[1]
        assert weights is not None

        # 1 − Σ k = g + (1 − g)(1 − Σ α) adds numbers of one sign. The difference itself would lose all its digits where
        # nearly everything is copied, just where its logarithm matters. Attention to tokens that cannot be copied
        # generates; rounding may make its sum slightly negative.
        score = self.gate(hidden)  # (B, T, 1)
        wide = torch.promote_types(score.dtype, torch.float32)  # probabilities near 1 need more than bfloat16
        score, weights = score.to(wide), weights.to(wide) * is_copied  # (B, T, S)
        elsewhere = (1 - weights.sum(2, keepdim=True)).clamp(min=0)  # (B, T, 1)
        generated = torch.sigmoid(score) + torch.sigmoid(-score) * elsewhere
        return CopyMixture(torch.sigmoid(-score) * weights, generated.squeeze(2), state.tokens)


def copied_tokens(source: Tokenizer, target: Tokenizer) -> Tensor:
    """Return the target token with the same text as each source token, or `NOT_COPIED` ``(source_vocabulary,)``."""
    ids = {target.token_bytes(token): token for token in range(target.vocabulary_size) if token != END}
    ids = {text: token for text, token in ids.items() if text and token != target.unknown_id}
    table = torch.full((source.vocabulary_size,), NOT_COPIED)
    for token in range(source.vocabulary_size):
        if token not in (END, source.unknown_id):
            table[token] = ids.get(source.token_bytes(token), NOT_COPIED)
    return table
