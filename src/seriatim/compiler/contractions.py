"""Rewrites products of tensors of several dimensions as products of elements and sums, while a step is traced.

``einsum``, ``@``, ``matmul``, ``bmm`` and linear layers with a dimension between the batch and the features would move
the batch. The compiled code computes such a sum without storing the products.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Rewriting = Callable[..., Tensor | None]


def rewritten(
    function: Callable[..., object], args: Sequence[Any], options: Mapping[str, Any], batch: int
) -> Tensor | None:
    """Return the result of a product in which a row of the batch has several dimensions; None for other calls."""
    rewriting = REWRITINGS.get(function)
    return rewriting(batch, *args, **options) if rewriting else None


def _is_row(tensor: object, batch: int) -> bool:
    return isinstance(tensor, Tensor) and tensor.dim() > 1 and tensor.shape[0] == batch


def _einsum(batch: int, equation: object, *operands: Any) -> Tensor | None:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "." in equation or not any(_is_row(operand, batch) for operand in operands):
        return None
    left, arrow, target = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        target = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    if any(len(set(term)) < len(term) or len(term) != x.dim() for term, x in zip(terms, operands, strict=True)):
        return None

    # a row times a matrix of parameters is a product that the compiler knows
    shapes = [(term, operand) for term, operand in zip(terms, operands, strict=True)]
    if sorted(map(len, terms)) == [2, 2] and sum(_is_row(operand, batch) for operand in operands) == 1:
        (row, rows), (pair, matrix) = sorted(shapes, key=lambda item: not _is_row(item[1], batch))
        if row[1] in pair and target == row[0] + pair.replace(row[1], ""):
            return torch.mm(rows, matrix if pair[0] == row[1] else matrix.t())

    # the dimensions of the largest operand come first, so that its neighbouring elements stay neighbours
    largest = max(terms, key=len)
    first = {term[0] for term, operand in shapes if _is_row(operand, batch)}
    letters = "".join(dict.fromkeys([*sorted(first), *largest, *"".join(terms)]))
    product: Tensor | None = None
    for term, operand in shapes:
        order = sorted(range(len(term)), key=lambda i: letters.index(term[i]))
        shape = [operand.shape[term.index(letter)] if letter in term else 1 for letter in letters]
        factor = operand.permute(order).reshape(shape) if order != list(range(len(term))) else operand.view(shape)
        product = factor if product is None else product * factor
    assert product is not None
    summed = [i for i, letter in enumerate(letters) if letter not in target]
    kept = [letter for letter in letters if letter in target]
    result = product.sum(summed) if summed else product
    return result.permute([kept.index(letter) for letter in target])


def _matmul(batch: int, left: Tensor, right: object, **options: Any) -> Tensor | None:
    if options or not isinstance(right, Tensor) or 0 in (left.dim(), right.dim()):
        return None
    if not any(x.dim() > 2 for x in (left, right) if _is_row(x, batch)):
        return None
    if right.dim() == 1:
        return (left * right).sum(-1)
    if left.dim() == 1:
        return (left.unsqueeze(-1) * right).sum(-2)
    return (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2)


def _linear(batch: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    result = _matmul(batch, inputs, weight.t())
    return result if result is None or bias is None else result + bias


REWRITINGS: dict[object, Rewriting] = {
    torch.einsum: _einsum,
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__), _matmul),
    Tensor.__rmatmul__: lambda batch, right, left: _matmul(batch, left, right),
}
"""The functions that are rewritten, and how."""
