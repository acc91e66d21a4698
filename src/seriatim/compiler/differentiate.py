"""The vector-Jacobian product of one step, as expressions of the same kind."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from .expressions import Matrix, Node, cat, cut, node, number, placed, walk
from .lower import affine
from .memory_attention import Operands
from .primitives import PRIMITIVES

Part = tuple[int, int, Node]
"""A cotangent for some features of a value: the first feature, the number of features, and the cotangent."""


class Gradient(NamedTuple):
    """The cotangents of one step."""

    leaves: dict[Node, Node]  # the cotangent of every sequence, state and vector leaf that the step uses
    attentions: list[tuple[Node, Node]]  # attention to a memory, cotangent of the context
    products: list[tuple[Node, Matrix, Node]]  # rows, matrix, cotangent of the product


def differentiate(cotangents: Mapping[Node, Node]) -> Gradient:
    """Return the cotangents of all leaves, given the cotangents of some values that depend on them."""
    parts: dict[Node, list[Part]] = defaultdict(list)
    for value, cotangent in cotangents.items():
        parts[value].append((0, value.width, cotangent))
    leaves: dict[Node, Node] = {}
    products: list[tuple[Node, Matrix, Node]] = []
    attentions: list[tuple[Node, Node]] = []
    for value in reversed(walk(list(cotangents))):
        if value not in parts or value.op == "number":
            continue
        total = _gather(value, parts.pop(value))
        if value.op in ("sequence", "state", "vector"):
            leaves[value] = total
        else:
            if value.op == "attend":
                attentions.append((value, total))
            for arg, start, cotangent in _backward(value, total, products):
                if arg.width == 1 < cotangent.width:
                    cotangent = node("sum", cotangent, width=1)
                width = value.width if value.op == "slice" else arg.width
                parts[arg].append((start, width, cotangent))
    return Gradient(leaves, attentions, products)


def _backward(value: Node, cotangent: Node, products: list[tuple[Node, Matrix, Node]]) -> list[tuple[Node, int, Node]]:
    """Return for each argument of an operation: the argument, the first feature, and the cotangent."""
    if value.op == "slice":
        return [(value.args[0], value.note, cotangent)]
    if value.op == "cat":
        return [(arg, 0, cut(cotangent, start, arg.width)) for start, arg in placed(value.args)]
    if value.op == "sum":
        return [(value.args[0], 0, cotangent * number(1, value.args[0].width))]
    if value.op == "amax":
        is_largest = node("eq", value.args[0], value)
        return [(value.args[0], 0, cotangent * is_largest / node("sum", is_largest, width=1))]
    if value.op == "attend":
        operands = Operands.of(value.args, value.note)
        query = node("attend_gradient", value, cotangent, width=operands.query.width)
        # the instruction that computes the cotangent of the query adds to those of the parameters
        return [(operands.query, 0, query), *((part, 0, number(0, part.width)) for part in operands.weights)]
    if value.op == "affine":
        base, *rows = value.args
        results = [(base, 0, cotangent)]
        for row, matrix in zip(rows, value.note, strict=True):
            products.append((row, matrix, cotangent))
            results.append((row, 0, affine(number(0, row.width), [(cotangent, matrix._replace(transposed=True))])))
        return results
    cotangents = PRIMITIVES[value.op].derivative(value, cotangent, *value.args)
    return [(arg, 0, result) for arg, result in zip(value.args, cotangents, strict=True) if result is not None]


def _gather(value: Node, parts: list[Part]) -> Node:
    """Sum the cotangents of a value; features without a cotangent get zeros."""
    if all(width == value.width for _, width, _ in parts):
        return _sum([cotangent for _, _, cotangent in parts], value.width)
    seams = sorted({0, value.width} | {at for start, width, _ in parts for at in (start, start + width)})
    segments = []
    for low, high in itertools.pairwise(seams):
        terms = [
            term if term.width == 1 else cut(term, low - start, high - low)
            for start, width, term in parts
            if start <= low and high <= start + width
        ]
        segments.append(_sum(terms, high - low))
    return cat(segments)


def _sum(terms: list[Node], width: int) -> Node:
    """Sum cotangents; all products among them become one ``affine`` value."""
    total = number(0)
    products: list[tuple[Node, Matrix]] = []
    for term in terms:
        if term.op == "affine":
            base, *rows = term.args
            products.extend(zip(rows, term.note, strict=True))
            term = number(0) if base.op == "number" else base
        total = total + term
    if total.width < width:
        total = total * number(1, width) if total.op != "number" else number(total.note, width)
    return affine(total, products) if products else total
