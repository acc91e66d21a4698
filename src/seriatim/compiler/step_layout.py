"""Where the elements of a row lie in memory: dimensions are joined, divided and moved to fit several views."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from .instructions import DIMENSIONS, Operand


class View(NamedTuple):
    """Elements of a row: their number and distance along each dimension, and the place of the first one."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the distances along dimensions of elements without gaps."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def merged(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Join neighbouring dimensions along which places are equally far apart."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    merged = merged or [(1, 0)]
    return tuple(size for size, _ in merged), tuple(stride for _, stride in merged)


def common(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return dimensions from which each shape follows by joining neighbours, or None."""
    cuts = sorted({math.prod(shape[i:]) for shape in shapes for i in range(len(shape))})
    if any(b % a for a, b in itertools.pairwise(cuts)):
        return None
    sizes = [cuts[0], *(b // a for a, b in itertools.pairwise(cuts))]
    return tuple(reversed([size for size in sizes if size > 1] or [1]))


def refined(view: View, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances of a view along dimensions that divide its own."""
    own, distances = (list(part) for part in merged(view.sizes, view.strides))
    strides: list[int] = []
    rest, distance = own.pop(), distances.pop()
    for size in reversed(sizes):
        if size == 1:
            strides.append(0)
            continue
        if rest == 1:
            rest, distance = own.pop(), distances.pop()
        assert rest % size == 0
        strides.append(distance)
        rest, distance = rest // size, distance * size
    return tuple(reversed(strides))


def outermost(
    sizes: tuple[int, ...], to: Operand, operands: list[Operand]
) -> tuple[tuple[int, ...], Operand, list[Operand]]:
    """Move a dimension of more than one element to the front, for threads to share; split the last one if need be."""
    outer = next((i for i in range(DIMENSIONS - 1) if sizes[i] > 1 and to.strides[i]), None)
    if outer is None:
        size = sizes[-1]
        parts = next((n for n in (16, 8, 4, 2) if size % n == 0 and to.strides[-1]), None)
        if parts is None or sizes[0] > 1:
            return sizes, to, operands
        sizes = (parts, *sizes[1:-1], size // parts)

        def split(operand: Operand) -> Operand:
            strides = operand.strides
            return operand._replace(strides=(strides[-1] * (size // parts), *strides[1:]))

        return sizes, split(to), [split(operand) for operand in operands]
    order = [outer, *(i for i in range(DIMENSIONS) if i != outer)]

    def moved(operand: Operand) -> Operand:
        return operand._replace(strides=tuple(operand.strides[i] for i in order))

    return tuple(sizes[i] for i in order), moved(to), [moved(operand) for operand in operands]
