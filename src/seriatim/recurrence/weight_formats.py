"""Weights in fewer bytes: rounded to bfloat16 or int8, and stored in a format that holds every value exactly.

An int8 matrix has one factor for each column (one output of the product): ``W[k, j] = factor[j] · q[k, j]`` with
integers ``-127 <= q <= 127``. Factors have 16 significant bits, so that every product is exact in float32, and the
integers can be computed again from the rounded values alone. So a model with rounded weights is an ordinary model, and
what packs its matrices sees by itself how few bytes hold them.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..core.errors import UnknownNameError, shown

WeightFormat = Literal["float32", "bfloat16", "int8"]
FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
LARGEST = 127
FACTOR_BITS = 16
SMALLEST = 1e-30
"""The largest absolute value below which a column counts as zeros."""
TRIAL = 32
"""Columns of a matrix that are looked at first: those of a matrix that was not rounded fail."""


class Packable(NamedTuple):
    """A matrix in the format in which it is packed: `real`, half or byte, as in `cpp/step_machine.h`."""

    format: int
    matrix: Tensor  # (depth, width); integers for bytes
    factors: Tensor | None = None  # (width,), for bytes


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
    largest = matrix.abs().amax(0)
    mantissa, exponent = torch.frexp(largest / LARGEST)
    factors = torch.ldexp((mantissa * 2**FACTOR_BITS).ceil() / 2**FACTOR_BITS, exponent)
    factors = torch.where(largest > SMALLEST, factors, torch.ones_like(factors))
    result = (matrix / factors).round() * factors
    return result if result.isfinite().all() else matrix  # the largest numbers would overflow


def packable(matrix: Tensor, *, reduced: bool) -> Packable:
    """Return the smallest format that holds a matrix exactly; ``reduced`` allows rounding to bfloat16."""
    if 0 not in matrix.shape:
        trial = _as_bytes(matrix[:, :TRIAL])
        found = trial if matrix.shape[1] <= TRIAL or trial is None else _as_bytes(matrix)
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


def _is_half(matrix: Tensor) -> bool:
    return torch.equal(matrix.bfloat16().to(matrix.dtype), matrix)
