"""Rounded matrices: how far they are from the given ones, and that their format is recognized from their values."""

import pytest
import torch

from seriatim.recurrence.weight_formats import GROUP, LARGEST, Packable, packable, rounded

NUMBERS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}


def matrix(depth: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(depth * 100 + width)
    values = torch.randn(depth, width, generator=generator, dtype=dtype)
    return values * torch.logspace(-6, 3, width, dtype=dtype)


def values_of(packed: Packable, dtype: torch.dtype) -> torch.Tensor:
    if packed.factors is None:
        return packed.matrix.to(dtype)
    factors = packed.factors.to(dtype)
    return packed.matrix * (factors.repeat_interleave(GROUP, 0)[: len(packed.matrix)] if factors.dim() > 1 else factors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1), (7, 3), (64, 100), (200, 33)])
@pytest.mark.parametrize("weight_format", NUMBERS)
def test_a_rounded_matrix_is_recognized_and_held_exactly(weight_format, size, dtype) -> None:
    result = rounded(matrix(*size, dtype), weight_format)
    assert result.dtype == dtype
    packed = packable(result, reduced=False)
    assert torch.equal(values_of(packed, dtype), result)
    if size != (1, 1) and (weight_format, dtype) != (
        "int4",
        torch.float64,
    ):  # one number is always an integer times a factor
        assert packed.format == NUMBERS[weight_format]


def test_errors_are_at_most_half_a_step_of_a_column() -> None:
    values = matrix(300, 40)
    error = (rounded(values, "int8") - values).abs()
    assert (error <= values.abs().amax(0) / LARGEST / 2 * 1.001).all()
    assert ((rounded(values, "bfloat16") - values).abs() <= values.abs() * 2**-8).all()


def four_bits_of_a_group(numbers: list[float], factor: float) -> tuple[list[float], float]:
    """Return numbers rounded with a factor, and the sum of squared errors."""
    found = [min(7, max(-8, round(number / factor))) * factor for number in numbers]
    return found, sum((number - other) ** 2 for number, other in zip(numbers, found, strict=True))


@pytest.mark.parametrize("depth", [5, 32, 75])
def test_groups_of_four_bits_are_rounded_as_one_after_another(depth: int) -> None:
    values = matrix(depth, 40)
    result = rounded(values, "int4")
    packed = packable(result, reduced=False)
    assert packed.factors is not None
    assert packed.factors.shape == (-(-depth // GROUP), 40)
    assert (packed.matrix.min(), packed.matrix.max()) == (-8, 7)
    for column in range(0, 40, 7):
        for group, first in enumerate(range(0, depth, GROUP)):
            numbers = values[first : first + GROUP, column].tolist()
            expected, error = four_bits_of_a_group(numbers, packed.factors[group, column].item())
            assert result[first : first + GROUP, column].tolist() == expected
            largest = max(numbers, key=abs)  # as good as without a search: the largest number is 8 steps
            assert error <= 1.01 * four_bits_of_a_group(numbers, largest / -8)[1]


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8", "int4"])
def test_rounding_twice_changes_nothing(weight_format) -> None:
    once = rounded(matrix(50, 20), weight_format)
    assert torch.equal(rounded(once, weight_format), once)


def test_zeros_and_values_that_are_not_finite() -> None:
    zeros = torch.zeros(4, 5)
    assert torch.equal(rounded(zeros, "int8"), zeros)
    assert torch.equal(rounded(zeros, "int4"), zeros)
    assert torch.equal(rounded(torch.full((4, 5), 1e-40), "int4"), zeros)
    packed = packable(zeros, reduced=False)
    assert packed.format == 2
    assert not values_of(packed, torch.float32).any()
    for wrong in (float("nan"), float("inf")):
        values = matrix(4, 5)
        values[2, 3] = wrong
        assert rounded(values, "int8") is rounded(values, "int4") is values
        assert packable(values, reduced=False).format == 0


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_one_column_that_is_not_rounded_keeps_the_whole_matrix(weight_format) -> None:
    values = rounded(matrix(50, 100), weight_format)
    values[:, 70] = matrix(50, 1)[:, 0]
    assert packable(values, reduced=False).format == 0
    assert packable(values, reduced=True).format == 1
