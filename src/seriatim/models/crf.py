"""A linear-chain conditional random field (CRF): a distribution over sequences of tags.

J. Lafferty, A. McCallum and F. Pereira, "Conditional random fields: probabilistic models for segmenting and labeling
sequence data", ICML 2001.

    S(y)   = start[y_1] + Σ_t s_t[y_t] + Σ_{t>1} A[y_{t−1}, y_t] + end[y_T]
    P(y)   = exp(S(y)) / Z,  Z = Σ_y exp(S(y))
    α_1[j] = start[j] + s_1[j],  α_t[j] = s_t[j] + ⊕_i (α_{t−1}[i] + A[i, j])

s_t ``scores`` of a word's tags · A ``transitions`` · with ⊕ = log Σ exp, ⊕_j (α_T[j] + end[j]) is log Z; with ⊕ = max
it is the score of the best sequence. β is the same recursion from the end. α and β together give the marginals, which
are the gradient of log Z.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..compiler.cpp.toolchain import typed_library
from ..core.exporting import time_scan
from ..core.lengths import check_lengths, reverse, valid_mask, zero_padding
from ..data.tag_sets import TagSet

IMPOSSIBLE = float("-inf")
Context: TypeAlias = Any
"""The context of a `torch.autograd.Function`."""
Join = Callable[[Tensor, int], Tensor]
"""⊕ over one dimension."""


def compiled_tags() -> ctypes.CDLL | None:
    """Return compiled functions that find tags, or None if nothing can be compiled."""
    return typed_library('#include "tags.h"\n', best_tags="ppppppppqqq", score_words="pppppppqqqqqqqppp")


class CRF(nn.Module):
    """Scores of transitions between tags, with the loss, the marginals and the best sequence.

    All methods take ``scores`` ``(batch, time, num_tags)`` and ``lengths`` ``(batch,)``, None if no row is padded. The
    only sequence of a row of length 0 is the empty one, with score 0. ``allowed`` says which transitions are possible,
    None if all are, as booleans ``(num_tags + 1, num_tags + 1)``: from a tag (the last row is the start) to a tag (the
    last column is the end). The others have probability 0. Another shape or type raises ValueError.
    """

    allowed: Tensor | None

    def __init__(self, num_tags: int, allowed: Tensor | None = None) -> None:
        super().__init__()
        if allowed is not None and (allowed.shape != (num_tags + 1,) * 2 or allowed.dtype != torch.bool):
            raise ValueError(
                f"allowed must hold booleans ({num_tags + 1}, {num_tags + 1}); got {allowed.dtype} of shape "
                f"{tuple(allowed.shape)}"
            )
        self.num_tags = num_tags
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.register_buffer("allowed", allowed, persistent=False)

    def log_partition(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return log Z of each row ``(batch,)``, with its gradient."""
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return scores.sum((1, 2))
        total: Tensor = _LogPartition.apply(scores, *self._moves(), lengths)  # type: ignore[no-untyped-call]
        return total

    def path_scores(self, scores: Tensor, tags: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return S of sequences of tags ``(batch, time)``: ``(batch,)``; −inf if a transition is impossible."""
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return scores.sum((1, 2))
        moves, start, end = self._moves()
        valid = valid_mask(lengths, tags.shape[1])

        # Tags on padding may be any number, such as that of an unknown tag: 0 is an index that always exists, and what
        # it leads to is masked below.
        tags = tags.masked_fill(~valid, 0)

        # A row of length 0 has no last tag; the clamped index reads some tag, and the sum of that row is masked, too.
        last = tags.gather(1, (lengths - 1).clamp_min(0).unsqueeze(1)).squeeze(1)  # (B,)
        steps = moves[tags[:, :-1], tags[:, 1:]].masked_fill(~valid[:, 1:], 0).sum(1)  # (B, T − 1) to (B,)
        emissions = scores.gather(2, tags.unsqueeze(2)).squeeze(2).masked_fill(~valid, 0).sum(1)  # (B, T) to (B,)
        return emissions + steps + (start[tags[:, 0]] + end[last]).masked_fill(lengths == 0, 0)

    def losses(self, scores: Tensor, tags: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return −log P(tags) of each row ``(batch,)``, in nats, with its gradient.

        A negative tag in ``tags`` ``(batch, time)`` is unknown; P then sums over all sequences with the known tags.
        """
        unknown = tags < 0
        if lengths is not None:
            unknown = unknown & valid_mask(lengths.to(tags.device), tags.shape[1])
        if unknown.any():
            others = torch.arange(self.num_tags, device=tags.device) != tags.unsqueeze(2)
            known = self.log_partition(scores.masked_fill(others & ~unknown.unsqueeze(2), IMPOSSIBLE), lengths)
        else:
            known = self.path_scores(scores, tags, lengths)
        return self.log_partition(scores, lengths) - known

    @torch.no_grad()
    def marginals(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the probability of each tag at each word ``(batch, time, num_tags)``, zero on padding.

        The probabilities of a word are divided by their sum, which differs from 1 where rounding of large scores does.
        They are zero if no sequence is possible.
        """
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return torch.zeros_like(scores)
        alpha, beta, total = _forward_backward(scores, *self._moves(), lengths)
        probabilities = torch.softmax(_through(alpha, beta, scores), 2)
        is_zero = ~valid_mask(lengths, scores.shape[1]) | (total == IMPOSSIBLE).unsqueeze(1)
        return probabilities.masked_fill(is_zero.unsqueeze(2), 0)

    @torch.no_grad()
    def decode(self, scores: Tensor, lengths: Tensor | None = None) -> tuple[list[list[int]], Tensor]:
        """Return the best sequence of each row, without padding, and its score S ``(batch,)`` (A. Viterbi 1967).

        If no sequence is possible, the score is −inf and the sequence is meaningless.
        """
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return [[] for _ in scores], scores.sum((1, 2))
        if scores.is_cpu and scores.dtype == torch.float32 and (functions := compiled_tags()) is not None:
            tags, totals = torch.empty(scores.shape[:2], dtype=torch.long), scores.new_empty(len(scores))
            allowed = None if self.allowed is None else self.allowed.data_ptr()
            given = (scores, lengths, self.transitions, self.start, self.end, tags, totals)
            tensors = [x.contiguous() for x in given]  # which are kept until the call is over
            functions.best_tags(*(x.data_ptr() for x in tensors), allowed, *scores.shape)
            return [row[:length] for row, length in zip(tags.tolist(), lengths.tolist(), strict=True)], totals
        moves, start, end = self._moves()
        best = _recursion(scores.unsqueeze(0), moves.unsqueeze(0), start.unsqueeze(0), torch.amax)[0]  # (B, T, K)
        last = _at_ends(best, lengths) + end  # (B, K)

        # Back from the end: the tag before is the one from which the best score of this tag came, which is found again
        # from the scores instead of being stored. The rows of the transposed transitions lead to a tag, (B, K). A row
        # keeps its last tag until its own last word is reached.
        tag, path = last.argmax(1), []
        for t in range(scores.shape[1] - 1, -1, -1):
            if t + 1 < scores.shape[1]:
                before = (best[:, t] + moves.t()[tag]).argmax(1)
                tag = torch.where(lengths > t + 1, before, tag)
            path.append(tag)
        rows = torch.stack(path[::-1], 1).tolist()
        sequences = [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
        return sequences, last.amax(1).masked_fill(lengths == 0, 0)

    def best_tags(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the best tags ``(batch, time)``, as `decode` does, in operators that can be exported.

        Tags on padding are those of the last word. A row needs at least one position, and may have the length 0.
        """
        # The loop of `decode` would be exported with the number of steps of one example; a scan takes any number.
        # Padded steps are computed, too: a row keeps its scores there, and each tag leads back to itself.
        moves, start, end = self._moves()
        is_word = valid_mask(lengths, scores.shape[1]).t().contiguous()  # (T, B)
        words = scores.transpose(0, 1)  # (T, B, K)
        later = torch.cat([words[1:], words[:1]])  # one step more, in which no row has a word
        is_later = torch.cat([is_word[1:], torch.zeros_like(is_word[:1])])
        stay = torch.arange(self.num_tags, device=scores.device)

        def forwards(best: Tensor, score: Tensor, valid: Tensor, moves: Tensor, stay: Tensor) -> list[Tensor]:
            total, before = (best.unsqueeze(2) + moves).max(1)
            valid = valid.unsqueeze(1)
            return [torch.where(valid, total + score, best), torch.where(valid, before, stay)]

        def backwards(tag: Tensor, before: Tensor) -> list[Tensor]:
            tag = before.gather(1, tag.unsqueeze(1)).squeeze(1)
            return [tag, tag.clone()]

        # the best last tag leads back to the first one, through the tags that led to each
        best, before = time_scan(forwards, [start + words[0]], [later, is_later], (moves, stay))
        _, tags = time_scan(backwards, [(best + end).argmax(1)], [before.flip(0)], ())
        return tags.flip(0).t()

    def _begin(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return scores in the type of the transitions, zero on padding, and a length for every row."""
        if scores.dim() != 3 or scores.shape[2] != self.num_tags:
            raise ValueError(f"scores must have shape (batch, time, {self.num_tags}); got {tuple(scores.shape)}")
        lengths = check_lengths(lengths, *scores.shape[:2])
        scores = zero_padding(scores.to(self.transitions.dtype), lengths)
        if lengths is None:
            lengths = torch.full(scores.shape[:1], scores.shape[1])
        return scores, lengths.to(scores.device)

    def _moves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return transitions, start and end, −inf where they are impossible."""
        if self.allowed is None:
            return self.transitions, self.start, self.end
        forbidden = ~self.allowed
        return (
            self.transitions.masked_fill(forbidden[:-1, :-1], IMPOSSIBLE),
            self.start.masked_fill(forbidden[-1, :-1], IMPOSSIBLE),
            self.end.masked_fill(forbidden[:-1, -1], IMPOSSIBLE),
        )


def bio_transitions(tag_names: Sequence[str]) -> Tensor:
    """Return the argument ``allowed`` of `CRF` for BIO tags: ``I-X`` follows only ``B-X`` or ``I-X``.

    A tag for which there is no ``B-X``, such as ``O``, can follow every tag. ``I`` follows only ``B`` or ``I`` if these
    mark chunks without types.
    """
    tags = [*tag_names, ""]
    beginnings = ("B", "B-") if TagSet.known(tag_names).style == "bare" else ("B-",)
    begins = {f"I{name[1:]}": name for name in tag_names if name[:2] in beginnings}
    allowed = [[tag not in begins or before in (tag, begins[tag]) for tag in tags] for before in tags]
    return torch.tensor(allowed)


class _LogPartition(torch.autograd.Function):
    """log Z; its gradient is computed from α and β, while autograd would store every step."""

    @staticmethod
    def forward(ctx: Context, scores: Tensor, moves: Tensor, start: Tensor, end: Tensor, lengths: Tensor) -> Tensor:
        if not any(ctx.needs_input_grad):
            alpha = _recursion(scores.unsqueeze(0), moves.unsqueeze(0), start.unsqueeze(0), torch.logsumexp)[0]
            return _total(alpha, end, lengths)
        alpha, beta, total = _forward_backward(scores, moves, start, end, lengths)
        ctx.save_for_backward(alpha, beta, total, scores, moves, lengths)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        alpha, beta, total, scores, moves, lengths = ctx.saved_tensors
        weight = outputs[0]
        marginals = _marginals(alpha, beta, total, scores, lengths) * weight[:, None, None]  # (B, T, K)

        # The gradient of the transitions is the expected number of each: P of two neighbouring tags, summed over all
        # pairs of words. Padding is left out before the products (N, K, K), which are the largest tensors here.
        following = valid_mask(lengths - 1, scores.shape[1] - 1)
        rest = _finite(total)[:, None, None]
        pairs = (alpha[:, :-1] - rest)[following].unsqueeze(2) + moves
        pairs = pairs.add_(beta[:, 1:][following].unsqueeze(1)).exp_()
        weights = weight.unsqueeze(1).expand_as(following)[following]
        expected = (weights @ pairs.flatten(1)).view_as(moves)
        return marginals, expected, marginals[:, 0].sum(0), _at_ends(marginals, lengths).sum(0), None


def _recursion(scores: Tensor, moves: Tensor, start: Tensor, join: Join) -> Tensor:
    """Return α ``(chains, batch, time, tags)`` of several chains, meaningless on padding; ``join`` is ⊕.

    The scores are ``(chains, batch, time, tags)``, the transitions ``(chains, tags, tags)`` from row to column, and the
    starts ``(chains, tags)``.
    """
    inputs = scores.permute(2, 0, 3, 1).contiguous()  # (T, C, K, B): the long dimension is innermost
    moves = moves.transpose(1, 2).unsqueeze(3)  # (C, to, from, 1)
    alpha = inputs[0] + start.unsqueeze(2)
    alphas = [alpha]
    for step in inputs[1:]:
        alpha = join(alpha.unsqueeze(1) + moves, 2) + step
        alphas.append(alpha)
    return torch.stack(alphas).permute(1, 3, 0, 2)


def _forward_backward(
    scores: Tensor, moves: Tensor, start: Tensor, end: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return α and β ``(batch, time, tags)``, both with the word's own score, and log Z."""
    both_directions = torch.stack([scores, reverse(scores, lengths)])
    transitions = torch.stack([moves, moves.t()])
    alpha, beta = _recursion(both_directions, transitions, torch.stack([start, end]), torch.logsumexp)
    return alpha, reverse(beta, lengths), _total(alpha, end, lengths)


def _total(alpha: Tensor, end: Tensor, lengths: Tensor) -> Tensor:
    return torch.logsumexp(_at_ends(alpha, lengths) + end, 1).masked_fill(lengths == 0, 0)


def _marginals(alpha: Tensor, beta: Tensor, total: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the marginals, of which the gradient of log Z consists."""
    logarithm = _through(alpha, beta, scores) - _finite(total)[:, None, None]
    return logarithm.masked_fill(~valid_mask(lengths, scores.shape[1]).unsqueeze(2), IMPOSSIBLE).exp()


def _through(alpha: Tensor, beta: Tensor, scores: Tensor) -> Tensor:
    """Return log Σ exp(S) of the sequences with each tag at each word ``(batch, time, tags)``.

    α and β both include a word's own score, so it is subtracted once unless it is −inf.
    """
    return alpha + beta - scores.masked_fill(scores == IMPOSSIBLE, 0)


def _finite(total: Tensor) -> Tensor:
    """Return log Z, or a finite number if no sequence is possible, so that −inf − log Z is −inf."""
    return total.clamp_min(torch.finfo(total.dtype).min)


def _at_ends(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the last value of each row ``(batch, tags)``, and the first value of rows of length 0."""
    rows = torch.arange(len(lengths), device=values.device)
    return values[rows, (lengths - 1).clamp_min(0)]
