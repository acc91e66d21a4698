"""What of a step belongs before the loop, and what inside it.

Products of inputs with constant matrices leave the loop. Products of the state stay, and are added onto what came
before the loop where a sum says so. Biases stay too: to add them is next to nothing where a row is read anyway, and a
pass through memory where it is not. A product of which only slices are used becomes one product a slice, so that each
gate goes its own way.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .expressions import Matrix, Node, cat, cut, depends, node, number, rebuild, walk
from .primitives import add, mul
from .trace import Traced


class Before(NamedTuple):
    """What a ``sequence`` leaf holds: a sum of inputs times matrices, or any function of the inputs."""

    products: tuple[tuple[Node, Matrix], ...]
    plain: Node | None = None


class Loop(NamedTuple):
    """One step, with ``sequence`` leaves (whose note is a `Before`) for what is computed before the loop."""

    outputs: Node
    states: tuple[Node, ...]


def lower(traced: Traced, *, alone: bool = False) -> Loop:
    """Rewrites a step as the body of a loop; ``alone``, nothing leaves it."""
    outputs, *states = _Lowering([traced.outputs, *traced.states], alone=alone).run()
    return Loop(outputs, tuple(states))


def sequence(before: Before, width: int) -> Node:
    """A leaf for what is computed before the loop."""
    return node("sequence", width=width, note=before)


class _Lowering:
    def __init__(self, roots: Sequence[Node], *, alone: bool) -> None:
        self.roots = roots
        self.done: dict[Node, Node] = {}
        self.uses: dict[Node, int] = defaultdict(int)
        self.seams: dict[Node, set[int]] = {}
        late = {"state", "inputs"} if alone else {"state"}
        self.of_inputs = depends(roots, lambda leaf: leaf.op in {"inputs", "noise"} - late)
        self.of_state = depends(roots, lambda leaf: leaf.op in late)
        self.reduces = depends(roots, lambda value: value.op in ("sum", "amax"))
        self.count()

    def count(self) -> None:
        """How often each value is used, and where the products are cut that are never used whole."""
        whole = {root for root in self.roots if root.op == "product"}
        for root in self.roots:
            self.uses[root] += 1
        for value in walk(self.roots):
            for arg in value.args:
                self.uses[arg] += 1
                if arg.op == "product" and value.op == "slice":
                    self.seams.setdefault(arg, {0, arg.width}).update({value.note, value.note + value.width})
                elif arg.op == "product":
                    whole.add(arg)
        for product in whole:
            self.seams[product] = {0, product.width}

    def run(self) -> list[Node]:
        for value in walk(self.roots):  # arguments first, so that no recursion is deep
            self.rewrite(value)
        return [self.done[root] for root in self.roots]

    def rewrite(self, value: Node) -> Node:
        if value not in self.done:
            self.done[value] = self.rewritten(value)
        return self.done[value]

    def rewritten(self, value: Node) -> Node:
        before_loop = self.of_inputs[value] and not self.of_state[value]
        if before_loop and (not value.args or self.reduces[value]):
            return sequence(Before((), value), value.width)
        if not value.args:
            return value
        if value.op == "add":
            return self.sum(value)
        if value.op == "product":
            return self.piece(value, 0, value.width)
        if value.op == "slice" and value.args[0].op == "product":
            return self.piece(value.args[0], value.note, value.width)
        return rebuild(value, [self.rewrite(arg) for arg in value.args])

    def piece(self, product: Node, start: int, width: int) -> Node:
        """Features of a product, each part between two seams a value of its own."""
        places = sorted(self.seams[product])
        parts = []
        for low, high in itertools.pairwise(places):
            first, last = max(low, start), min(high, start + width)
            if first < last:
                parts.append(cut(self.single(product, low, high), first - low, last - first))
        return cat(parts)

    def single(self, product: Node, start: int, stop: int) -> Node:
        rows, matrix = product.args[0], product.note._replace(start=start, stop=stop)
        if self.of_state[product]:
            return affine(number(0, stop - start), [(self.rewrite(rows), matrix)])
        return sequence(Before(((rows, matrix),)), stop - start)

    def sum(self, value: Node) -> Node:
        """A sum of several values, sorted by where each is computed."""
        early: list[tuple[Node, Matrix]] = []
        late: list[tuple[Node, Matrix]] = []
        rest = []
        for term in self.terms(value):
            product = self.whole_product(term)
            if product is not None:
                (late if self.of_state[term] else early).append(product)
            else:
                rest.append(self.rewrite(term))
        total = number(0)
        if early:
            total = sequence(Before(tuple(early)), value.width)
        if late:
            base = total if early else number(0, value.width)
            total = affine(base, [(self.rewrite(rows), matrix) for rows, matrix in late])
        for term in rest:
            total = add(total, term)
        return total if total.width == value.width else mul(total, number(1, value.width))

    def terms(self, value: Node) -> list[Node]:
        """The terms of a sum, through inner sums that nothing else uses."""
        found = []
        for arg in value.args:
            inner = arg.op == "add" and self.uses[arg] == 1 and arg.width == value.width
            found.extend(self.terms(arg) if inner else [arg])
        return found

    def whole_product(self, term: Node) -> tuple[Node, Matrix] | None:
        """The factors of a term that is one product, or one of the parts it falls into, and is used here alone."""
        product, start = (term.args[0], term.note) if term.op == "slice" else (term, 0)
        if product.op != "product" or self.uses[term] > 1:
            return None
        places, stop = sorted(self.seams[product]), start + term.width
        if start not in places or places[places.index(start) + 1] != stop:
            return None
        return product.args[0], product.note._replace(start=start, stop=stop)


def affine(base: Node, products: Sequence[tuple[Node, Matrix]]) -> Node:
    """``base`` plus rows times matrices; a base of zeros is nothing."""
    rows, matrices = zip(*products, strict=True)
    return node("affine", base, *rows, width=base.width, note=matrices)
