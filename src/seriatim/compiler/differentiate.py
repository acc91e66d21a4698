"""The vector-Jacobian product of one step, as expressions of the same kind."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from .expressions import Matrix, Node, cat, cut, node, number, walk
from .lower import affine
from .primitives import PRIMITIVES, add, div, mul

Part = tuple[int, int, Node]
"""What reaches a value from where it is used: from which feature on, how many, and a cotangent."""


class Gradient(NamedTuple):
    """Cotangents of one step."""

    leaves: dict[Node, Node]
    """Of every ``sequence``, ``state`` and ``vector`` leaf that is used."""
    products: list[tuple[Node, Matrix, Node]]
    """For the matrices: rows, the matrix they meet, and the product's cotangent."""


def differentiate(cotangents: Mapping[Node, Node]) -> Gradient:
    """Cotangents of all leaves behind some values, given these values' own."""
    reaching: dict[Node, list[Part]] = defaultdict(list)
    for value, given in cotangents.items():
        reaching[value].append((0, value.width, given))
    leaves: dict[Node, Node] = {}
    products: list[tuple[Node, Matrix, Node]] = []
    for value in reversed(walk(list(cotangents))):
        if value not in reaching or value.op == "number":
            continue
        cotangent = _gather(value, reaching.pop(value))
        if value.op in ("sequence", "state", "vector"):
            leaves[value] = cotangent
        else:
            for arg, start, given in _backwards(value, cotangent, products):
                if arg.width == 1 < given.width:
                    given = node("sum", given, width=1)
                width = value.width if value.op == "slice" else arg.width
                reaching[arg].append((start, width, given))
    return Gradient(leaves, products)


def _backwards(value: Node, cotangent: Node, products: list[tuple[Node, Matrix, Node]]) -> list[tuple[Node, int, Node]]:
    """What an operation sends to its arguments: argument, from which feature on, cotangent."""
    if value.op == "slice":
        return [(value.args[0], value.note, cotangent)]
    if value.op == "cat":
        starts = [sum(arg.width for arg in value.args[:i]) for i in range(len(value.args))]
        return [(arg, 0, cut(cotangent, start, arg.width)) for arg, start in zip(value.args, starts, strict=True)]
    if value.op == "sum":
        width = value.args[0].width
        return [(value.args[0], 0, cotangent if width == 1 else mul(cotangent, number(1, width)))]
    if value.op == "amax":
        largest = node("eq", value.args[0], value)
        return [(value.args[0], 0, div(mul(cotangent, largest), node("sum", largest, width=1)))]
    if value.op == "affine":
        base, *rows = value.args
        found = [(base, 0, cotangent)]
        for row, matrix in zip(rows, value.note, strict=True):
            products.append((row, matrix, cotangent))
            found.append((row, 0, affine(number(0, row.width), [(cotangent, matrix._replace(transposed=True))])))
        return found
    sent = PRIMITIVES[value.op].derivative(value, cotangent)
    return [(arg, 0, given) for arg, given in zip(value.args, sent, strict=True) if given is not None]


def _gather(value: Node, parts: list[Part]) -> Node:
    """Sums what reaches a value; where only some features are reached the others get zeros."""
    if all(width == value.width for _, width, _ in parts):
        return _sum([given for _, _, given in parts], value.width)
    seams = sorted({0, value.width} | {at for start, width, _ in parts for at in (start, start + width)})
    segments = []
    for low, high in itertools.pairwise(seams):
        here = [(start, given) for start, width, given in parts if start <= low and high <= start + width]
        terms = [given if given.width == 1 else cut(given, low - start, high - low) for start, given in here]
        segments.append(_sum(terms, high - low))
    return cat(segments)


def _sum(terms: list[Node], width: int) -> Node:
    """A sum; its products become one value that is added to in memory."""
    total = number(0)
    products: list[tuple[Node, Matrix]] = []
    for term in terms:
        if term.op == "affine":
            base, *rows = term.args
            products.extend(zip(rows, term.note, strict=True))
            term = number(0) if base.op == "number" else base
        total = add(total, term)
    if total.width < width:
        total = mul(total, number(1, width)) if total.op != "number" else number(total.note, width)
    return affine(total, products) if products else total
