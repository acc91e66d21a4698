"""Weights in fewer bytes: rounded to bfloat16, int8 or int4, and stored in a format that holds every value exactly.

An int8 matrix has one factor for each column (one output of the product): ``W[k, j] = factor[j] · q[k, j]`` with
integers ``-127 <= q <= 127``. Factors have 16 significant bits, so that every product is exact in float32, and the
integers can be computed again from the rounded values alone. So a model with rounded weights is an ordinary model, and
what packs its matrices sees by itself how few bytes hold them.

In an int4 matrix, 32 successive numbers of a column share a factor: ``W[k, j] = factor[k // 32, j] · q[k, j]`` with
integers ``-8 <= q <= 7``. If the depth is not a multiple of 32, the last group has the numbers that remain. Factors are
numbers of bfloat16, and of several the one with the smallest squared error is used.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import UnknownNameError, shown

WeightFormat = Literal["float32", "bfloat16", "int8", "int4"]
FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
LARGEST = 127
FACTOR_BITS = 16
SMALLEST = 1e-30
"""The largest absolute value below which a column counts as zeros."""
GROUP = 32
"""Numbers of a column that share a factor in int4."""
STEPS = (7.0, 7.5, 8.0, 8.5, 9.0)
"""The factors of int4 that are tried: how many of them the number of a group with the largest absolute value is."""
TRIAL = 32
"""Columns of a matrix that are looked at first: those of a matrix that was not rounded fail."""


class Packable(NamedTuple):
    """A matrix in the format in which it is packed: `real`, half, byte or nibble, as in `cpp/step_machine.h`."""

    format: int
    matrix: Tensor  # (depth, width); integers for bytes and nibbles
    factors: Tensor | None = None  # (width,) for bytes, (groups, width) for nibbles


def check_format(weights: str) -> None:
    """Raise InputError if a format of weights is unknown."""
    if weights not in FORMATS:
        raise UnknownNameError(f"weights: {shown(weights)} is unknown; choose from {', '.join(FORMATS)}")


def rounded(matrix: Tensor, weight_format: WeightFormat) -> Tensor:
    """Return a matrix ``(depth, width)`` with its values rounded; one that is not finite is returned as it is."""
    if weight_format == "float32" or not matrix.isfinite().all():
        return matrix
    if weight_format == "bfloat16":
        return matrix.bfloat16().to(matrix.dtype)
    if weight_format == "int4":
        result = torch.cat([_in_four_bits(part) for part in torch.split(matrix, TRIAL, 1)], 1)
        return result if result.isfinite().all() else matrix
    largest = matrix.abs().amax(0)
    mantissa, exponent = torch.frexp(largest / LARGEST)
    factors = torch.ldexp((mantissa * 2**FACTOR_BITS).ceil() / 2**FACTOR_BITS, exponent)
    factors = torch.where(largest > SMALLEST, factors, torch.ones_like(factors))
    result = (matrix / factors).round() * factors
    return result if result.isfinite().all() else matrix  # the largest numbers would overflow


def packable(matrix: Tensor, *, reduced: bool) -> Packable:
    """Return the smallest format that holds a matrix exactly; ``reduced`` allows rounding to bfloat16."""
    if 0 not in matrix.shape:
        for as_integers in (_as_bytes, _as_nibbles):
            found = as_integers(matrix[:, :TRIAL])
            if found is not None and matrix.shape[1] > TRIAL:
                found = as_integers(matrix)
            if found is not None:
                return found
        if reduced or (_is_half(matrix[:, :TRIAL]) and _is_half(matrix)):
            return Packable(1, matrix)
    return Packable(0, matrix)


def _as_bytes(matrix: Tensor) -> Packable | None:
    largest = matrix.abs().amax(0)
    factors = torch.where(largest > SMALLEST, largest / LARGEST, torch.ones_like(largest))
    integers = (matrix / factors).round()
    return Packable(2, integers.to(torch.int8), factors) if torch.equal(integers * factors, matrix) else None


def _as_nibbles(matrix: Tensor) -> Packable | None:
    if matrix.dtype != torch.float32:  # products round the rows, for numbers of float32
        return None
    groups = _groups(matrix)
    largest = _largest(groups)
    integers, factors = torch.zeros_like(groups), torch.ones_like(largest)
    missing = largest != 0
    for steps in range(8, 0, -1):  # the largest number is so many steps, most often 8 or 7
        trial = torch.where(missing, largest / -steps, factors).bfloat16().float()
        counts = (groups / trial).round_().clamp_(-8, 7)
        fits = missing & (counts * trial == groups).all(1, keepdim=True)
        integers, factors = torch.where(fits, counts, integers), torch.where(fits, trial, factors)
        missing &= ~fits
        if not missing.any():
            return Packable(3, integers.flatten(0, 1)[: len(matrix)].to(torch.int8), factors.squeeze(1).bfloat16())
    return None


def _in_four_bits(matrix: Tensor) -> Tensor:
    """Return a matrix ``(depth, width)`` rounded to int4."""
    groups = _groups(matrix)
    largest = _largest(groups)
    largest = torch.where(largest.abs() > SMALLEST, largest, torch.ones_like(largest))
    shares = groups / largest
    best, factors = torch.zeros_like(largest), torch.ones_like(largest)
    for steps in STEPS:  # the best factor of some integers is that of least squares
        integers = (shares * -steps).round_().clamp_(-8, 7)
        products, squares = (shares * integers).sum(1, keepdim=True), integers.square().sum(1, keepdim=True)
        gains = products.square() / squares
        factors = torch.where(gains > best, products / squares, factors)
        best = torch.maximum(gains, best)
    factors = (factors * largest).bfloat16().to(matrix.dtype)
    return ((groups / factors).round_().clamp_(-8, 7) * factors).flatten(0, 1)[: len(matrix)]


def _groups(matrix: Tensor) -> Tensor:
    """Return a matrix ``(depth, width)`` as ``(groups, GROUP, width)``, with zeros behind the last numbers."""
    return F.pad(matrix, (0, 0, 0, -len(matrix) % GROUP)).view(-1, GROUP, matrix.shape[1])


def _largest(groups: Tensor) -> Tensor:
    """Return the number of each group that has the largest absolute value, ``(groups, 1, width)``."""
    return groups.gather(1, groups.abs().argmax(1, keepdim=True))


def _is_half(matrix: Tensor) -> bool:
    return torch.equal(matrix.bfloat16().to(matrix.dtype), matrix)
