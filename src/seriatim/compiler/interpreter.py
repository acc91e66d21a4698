"""Expressions computed by torch: what comes before the loop, and the check of a traced step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .expressions import Matrix, Node, elementwise, walk
from .primitives import PRIMITIVES

Leaf = Callable[[Node], Tensor]
"""Gives the tensor ``(rows, width)``, ``(width,)`` or ``()`` that a leaf stands for."""


def evaluate(
    roots: Sequence[Node],
    leaf: Leaf,
    matrix: Callable[[Matrix], Tensor],
    like: Tensor,
    known: dict[Node, Tensor] | None = None,
) -> list[Tensor]:
    """The values of expressions, differentiable.

    Args:
        roots: what to compute.
        leaf: the value of each leaf but numbers.
        matrix: the value of each matrix, ``(rows, columns)`` as it acts.
        like: ``(rows, ...)``, of which numbers take type, device and rows.
        known: what has been computed already; what is computed is added.
    """
    values = {} if known is None else known
    for value in walk(roots):
        if value in values:
            continue
        args = [values[arg] for arg in value.args]
        if value.op == "number":
            values[value] = like.new_full((value.width,), value.note)
        elif not value.args:
            values[value] = leaf(value)
        elif elementwise(value):
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
