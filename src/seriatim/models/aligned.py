"""An encoder-decoder whose tokens each come from one position of the source, which is unknown and summed over.

S. Wu and R. Cotterell, "Exact hard monotonic attention for character-level transduction", ACL 2019, without the
constraint that positions never decrease:

    P(a_t = n | a_{t−1} = m) = softmax over n of score(h_t, m_n) + w_{n−m},  w_j = 0 for |j| > 2
    P(y_t | a_t = n) = softmax of V tanh(W [m_n; h_t]) + b
    P(y_t | y_<t) = Σ_n P(a_t = n | y_<t) P(y_t | a_t = n)

h_t outputs of the recurrence, which reads the tokens before · m_n outputs of the encoder, and zeros before the first:
a_0 is there, and later ones if the source is empty · w ``attend.location`` and `EXPECTED`. The parameters are those of
`luong_decoder` with ``location``. A decoder with attention reads the mean of all m_n instead, so that it can read two
equal letters at once and lose its place.

With copying, g = u·tanh(W [m_n; h_t]) + c is added to the logit of the token that stands at position n.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..core.lengths import check_lengths, zero_padding
from ..core.state import OutputsAndState, State
from .attention_decoder import LOCATION_SCALE, REACH, AttentionDecoder, AttentionState
from .copying import NOT_COPIED, SMALLEST, CopyState
from .encoder_decoder import EncoderDecoder

EXPECTED = (0.0, 0.0, 3.0, 5.0, 3.0)
"""What is added to each w_j: before it is trained, a token most likely comes from the position after the last one."""
AT_ONCE = 1 << 25
"""Largest number of features of [m_n; h_t] that are kept for the backward pass."""


class AlignedState(NamedTuple):
    """The state of an aligned encoder-decoder, with S positions: one before the source, and those of its tokens."""

    decoder: State  # its weights are P(a_t | y_<t) of the last step (batch, S)
    tokens: Tensor  # the target id of each token of the source, or NOT_COPIED (batch, S)
    scores: Tensor  # log P(y_t | a_t) of the last step, zeros before the first (batch, S, target_vocabulary)


class AlignedEncoderDecoder(EncoderDecoder):
    """An encoder-decoder that sums over the positions that each token may come from; see `EncoderDecoder`.

    The decoder is that of `luong_decoder` with location and the readout `tanh`, without input feeding.
    """

    decoder: AttentionDecoder
    is_mixture = True

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> State:
        """Return the state before the first token; see `EncoderDecoder.encode`."""
        state = super().encode(source, source_lengths)
        tokens = state.tokens if isinstance(state, CopyState) else torch.full_like(source, NOT_COPIED)
        inner = cast(AttentionState, state.decoder if isinstance(state, CopyState) else state)
        memory = F.pad(inner.memory, (0, 0, 1, 0))
        keys = F.pad(inner.keys, (0, 0, 1, 0)) if isinstance(inner.keys, Tensor) else ()
        first = F.pad(memory.new_ones(memory.shape[0], 1), (0, source.shape[1]))
        inner = inner._replace(weights=first, memory=memory, keys=keys, lengths=inner.lengths + 1)
        scores = memory.new_zeros(*first.shape, self.target_vocabulary)
        return AlignedState(inner, F.pad(tokens, (1, 0), value=NOT_COPIED), scores)

    def decode(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Return the result of `token_scores`, log P(a_t | y_<t) ``(batch, time, S)``, and the state at the end."""
        assert isinstance(state, AlignedState)
        inner, lengths = cast(AttentionState, state.decoder), check_lengths(lengths, *tokens.shape)
        hidden, layer = self.decoder.layer(self.dropout(self.target_embedding(tokens)), inner.layer, lengths=lengths)

        # The features of a large batch are computed again for the backward pass, those of some rows at a time.
        arguments, size = (hidden, inner.memory, state.tokens), hidden.numel() * inner.memory.shape[1]
        if size <= AT_ONCE:
            scores = self.token_scores(*arguments)
        else:
            parts = zip(*(each.tensor_split(-(-size // AT_ONCE)) for each in arguments), strict=True)
            scores = torch.cat([checkpoint(self.token_scores, *each, use_reentrant=False) for each in parts])

        # A token that is read says which position it may have come from, by the scores of the step before.
        before = torch.cat([state.scores.unsqueeze(1), scores], dim=1)
        positions = self.positions(hidden, inner, _of_tokens(before[:, :-1], tokens))

        # The state is that after the last valid token of each row.
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        last = torch.full_like(rows, tokens.shape[1]) if lengths is None else lengths.to(rows)
        # The positions sum to one without a softmax, which is what `inspect` observes.
        weights = torch.cat([cast(Tensor, inner.weights).unsqueeze(1), torch.softmax(positions, 2)], 1)[rows, last]
        inner = inner._replace(layer=layer, weights=weights)
        return scores, positions, AlignedState(inner, state.tokens, before[rows, last])

    def features(self, tokens: Tensor, state: State, lengths: Tensor | None) -> OutputsAndState:
        """Return the result of `forward`: there is no single input of the output layer."""
        return self.forward(tokens, state, lengths=lengths)

    def predict(self, hidden: Tensor, weights: Tensor | None, state: State) -> Tensor:
        """Return log P ``(batch, time, target_vocabulary)`` for the results of `decode`."""
        return torch.logsumexp(cast(Tensor, weights).unsqueeze(3) + hidden, dim=2)

    def attended(self, tokens: Tensor, state: State, lengths: Tensor | None) -> Tensor:
        """Return P(a_t | y_<t) of the tokens of the source ``(batch, time, source_time)``, zero on padding."""
        return zero_padding(self.decode(tokens, state, lengths)[1].exp()[:, :, 1:], lengths)

    def token_scores(self, hidden: Tensor, memory: Tensor, copied: Tensor) -> Tensor:
        """Return log P(y_t | a_t) ``(batch, time, S, target_vocabulary)``."""
        of_memory, of_hidden = cast(nn.Linear, self.decoder.map).weight.tensor_split([memory.shape[2]], dim=1)
        features = torch.tanh((memory @ of_memory.mT).unsqueeze(1) + (hidden @ of_hidden.mT).unsqueeze(2))
        features = features * self.dropout(torch.ones_like(features[:, :, :1]))
        logits = self.output(features)
        if self.copying is not None:
            indices = copied.clamp(min=0)[:, None, :, None].expand(*logits.shape[:3], 1)
            added = self.copying.gate(features) * (copied >= 0)[:, None, :, None]
            logits = logits.scatter_add(3, indices, added.to(logits))
        return torch.log_softmax(logits, dim=3)

    def positions(self, hidden: Tensor, state: AttentionState, read: Tensor) -> Tensor:
        """Return log P(a_t | y_<t) ``(batch, time, S)``.

        ``read`` is log P(y_{t−1} | a_{t−1}) of the token that each step reads ``(batch, time, S)``.
        """
        attend, before, lengths = self.decoder.attend, cast(Tensor, state.weights), state.lengths.unsqueeze(1)
        scores = attend.scores(hidden, state.keys if isinstance(state.keys, Tensor) else state.memory)
        numbers = torch.arange(before.shape[1], device=before.device)
        possible = (numbers < lengths) & ((numbers > 0) | (lengths == 1))  # before the source only if it is empty
        scores = scores.masked_fill(~possible.unsqueeze(1), torch.finfo(scores.dtype).min)

        # P(a_t = n | a_{t−1} = m) is a factor of n, times one of n − m, divided by their sum over n. Common
        # factors have no effect, so that the largest are 1.
        near = (scores - scores.amax(2, keepdim=True)).exp()
        distance = (numbers - numbers.unsqueeze(1)).clamp(-REACH - 1, REACH + 1) + REACH + 1
        logarithms = F.pad(LOCATION_SCALE * cast(Tensor, attend.location) + hidden.new_tensor(EXPECTED), (1, 1))
        jumps = (logarithms - logarithms.max()).exp()[distance]  # (S, S)
        totals = (near @ jumps.mT).clamp(min=SMALLEST**0.5)
        found, log_p = [], torch.log(before + SMALLEST)
        for known, factor, total in zip(read.unbind(1), near.unbind(1), totals.unbind(1), strict=True):
            log_p = torch.log(factor * ((torch.softmax(log_p + known, dim=1) / total) @ jumps) + SMALLEST)
            found.append(log_p)
        return torch.stack(found, dim=1) if found else read

    def mixture_losses(
        self, inputs: Tensor, targets: Tensor, state: State, lengths: Tensor | None, label_smoothing: float = 0.0
    ) -> Tensor:
        """Return −log P of every target ``(batch, time)``, with any number on padding."""
        scores, positions, _ = self.decode(inputs, state, lengths)
        chosen = _of_tokens(scores, targets)
        chosen = torch.lerp(chosen, scores.mean(3), label_smoothing) if label_smoothing else chosen
        return -torch.logsumexp(positions + chosen, dim=2)


def _of_tokens(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return the scores of some tokens ``(batch, time)`` at each position ``(batch, time, S)``."""
    return scores.gather(3, tokens[:, :, None, None].expand(*scores.shape[:3], 1)).squeeze(3)
