"""Minimization of a convex loss of outputs that are linear in the parameters, by L-BFGS.

    minimize  loss(outputs(w)) + decay ‖w‖² / 2

D. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 45
(1989), with the two-loop recursion of J. Nocedal (1980). Since the outputs change linearly along a direction, the line
search needs no product with the features: it looks for a point where the slope is at most half of what it was (the
strong Wolfe conditions; J. Nocedal and S. Wright, "Numerical optimization", 2006, chapter 3). The directions are scaled
by the inverse of an approximate diagonal of the Hessian, so that the weights of rare and of common features converge at
the same speed.
"""

import time
from collections import deque
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class LimitedMemory:
    """Approximates the inverse Hessian H from the last steps s and changes of the gradient y, tensors of one shape.

    Args:
        size: number of steps that are remembered.
        diagonal: the inverse Hessian before the first step, but for a factor; it broadcasts with the steps.
    """

    def __init__(self, size: int, diagonal: Tensor) -> None:
        self.pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=size)
        self.diagonal = diagonal
        self.factor = 1.0

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a step, unless the curvature along it is not positive."""
        product = inner(step, change)
        if product > 1e-10 * inner(step, step):
            self.pairs.append((step, change, 1 / product))
            self.factor = product / inner(change * self.diagonal, change)

    def direction(self, gradient: Tensor) -> Tensor:
        """Return −H g."""
        result, alphas = -gradient, []
        for step, change, inverse in reversed(self.pairs):
            alphas.append(inverse * inner(step, result))
            result.sub_(change, alpha=alphas[-1])
        result.mul_(self.factor * self.diagonal)
        for (step, change, inverse), alpha in zip(self.pairs, reversed(alphas), strict=True):
            result.add_(step, alpha=alpha - inverse * inner(change, result))
        return result


def inner(first: Tensor, second: Tensor) -> float:
    """Return the inner product of two tensors of one shape."""
    return float(torch.dot(first.flatten(), second.flatten()))


TIME_SPENT = "the time was spent"
"""Beginning of the reason why a minimization ended at its limit of time."""
MEMORY = 5
MAX_TRIALS = 12
"""Largest number of points that are tried along a direction."""
DECREASE, SLOPE, REACH = 1e-4, 0.5, 10.0
"""Fractions of the decrease that the slope promises and of the slope that may be left; how much a trial may grow."""


class LinearObjective(Protocol):
    """A loss of linear outputs. Points have one shape, outputs another."""

    decay: float

    def start(self) -> Tensor:
        """Return the point to begin at, which is zero."""

    def diagonal(self) -> Tensor:
        """Return an approximate inverse of the Hessian's diagonal, which broadcasts with points."""

    def outputs(self, point: Tensor) -> Tensor:
        """Return the outputs at a point; they are linear."""

    def loss(self, outputs: Tensor) -> tuple[float, Tensor]:
        """Return the loss and its gradient with respect to the outputs, which may be overwritten."""

    def gradient(self, errors: Tensor) -> Tensor:
        """Return the gradient of the loss with respect to the point, from that with respect to the outputs."""


class Minimum(NamedTuple):
    """The point where a search ended, the number of its directions, and why it ended, in words."""

    point: Tensor
    steps: int
    ended: str


class _Trial(NamedTuple):
    """A point along a direction: the size of the step, the objective, and its slope."""

    size: float
    value: float
    slope: float


def minimize(
    objective: LinearObjective, *, tolerance: float, max_steps: int = 100, seconds: float | None = None
) -> Minimum:
    """Search for the minimum.

    The search ends when the relative decrease in two successive steps is below ``tolerance`` each, after ``max_steps``,
    or after some ``seconds``.
    """
    started, memory, small = time.perf_counter(), LimitedMemory(MEMORY, objective.diagonal()), 0
    point = objective.start()
    outputs = objective.outputs(point)
    value, errors = objective.loss(outputs.clone())
    gradient = objective.gradient(errors)
    del errors  # outputs may be larger than everything else, so that few of their size are kept at a time

    # Nothing is known of the scale before the first step: the largest output moves by one.
    size = 1 / max(1e-30, float(objective.outputs(gradient * objective.diagonal()).abs().max()))
    for step in range(1, max_steps + 1):
        direction = memory.direction(gradient)
        moved = objective.outputs(direction)
        trial, errors = _search(objective, outputs, moved, value, point, direction, inner(gradient, direction), size)

        # The errors at the new point are those of the line search, so that a step needs two products with the features.
        move, before, old, size = direction.mul_(trial.size), value, gradient, 1.0
        point.add_(move)
        outputs.add_(moved, alpha=trial.size)
        value = trial.value
        gradient = objective.gradient(errors).add_(point, alpha=objective.decay)
        del moved, errors
        memory.add(move, gradient - old)
        small = small + 1 if before - value <= tolerance * abs(value) else 0
        if small == 2:
            return Minimum(point, step, f"the loss no longer fell after {step} steps of L-BFGS")
        if seconds is not None and time.perf_counter() - started > seconds:
            return Minimum(point, step, f"{TIME_SPENT} after {step} steps of L-BFGS")
    return Minimum(point, max_steps, f"{max_steps} steps of L-BFGS were taken")


def _search(
    objective: LinearObjective,
    outputs: Tensor,
    moved: Tensor,
    value: float,
    point: Tensor,
    direction: Tensor,
    slope: float,
    size: float,
) -> tuple[_Trial, Tensor]:
    """Return a point along a direction where the objective is lower and flatter; the best one tried if none is.

    The second value is the gradient of the loss there, with respect to the outputs.
    """
    linear, square = objective.decay * inner(point, direction), objective.decay * inner(direction, direction)
    penalty = objective.decay / 2 * inner(point, point)
    low, high = _Trial(0.0, value, slope), None
    for _ in range(MAX_TRIALS):
        loss, errors = objective.loss(outputs.add(moved, alpha=size))
        total = loss + penalty + size * linear + size**2 * square / 2
        trial = _Trial(size, total, inner(errors, moved) + linear + size * square)
        if total > value + DECREASE * size * slope or not trial.slope <= SLOPE * abs(slope):
            high = trial
        elif trial.slope < SLOPE * slope:
            low = trial
        else:
            return trial, errors
        del errors
        size = _next_size(low, high)
    best = min((one for one in (low, high) if one is not None and one.size), key=lambda one: one.value)
    return best, objective.loss(outputs.add(moved, alpha=best.size))[1]


def _next_size(low: _Trial, high: _Trial | None) -> float:
    """Return where the slope would be zero if it were linear, well inside the bounds."""
    if high is None:
        return REACH * low.size
    width = high.size - low.size
    bend = high.slope - low.slope
    fraction = -low.slope / bend if bend > 0 else 0.5
    return low.size + width * (min(max(fraction, 0.1), 0.9) if fraction == fraction else 0.5)
