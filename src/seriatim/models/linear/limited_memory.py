"""The direction of L-BFGS, from the last steps and the changes of the gradient along them.

D. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 45
(1989): the two-loop recursion of J. Nocedal (1980).
"""

from collections import deque

import torch
from torch import Tensor


class LimitedMemory:
    """Approximates the inverse Hessian H from the last steps s and changes of the gradient y, tensors of one shape.

    Args:
        size: number of steps that are remembered.
        diagonal: the inverse Hessian before the first step, but for a factor; it broadcasts with the steps.
    """

    def __init__(self, size: int, diagonal: Tensor | None = None) -> None:
        self.pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=size)
        self.diagonal = diagonal
        self.factor = 1.0

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a step, unless the curvature along it is not positive."""
        product = inner(step, change)
        if product > 1e-10 * inner(step, step):
            self.pairs.append((step, change, 1 / product))
            scaled = change if self.diagonal is None else change * self.diagonal
            self.factor = product / inner(scaled, change)

    def direction(self, gradient: Tensor) -> Tensor:
        """Return −H g."""
        result, shares = -gradient, []
        for step, change, inverse in reversed(self.pairs):
            shares.append(inverse * inner(step, result))
            result.sub_(change, alpha=shares[-1])
        result.mul_(self.factor if self.diagonal is None else self.factor * self.diagonal)
        for (step, change, inverse), share in zip(self.pairs, reversed(shares), strict=True):
            result.add_(step, alpha=share - inverse * inner(change, result))
        return result


def inner(first: Tensor, second: Tensor) -> float:
    """Return the inner product of two tensors of one shape."""
    return float(torch.dot(first.flatten(), second.flatten()))
