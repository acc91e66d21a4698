"""One vector for a sequence: its end, its mean, its maximum, or what attention takes of it."""

import torch
from torch import Tensor, nn

from ..core.errors import InputError, nearest
from ..core.lengths import valid_mask, zero_padding

POOLINGS = ("final", "mean", "max", "attention")


class Pooling(nn.Module):
    """Outputs ``(batch, time, size)`` to ``(batch, size)``; zeros for a row without any.

    ``final`` takes what each direction knows when it has read everything: the output at the last valid position, and
    for the second half of a bidirectional layer that at the first. ``attention`` is Σ_t α_t h_t with
    α = softmax_t vᵀ tanh(W h_t) (Z. Yang et al., "Hierarchical attention networks for document classification", 2016).

    Args:
        kind: one of `POOLINGS`.
        size: of the outputs.
        backward_from: the first feature of the backward direction; ``size`` where there is none.

    Raises:
        ValueError: no such kind.
    """

    def __init__(self, kind: str, size: int, *, backward_from: int) -> None:
        super().__init__()
        if kind not in POOLINGS:
            raise InputError(f"unknown pooling {kind!r}; {nearest(kind, list(POOLINGS))}")
        self.kind, self.backward_from = kind, backward_from
        if kind == "attention":
            self.project = nn.Linear(size, size)
            self.score = nn.Linear(size, 1, bias=False)

    def forward(self, outputs: Tensor, lengths: Tensor | None) -> Tensor:
        """``lengths`` ``(batch,)``, or None where all rows are full."""
        batch, time, size = outputs.shape
        if time == 0:
            return outputs.new_zeros(batch, size)
        if lengths is None:
            lengths = torch.full((batch,), time)
        lengths = lengths.to(outputs.device)
        outputs = zero_padding(outputs, lengths)
        if self.kind == "final":
            rows = torch.arange(batch, device=outputs.device)
            end = outputs[rows, (lengths - 1).clamp_min(0)]
            return torch.cat([end[:, : self.backward_from], outputs[:, 0, self.backward_from :]], dim=1)
        if self.kind == "mean":
            return outputs.sum(1) / lengths.clamp_min(1).unsqueeze(1)
        empty = (lengths == 0).unsqueeze(1)
        padding = ~valid_mask(lengths.clamp_min(1), time).unsqueeze(2)
        if self.kind == "max":
            return outputs.masked_fill(padding, -torch.inf).amax(1).masked_fill(empty, 0)
        scores = self.score(torch.tanh(self.project(outputs))).masked_fill(padding, -torch.inf)
        return (torch.softmax(scores, dim=1) * outputs).sum(1)
