"""A linear-chain conditional random field: the best sequence of tags, not the best tag of each word.

J. Lafferty, A. McCallum and F. Pereira, "Conditional random fields: probabilistic models for segmenting and labeling
sequence data", ICML 2001.

    S(y)   = start[y_1] + Σ_t s_t[y_t] + Σ_{t>1} A[y_{t−1}, y_t] + end[y_T]
    P(y)   = exp(S(y)) / Z,  Z = Σ_y exp(S(y))
    α_1[j] = start[j] + s_1[j],  α_t[j] = s_t[j] + ⊕_i (α_{t−1}[i] + A[i, j])

s_t ``scores`` of a word's tags · A ``transitions`` · with ⊕ = log Σ exp, ⊕_j (α_T[j] + end[j]) is log Z; with ⊕ = max
it is the score of the best sequence. β, the same recursion from the end, gives what is left of Z after each word, and
with it the marginals, which are the gradient of log Z.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..core.lengths import check_lengths, reverse, valid_mask, zero_padding

NEVER = float("-inf")
Join = Callable[[Tensor, int], Tensor]
"""⊕ over one dimension."""


class CRF(nn.Module):
    """Scores of transitions, and what follows from them and the scores of each word's tags.

    Everything takes ``scores`` ``(batch, time, num_tags)`` and ``lengths`` ``(batch,)``, None where no row is padded; a
    row of length 0 has one sequence, the empty one, of score 0.

    Args:
        num_tags: number of tags.
        allowed: which transitions can be, ``(num_tags + 1, num_tags + 1)`` booleans: from tag (or, last, the start) to
            tag (or, last, the end). None where all can. The others have probability 0.

    Raises:
        ValueError: ``allowed`` has another shape or type.
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
        """The logarithm of Z of each row ``(batch,)``, with its gradient."""
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return scores.sum((1, 2))
        total: Tensor = _LogPartition.apply(scores, *self._moves(), lengths)  # type: ignore[no-untyped-call]
        return total

    def path_scores(self, scores: Tensor, tags: Tensor, lengths: Tensor | None = None) -> Tensor:
        """S of given sequences ``(batch, time)`` of tags: ``(batch,)``; −inf where a transition cannot be."""
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return scores.sum((1, 2))
        moves, start, end = self._moves()
        valid = valid_mask(lengths, tags.shape[1])
        tags = tags.masked_fill(~valid, 0)
        last = tags.gather(1, (lengths - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
        steps = moves[tags[:, :-1], tags[:, 1:]].masked_fill(~valid[:, 1:], 0).sum(1)
        own = scores.gather(2, tags.unsqueeze(2)).squeeze(2).masked_fill(~valid, 0).sum(1)
        return own + steps + (start[tags[:, 0]] + end[last]).masked_fill(lengths == 0, 0)

    def loss(self, scores: Tensor, tags: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The sum of `losses`."""
        return self.losses(scores, tags, lengths).sum()

    def losses(self, scores: Tensor, tags: Tensor, lengths: Tensor | None = None) -> Tensor:
        """−log P(tags) of each row ``(batch,)``, in nats, with its gradient.

        Where a tag of ``tags`` ``(batch, time)`` is negative it is not known, and P is that of the known ones: the sum
        over all sequences that have them.
        """
        unknown = tags < 0
        if lengths is not None:
            unknown = unknown & valid_mask(lengths.to(tags.device), tags.shape[1])
        if unknown.any():
            others = torch.arange(self.num_tags, device=tags.device) != tags.unsqueeze(2)
            known = self.log_partition(scores.masked_fill(others & ~unknown.unsqueeze(2), NEVER), lengths)
        else:
            known = self.path_scores(scores, tags, lengths)
        return self.log_partition(scores, lengths) - known

    @torch.no_grad()
    def marginals(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Each tag's probability at each word ``(batch, time, num_tags)``, zero on padding."""
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return torch.zeros_like(scores)
        return _marginals(*_forward_backward(scores, *self._moves(), lengths), scores, lengths)

    @torch.no_grad()
    def decode(self, scores: Tensor, lengths: Tensor | None = None) -> tuple[list[list[int]], Tensor]:
        """The best sequence of each row, without padding, and its score S ``(batch,)`` (A. Viterbi 1967).

        Where no sequence can be, the score is −inf and the sequence means nothing.
        """
        scores, lengths = self._begin(scores, lengths)
        if 0 in scores.shape[:2]:
            return [[] for _ in scores], scores.sum((1, 2))
        moves, start, end = self._moves()
        best = _recursion(scores.unsqueeze(0), moves.unsqueeze(0), start.unsqueeze(0), torch.amax)[0]
        last = _at_ends(best, lengths) + end
        tag, path = last.argmax(1), []
        for t in range(scores.shape[1] - 1, -1, -1):
            if t + 1 < scores.shape[1]:
                before = (best[:, t] + moves.t()[tag]).argmax(1)
                tag = torch.where(lengths > t + 1, before, tag)
            path.append(tag)
        rows = torch.stack(path[::-1], 1).tolist()
        found = [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
        return found, last.amax(1).masked_fill(lengths == 0, 0)

    def _begin(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores in the type of the transitions and zero on padding, and a length for every row."""
        if scores.dim() != 3 or scores.shape[2] != self.num_tags:
            raise ValueError(f"scores must have shape (batch, time, {self.num_tags}); got {tuple(scores.shape)}")
        lengths = check_lengths(lengths, *scores.shape[:2])
        scores = zero_padding(scores.to(self.transitions.dtype), lengths)
        if lengths is None:
            lengths = torch.full(scores.shape[:1], scores.shape[1])
        return scores, lengths.to(scores.device)

    def _moves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Transitions, start and end, −inf where they cannot be."""
        if self.allowed is None:
            return self.transitions, self.start, self.end
        never = ~self.allowed
        return (
            self.transitions.masked_fill(never[:-1, :-1], NEVER),
            self.start.masked_fill(never[-1, :-1], NEVER),
            self.end.masked_fill(never[:-1, -1], NEVER),
        )


def bio_transitions(tag_names: Sequence[str]) -> Tensor:
    """What `CRF` takes as ``allowed`` for BIO tags: ``I-X`` comes after ``B-X`` or ``I-X`` alone.

    A tag without its ``B-X``, such as one that is no chunk's, can come anywhere.
    """
    places = [*tag_names, ""]
    begins = {f"I{name[1:]}": name for name in tag_names if name.startswith("B-")}
    allowed = [[to not in begins or before in (to, begins[to]) for to in places] for before in places]
    return torch.tensor(allowed)


class _LogPartition(torch.autograd.Function):
    """log Z, its gradient from α and β, of which autograd would need every step."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, moves: Tensor, start: Tensor, end: Tensor, lengths: Tensor) -> Tensor:
        if not any(ctx.needs_input_grad):
            alpha = _recursion(scores.unsqueeze(0), moves.unsqueeze(0), start.unsqueeze(0), torch.logsumexp)[0]
            return _total(alpha, end, lengths)
        alpha, beta, total = _forward_backward(scores, moves, start, end, lengths)
        ctx.save_for_backward(alpha, beta, total, scores, moves, lengths)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        alpha, beta, total, scores, moves, lengths = ctx.saved_tensors
        weight = outputs[0]
        marginals = _marginals(alpha, beta, total, scores, lengths) * weight[:, None, None]
        following = valid_mask(lengths - 1, scores.shape[1] - 1)
        rest = _finite(total)[:, None, None]
        pairs = (alpha[:, :-1] - rest)[following].unsqueeze(2) + moves
        pairs = pairs.add_(beta[:, 1:][following].unsqueeze(1)).exp_()
        weights = weight.unsqueeze(1).expand_as(following)[following]
        expected = (weights @ pairs.flatten(1)).view_as(moves)
        return marginals, expected, marginals[:, 0].sum(0), _at_ends(marginals, lengths).sum(0), None


def _recursion(scores: Tensor, moves: Tensor, start: Tensor, join: Join) -> Tensor:
    """α of several chains with transitions of their own.

    Args:
        scores: ``(chains, batch, time, tags)``.
        moves: ``(chains, tags, tags)``, from row to column.
        start: ``(chains, tags)``.
        join: ⊕.

    Returns:
        ``(chains, batch, time, tags)``; of no meaning on padding.
    """
    inputs = scores.permute(2, 0, 3, 1).contiguous()  # (T, C, K, B): what runs innermost is long, and never joined
    moves = moves.transpose(1, 2).unsqueeze(3)  # (C, to, from, 1)
    alpha = inputs[0] + start.unsqueeze(2)
    found = [alpha]
    for step in inputs[1:]:
        alpha = join(alpha.unsqueeze(1) + moves, 2) + step
        found.append(alpha)
    return torch.stack(found).permute(1, 3, 0, 2)


def _forward_backward(
    scores: Tensor, moves: Tensor, start: Tensor, end: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """α, β (a word's own score included) ``(batch, time, tags)`` and log Z; both directions at once."""
    both = torch.stack([scores, reverse(scores, lengths)])
    ways = torch.stack([moves, moves.t()])
    alpha, beta = _recursion(both, ways, torch.stack([start, end]), torch.logsumexp)
    return alpha, reverse(beta, lengths), _total(alpha, end, lengths)


def _total(alpha: Tensor, end: Tensor, lengths: Tensor) -> Tensor:
    return torch.logsumexp(_at_ends(alpha, lengths) + end, 1).masked_fill(lengths == 0, 0)


def _marginals(alpha: Tensor, beta: Tensor, total: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """α and β both hold a word's own score. Where that is −inf, so is one of them without it."""
    own = scores.masked_fill(scores == NEVER, 0)
    logarithm = alpha + beta - own - _finite(total)[:, None, None]
    return logarithm.masked_fill(~valid_mask(lengths, scores.shape[1]).unsqueeze(2), NEVER).exp()


def _finite(total: Tensor) -> Tensor:
    """Of log Z, what is finite also where no sequence can be, so that −inf − log Z is −inf."""
    return total.clamp_min(torch.finfo(total.dtype).min)


def _at_ends(values: Tensor, lengths: Tensor) -> Tensor:
    """Each row's last: ``(batch, time, tags)`` to ``(batch, tags)``; the first for rows of length 0."""
    rows = torch.arange(len(lengths), device=values.device)
    return values[rows, (lengths - 1).clamp_min(0)]
