"""Rewrites a step as the body of a loop: products of inputs with constant matrices are computed before it, all at once.

Where a sum contains products of the state, they are added to the result from before the loop. Biases stay inside, where
they cost almost nothing. A product of which only slices are used becomes one product per slice: each gate is separate.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .expressions import Matrix, Node, cat, cut, depends, node, number, rebuild, walk, widened
from .recorder import Traced


class Before(NamedTuple):
    """The content of a ``sequence`` leaf: a sum of inputs times matrices, or (``plain``) any function of the inputs."""

    products: tuple[tuple[Node, Matrix], ...]
    plain: Node | None = None


class Loop(NamedTuple):
    """One step, with ``sequence`` leaves (whose note is a `Before`) for what is computed before the loop."""

    outputs: Node
    states: tuple[Node, ...]


def lower(traced: Traced) -> Loop:
    """Rewrite a step as the body of a loop."""
    roots = [traced.outputs, *traced.states]
    lowering = _Lowering(roots)
    for value in walk(roots):  # arguments first, which keeps the recursion shallow
        lowering.lower(value)
    outputs, *states = map(lowering.lower, roots)
    return Loop(outputs, tuple(states))


class _Lowering:
    def __init__(self, roots: Sequence[Node]) -> None:
        self.lowered: dict[Node, Node] = {}
        self.uses = Counter(roots)
        self.seams: dict[Node, set[int]] = {}
        """For each product, the first and last features of the slices that are never used as a whole."""
        self.depends_on_inputs = depends(roots, lambda leaf: leaf.op in {"inputs", "noise"})
        self.is_inside = depends(roots, lambda leaf: leaf.op in ("state", "memory"))
        self.has_reduction = depends(roots, lambda value: value.op in ("sum", "amax"))
        whole = set(roots)
        for value in walk(roots):
            self.uses.update(value.args)
            if value.op == "slice":
                seams = self.seams.setdefault(value.args[0], {0, value.args[0].width})
                seams |= {value.note, value.note + value.width}
            else:
                whole.update(value.args)
        self.seams.update({value: {0, value.width} for value in whole})

    def lower(self, value: Node) -> Node:
        if value not in self.lowered:
            self.lowered[value] = self._lower(value)
        return self.lowered[value]

    def _lower(self, value: Node) -> Node:
        is_before = self.depends_on_inputs[value] and not self.is_inside[value]
        if is_before and (not value.args or self.has_reduction[value]):
            return _sequence(Before((), value), value.width)
        if not value.args:
            return value
        if value.op == "add":
            return self.sum(value)
        if value.op == "product":
            return self.slice_of_product(value, 0, value.width)
        if value.op == "slice" and value.args[0].op == "product":
            return self.slice_of_product(value.args[0], value.note, value.width)
        return rebuild(value, [self.lower(arg) for arg in value.args])

    def slice_of_product(self, product: Node, start: int, width: int) -> Node:
        """Return features of a product; each part between two seams is one value."""
        parts = []
        for low, high in itertools.pairwise(sorted(self.seams[product])):
            first, last = max(low, start), min(high, start + width)
            if first < last:
                parts.append(cut(self.one_part(product, low, high), first - low, last - first))
        return cat(parts)

    def one_part(self, product: Node, start: int, stop: int) -> Node:
        rows, matrix = product.args[0], product.note._replace(start=start, stop=stop)
        if self.is_inside[product]:
            return affine(number(0, stop - start), [(self.lower(rows), matrix)])
        return _sequence(Before(((rows, matrix),)), stop - start)

    def sum(self, value: Node) -> Node:
        """Lower a sum; its terms are grouped by where they are computed."""
        before: list[tuple[Node, Matrix]] = []
        inside: list[tuple[Node, Matrix]] = []
        other_terms = []
        for term in self.terms(value):
            product = self.as_product(term)
            if product is not None:
                (inside if self.is_inside[term] else before).append(product)
            else:
                other_terms.append(self.lower(term))
        total = _sequence(Before(tuple(before)), value.width) if before else number(0)
        if inside:
            base = total if before else number(0, value.width)
            total = affine(base, [(self.lower(rows), matrix) for rows, matrix in inside])
        for term in other_terms:
            total = total + term
        return widened(total, value.width)

    def terms(self, value: Node) -> list[Node]:
        """Return the terms of a sum, including those of inner sums that nothing else uses."""
        terms = []
        for arg in value.args:
            is_inner_sum = arg.op == "add" and self.uses[arg] == 1 and arg.width == value.width
            terms.extend(self.terms(arg) if is_inner_sum else [arg])
        return terms

    def as_product(self, term: Node) -> tuple[Node, Matrix] | None:
        """Return the factors of a term that is one product, or one part of a product, and is used once; else None."""
        product, start = (term.args[0], term.note) if term.op == "slice" else (term, 0)
        stop = start + term.width
        if product.op != "product" or self.uses[term] > 1:
            return None
        if (start, stop) not in itertools.pairwise(sorted(self.seams[product])):
            return None
        return product.args[0], product.note._replace(start=start, stop=stop)


def affine(base: Node, products: Sequence[tuple[Node, Matrix]]) -> Node:
    """Return ``base`` plus rows times matrices."""
    rows, matrices = zip(*products, strict=True)
    return node("affine", base, *rows, width=base.width, note=matrices)


def _sequence(before: Before, width: int) -> Node:
    return node("sequence", width=width, note=before)
