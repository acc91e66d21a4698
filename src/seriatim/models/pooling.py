"""Pooling: one vector for the outputs of a layer over a whole sequence."""

import torch
from torch import Tensor, nn

from ..core.errors import InputError, nearest
from ..core.lengths import valid_mask, zero_padding

POOLINGS = ("final", "mean", "max", "attention")


class Pooling(nn.Module):
    """Reduces outputs ``(batch, time, size)`` to ``(batch, size)``; rows of length 0 become zeros.

    The kinds are `POOLINGS`. ``final`` takes the outputs after the whole sequence, see `last_outputs`. ``mean`` and
    ``max`` are taken over the valid positions. ``attention`` is Σ_t α_t h_t with α = softmax_t vᵀ tanh(W h_t) (Z. Yang
    et al., "Hierarchical attention networks for document classification", 2016). An unknown kind raises InputError.
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
        """Pool over the valid positions; ``lengths`` is ``(batch,)``, or None if all rows are full."""
        batch, time, size = outputs.shape
        if time == 0:
            return outputs.new_zeros(batch, size)
        outputs = zero_padding(outputs, lengths)
        lengths = (torch.full((batch,), time) if lengths is None else lengths).to(outputs.device)
        if self.kind == "final":
            return last_outputs(outputs, lengths, self.backward_from)
        if self.kind == "mean":
            return outputs.sum(1) / lengths.clamp_min(1).unsqueeze(1)
        padding = ~valid_mask(lengths.clamp_min(1), time).unsqueeze(2)
        if self.kind == "max":
            is_empty = (lengths == 0).unsqueeze(1)
            return outputs.masked_fill(padding, -torch.inf).amax(1).masked_fill(is_empty, 0)
        scores = self.score(torch.tanh(self.project(outputs))).masked_fill(padding, -torch.inf)
        return (torch.softmax(scores, dim=1) * outputs).sum(1)


def last_outputs(outputs: Tensor, lengths: Tensor, backward_from: int) -> Tensor:
    """Return the output of each direction after it has read the whole row ``(batch, size)``.

    This is the output at the last valid position, or the first position of an empty row. The features from
    ``backward_from`` on belong to the backward direction and are taken from the first position.
    """
    rows = torch.arange(outputs.shape[0], device=outputs.device)
    last = outputs[rows, (lengths - 1).clamp_min(0)]
    return torch.cat([last[:, :backward_from], outputs[:, 0, backward_from:]], dim=1)
