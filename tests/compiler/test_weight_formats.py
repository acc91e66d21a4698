"""Rounded matrices: how far they are from the given ones, and that their format is recognized from their values."""

import pytest
import torch

from seriatim.recurrence.weight_formats import LARGEST, Packable, packable, rounded

NUMBERS = {"float32": 0, "bfloat16": 1, "int8": 2}


def matrix(depth: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(depth * 100 + width)
    values = torch.randn(depth, width, generator=generator, dtype=dtype)
    return values * torch.logspace(-6, 3, width, dtype=dtype)


def values_of(packed: Packable, dtype: torch.dtype) -> torch.Tensor:
    return packed.matrix.to(dtype) if packed.factors is None else packed.matrix * packed.factors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1), (7, 3), (64, 100), (200, 33)])
@pytest.mark.parametrize("weight_format", NUMBERS)
def test_a_rounded_matrix_is_recognized_and_held_exactly(weight_format, size, dtype) -> None:
    result = rounded(matrix(*size, dtype), weight_format)
    assert result.dtype == dtype
    packed = packable(result, reduced=False)
    assert torch.equal(values_of(packed, dtype), result)
    if size != (1, 1):  # a single number is always an integer times a factor
        assert packed.format == NUMBERS[weight_format]


def test_errors_are_at_most_half_a_step_of_a_column() -> None:
    values = matrix(300, 40)
    error = (rounded(values, "int8") - values).abs()
    assert (error <= values.abs().amax(0) / LARGEST / 2 * 1.001).all()
    assert ((rounded(values, "bfloat16") - values).abs() <= values.abs() * 2**-8).all()


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8"])
def test_rounding_twice_changes_nothing(weight_format) -> None:
    once = rounded(matrix(50, 20), weight_format)
    assert torch.equal(rounded(once, weight_format), once)


def test_zeros_and_values_that_are_not_finite() -> None:
    zeros = torch.zeros(4, 5)
    assert torch.equal(rounded(zeros, "int8"), zeros)
    packed = packable(zeros, reduced=False)
    assert packed.format == 2
    assert not values_of(packed, torch.float32).any()
    for wrong in (float("nan"), float("inf")):
        values = matrix(4, 5)
        values[2, 3] = wrong
        assert rounded(values, "int8") is values
        assert packable(values, reduced=False).format == 0


def test_one_column_that_is_not_rounded_keeps_the_whole_matrix() -> None:
    values = rounded(matrix(50, 100), "int8")
    values[:, 70] = matrix(50, 1)[:, 0]
    assert packable(values, reduced=False).format == 0
    assert packable(values, reduced=True).format == 1
