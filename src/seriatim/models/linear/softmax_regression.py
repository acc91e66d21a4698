"""Softmax regression on sparse features, to convergence.

    P(label | x) = softmax(W x + b),   minimize  (1/n) Σ_i w_i (−log P(y_i | x_i)) + (‖W‖² + ‖b‖²) / (2 n C)

n texts · w_i weights, 1 by default · C the strength with which the data pull: small values regularize more.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .minimization import minimize
from .sparse_rows import SparseRows

TOLERANCE = 2e-3
VARIANCE = 0.05
"""P (1 − P) of a label on average, which scales the diagonal of the Hessian; it only changes the speed."""


class FittedSoftmax(NamedTuple):
    """Weights ``(features, labels)``, biases ``(labels,)``, and why the search ended."""

    weights: Tensor
    bias: Tensor
    ended: str


def fit_softmax(
    features: SparseRows,
    labels: Tensor,
    num_labels: int,
    *,
    strength: float,
    weights: Tensor | None = None,
    seconds: float | None = None,
) -> FittedSoftmax:
    """Fit the weights of all labels.

    Args:
        features: one row for each text.
        labels: index of each text's label ``(texts,)``.
        num_labels: number of labels.
        strength: C of the formula.
        weights: w of the formula ``(texts,)``; None for 1 each.
        seconds: limit of the time; None for none.
    """
    found = minimize(_Softmax(features, labels, num_labels, weights, strength), tolerance=TOLERANCE, seconds=seconds)
    return FittedSoftmax(found.point[:-1], found.point[-1], found.ended)


class _Softmax:
    """The loss of logits; a point is ``(features + 1, labels)``, with the biases in the last row."""

    def __init__(
        self, features: SparseRows, labels: Tensor, num_labels: int, weights: Tensor | None, strength: float
    ) -> None:
        self.features, self.transposed = features, features.transposed()
        self.labels, self.num_labels = labels, num_labels
        self.weights = None if weights is None else weights.float()
        self.decay = 1 / (strength * len(labels))

    def start(self) -> Tensor:
        return torch.zeros(self.features.width + 1, self.num_labels)

    def diagonal(self) -> Tensor:
        energy = torch.zeros(self.features.width + 1)
        energy.index_add_(0, self.features.columns.long(), self.features.values.square())
        energy[-1] = len(self.labels)
        return (1 / (VARIANCE * energy / len(self.labels) + self.decay)).unsqueeze(1)

    def outputs(self, point: Tensor) -> Tensor:
        """Return the logits ``(texts, labels)``."""
        return self.features.times(point[:-1]) + point[-1]

    def loss(self, outputs: Tensor) -> tuple[float, Tensor]:
        log_p = F.log_softmax(outputs, dim=1)
        rows = torch.arange(len(self.labels))
        losses = -log_p[rows, self.labels]
        errors = log_p.exp_()
        errors[rows, self.labels] -= 1
        if self.weights is not None:
            losses, errors = losses * self.weights, errors.mul_(self.weights.unsqueeze(1))
        return float(losses.double().mean()), errors.div_(len(losses))

    def gradient(self, errors: Tensor) -> Tensor:
        return torch.cat([self.transposed.times(errors), errors.sum(0, keepdim=True)])
