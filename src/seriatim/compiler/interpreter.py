"""Evaluation of expressions by PyTorch, before the loop and to verify a traced step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .expressions import Matrix, Node, is_elementwise, walk
from .primitives import PRIMITIVES

Leaf = Callable[[Node], Tensor]
"""Returns the tensor ``(rows, width)``, ``(width,)`` or ``()`` of a leaf."""


def evaluate(
    roots: Sequence[Node],
    leaf: Leaf,
    matrix: Callable[[Matrix], Tensor],
    like: Tensor,
    cache: dict[Node, Tensor] | None = None,
) -> list[Tensor]:
    """Return the values of expressions; differentiable.

    Args:
        roots: the expressions.
        leaf: returns the value of each leaf that is not a number.
        matrix: returns the value of each matrix ``(rows, columns)``.
        like: ``(rows, ...)``; numbers take its type, device and rows.
        cache: values that are already computed; new ones are added.
    """
    values = {} if cache is None else cache
    for value in walk(roots):
        if value in values:
            continue
        args = [values[arg] for arg in value.args]
        if value.op == "number":
            values[value] = like.new_full((value.width,), value.note)
        elif not value.args:
            values[value] = leaf(value)
        elif is_elementwise(value):
            values[value] = PRIMITIVES[value.op].compute(*args)
        elif value.op == "slice":
            values[value] = args[0][..., value.note : value.note + value.width]
        elif value.op == "cat":
            values[value] = torch.cat([arg.expand(like.shape[0], -1) for arg in args], dim=-1)
        elif value.op == "sum":
            values[value] = args[0].sum(-1, keepdim=True)
        elif value.op == "amax":
            values[value] = args[0].amax(-1, keepdim=True)
        elif value.op == "product":
            values[value] = args[0] @ matrix(value.note)
        else:
            assert value.op == "affine"
            products = [rows @ matrix(m) for rows, m in zip(args[1:], value.note, strict=True)]
            values[value] = sum(products, start=args[0])
    return [values[root] for root in roots]
