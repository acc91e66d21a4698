"""Rewrites a traced step whose state holds matrices as the body of a loop over the steps of one head.

A head is one index of the first dimension of the state's leaves after the batch. Where no value of one head depends on
another, each head is a recurrence of its own (`lower_heads`); otherwise all of a row are one head. Three parts follow:

    before the loop   what depends on inputs or weights alone, computed for all steps at once by PyTorch. What only
                      repeats elements, such as the outer product of a key and a value, is computed in the loop instead
    in the loop       the state, and sums over its matrices; values are those of one head, ``width`` numbers each
    after the loop    what the state does not depend on, such as a norm and an output projection, again by PyTorch

In the loop, every value is an elementwise operation, a ``view`` that may repeat elements, or a ``sum`` or ``amax`` into
a `StridedView`. The gradient of a view is a sum and that of a sum is a view, so these are closed under differentiation
(`differentiate_heads`), and a product of matrices is a sum of elementwise products in three dimensions.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .expressions import (
    Node,
    StridedView,
    common,
    contiguous,
    depends,
    is_elementwise,
    merged,
    node,
    number,
    refined,
    walk,
    widened,
)
from .fallback_reasons import CallSite, Reason, UnsupportedError
from .lower import SINGLE_STEPS
from .operators import PRIMITIVES, NotCompiledError
from .recorder import Traced


class HeadInput(NamedTuple):
    """The content of a ``hoisted`` leaf: what PyTorch computes before the loop."""

    value: Node  # an expression of inputs and weights, for all heads of a row
    is_shared: bool  # by the heads
    is_constant: bool  # the same for all rows


class HeadStep(NamedTuple):
    """The step of one head."""

    heads: int
    states: tuple[Node, ...]  # after the step, one for each leaf of the state
    outputs: dict[Node, Node]  # what the loop returns of every step, by the expression for all heads of a row
    inputs: tuple[Node, ...]  # the ``hoisted`` leaves


def lower_heads(traced: Traced, shapes: Sequence[tuple[int, ...]]) -> HeadStep:
    """Rewrite a step, given the shapes of the leaves of its state without the batch.

    Raises:
        UnsupportedError: the step does something that is not compiled; the error holds every reason.
    """
    heads = max(shapes, key=len)[0]
    if heads > 1:
        try:
            return _HeadLowering(traced, shapes, heads).step()
        except UnsupportedError:  # a value of one head depends on another
            pass
    return _HeadLowering(traced, shapes, 1).step()


class _HeadLowering:
    def __init__(self, traced: Traced, shapes: Sequence[tuple[int, ...]], heads: int) -> None:
        self.traced, self.heads = traced, heads
        self.reasons: list[Reason] = []
        roots = [traced.outputs, *traced.states]
        self.order = walk(roots)
        self.is_inside = depends(roots, lambda leaf: leaf.op == "state")
        self.has_inputs = depends(roots, lambda leaf: leaf.op in ("inputs", "noise"))
        self.lowered: dict[tuple[Node, bool], Node] = {}
        self.distinct: dict[Node, int] = {}
        """How many different elements a value can have."""
        for value in self.order:
            self.distinct[value] = self.count_distinct(value)

        # matrices are never stored for all steps: what is computed from them stays in the loop, down to their sums
        rank = max(map(len, shapes))
        matrices = [leaf for leaf, shape in zip(traced.leaves[1:], shapes, strict=True) if len(shape) == rank > 1]
        smallest = min((leaf.width for leaf in matrices), default=0)
        self.matrices = set(matrices)
        for value in self.order:
            keeps_size = is_elementwise(value) and value.op not in ("product", *SINGLE_STEPS)
            is_large = value.width >= smallest and self.is_inside[value] and value.args
            if is_large and keeps_size and (self.repeats(value) or any(arg in self.matrices for arg in value.args)):
                self.matrices.add(value)

    def count_distinct(self, value: Node) -> int:
        args = [self.distinct[arg] for arg in value.args]
        if value.op == "number":
            return 1
        if value.op == "view":
            view = value.attribute
            moving = math.prod(size for size, stride in zip(view.sizes, view.strides, strict=True) if stride)
            return min(args[0], int(moving))
        if value.op == "join":
            return min(value.width, sum(args))
        return max(args) if value.args and is_elementwise(value) else value.width

    def repeats(self, value: Node) -> bool:
        """Return whether some elements of a value are the same."""
        return self.distinct[value] < value.width

    def step(self) -> HeadStep:
        """Return the step of one head."""
        outputs, states = self.traced.outputs, self.traced.states
        inside = [value for value in self.order if self.is_inside[value]]
        forced = [value for value in inside if any(arg in self.matrices for arg in value.args)]
        forced += [value for value in inside if value in self.matrices]
        in_loop = {value for value in walk([*states, *forced]) if self.is_inside[value]}
        in_loop |= {leaf for leaf in self.traced.leaves[1:] if leaf in self.is_inside}
        returned = {outputs: None} if outputs in in_loop else {}
        for value in inside:
            if value not in in_loop:
                returned.update(dict.fromkeys(arg for arg in value.args if arg in in_loop))

        # every value is lowered, also after the first that cannot be: the user sees all reasons at once
        for value in self.order:
            if value.op in ("attend_to_rows", *SINGLE_STEPS):
                self.reasons.append(self.traced.call_sites[value].reason("is compiled in single steps only"))
            elif value in in_loop:
                self.lower(value)
        state_nodes = tuple(widened(self.lower(value), value.width // self.heads) for value in states)
        results = {value: self.lower(value) for value in returned}
        if self.reasons:
            raise UnsupportedError(self.reasons)
        used = walk([*state_nodes, *results.values()])
        return HeadStep(self.heads, state_nodes, results, tuple(value for value in used if value.op == "hoisted"))

    def lower(self, value: Node, *, shared: bool = False) -> Node:
        """Return a value of one head; ``shared`` if all heads use the same one."""
        key = (value, shared)
        if key not in self.lowered:
            try:
                self.lowered[key] = self._lower(value, shared)
            except NotCompiledError as error:  # the search for reasons goes on with a value that causes none
                site = self.traced.call_sites.get(value, CallSite("the step", None))
                self.reasons.append(site.reason(str(error)))
                self.lowered[key] = number(0, self.width(value, shared))
        return self.lowered[key]

    def width(self, value: Node, shared: bool) -> int:
        """Return how many features of a value a head has."""
        return value.width if shared else max(1, value.width // self.heads)

    def _lower(self, value: Node, shared: bool) -> Node:
        is_inside, heads = self.is_inside.get(value, False), 1 if shared else self.heads
        if value.op == "number":
            return number(value.attribute, self.width(value, shared))
        if value.width % heads or (is_inside and shared and self.heads > 1):
            raise NotCompiledError("computes a value of the state that several heads share")
        if value.op == "state":
            return node("state", width=self.width(value, shared), attribute=value.attribute)
        if not is_inside and not self.repeats(value):
            return self.hoisted(value, shared)
        if value.op == "view":
            return self.view(value, shared)
        if value.op == "join":
            return self.join(value, shared)
        if value.op in ("sum", "amax"):
            return self.reduction(value, shared)
        if value.op == "product":
            return self.product(value)
        args = [self.lower(arg, shared=shared or arg.width < value.width) for arg in value.args]
        return node(value.op, *args, width=self.width(value, shared), attribute=value.attribute)

    def hoisted(self, value: Node, shared: bool) -> Node:
        content = HeadInput(value, shared or self.heads == 1, not self.has_inputs.get(value, False))
        return node("hoisted", width=self.width(value, shared), attribute=content)

    def split(self, view: StridedView, heads: int, size: int) -> tuple[StridedView, bool]:
        """Return the part of a view that a head has, and if all heads have the same one; each has ``size`` features.

        The view is of elements, or of the positions to which they are summed.
        """
        shape = merged(view.sizes, view.strides)[0]
        count = math.prod(shape)
        sizes = common([shape, (heads, count // heads)]) if count % heads == 0 else None
        if sizes is None:
            raise NotCompiledError("combines dimensions that do not fit together")
        strides = refined(view, sizes)
        first = next((i for i in range(len(sizes) + 1) if math.prod(sizes[:i]) == heads), 0)
        inner = StridedView(sizes[first:] or (1,), strides[first:] or (0,), view.offset)
        reach = inner.offset + sum((n - 1) * step for n, step in zip(inner.sizes, inner.strides, strict=True))
        outer = strides[:first]
        if heads > 1 and outer == (0,) * first:
            return inner, True
        if outer == tuple(step * size for step in contiguous(sizes[:first])) and reach < size:
            return inner, False
        raise NotCompiledError("combines values of several heads")

    def view(self, value: Node, shared: bool) -> Node:
        view, source, heads = value.attribute, value.args[0], 1 if shared else self.heads
        if not self.is_inside[value] and not self.repeats(source):
            # PyTorch computes the elements once, and the loop repeats them
            kept = [i for i, stride in enumerate(view.strides) if stride]
            sizes, strides = (tuple(each[i] for i in kept) for each in (view.sizes, view.strides))
            once = StridedView(sizes or (1,), strides or (0,), view.offset)
            source, steps = self.elements(source, once), iter(contiguous(once.sizes))
            view = StridedView(view.sizes, tuple(next(steps) if stride else 0 for stride in view.strides))
        inner, is_common = self.split(view, heads, source.width // heads)
        of_head = self.lower(source, shared=shared or is_common)
        width = value.width // heads
        if inner.is_contiguous and inner.offset == 0 and width == of_head.width:
            return of_head
        return node("view", of_head, width=width, attribute=inner)

    def elements(self, source: Node, view: StridedView) -> Node:
        """Return some elements of a value that PyTorch computes."""
        width = math.prod(view.sizes)
        result = source
        if not (view.is_contiguous and view.offset == 0 and width == source.width):
            result = node("view", source, width=width, attribute=view)
        self.is_inside[result], self.has_inputs[result] = False, self.has_inputs[source]
        self.distinct[result] = width
        return result

    def join(self, value: Node, shared: bool) -> Node:
        """Return values side by side: each is summed to its positions, where the others have zeros."""
        if sum(math.prod(view.sizes) for view in value.attribute) != value.width:
            raise NotCompiledError("assigns to a part of a tensor")
        heads = 1 if shared else self.heads
        result, width = number(0), value.width // heads
        for arg, view in zip(value.args, value.attribute, strict=True):
            inner, is_common = self.split(view, heads, width)
            if is_common:
                raise NotCompiledError("combines values of several heads")
            of_head = widened(self.lower(arg, shared=shared or arg.width == 1), math.prod(inner.sizes))
            result = result + node("sum", of_head, width=width, attribute=inner)
        return result

    def reduction(self, value: Node, shared: bool) -> Node:
        source, heads = value.args[0], 1 if shared else self.heads
        view = value.attribute or StridedView((source.width,), (0,))
        inner, is_common = self.split(view, heads, value.width // heads)
        if is_common:
            raise NotCompiledError("works along the heads")
        of_head = widened(self.lower(source, shared=shared), source.width // heads)
        return node(value.op, of_head, width=value.width // heads, attribute=inner)

    def product(self, value: Node) -> Node:
        """Return rows times a matrix as a sum of products of elements."""
        if self.heads > 1:
            raise NotCompiledError("multiplies values of several heads by one matrix")
        rows, width = value.args[0], value.width
        depth, constant = rows.width, node("vector", width=rows.width * width, attribute=value.attribute.constant)
        matrix = node("hoisted", width=depth * width, attribute=HeadInput(constant, True, True))
        factor = node("view", self.lower(rows), width=depth * width, attribute=StridedView((depth, width), (1, 0)))
        return node("sum", factor * matrix, width=width, attribute=StridedView((depth, width), (0, 1)))


# ---- the vector-Jacobian product


def differentiate_heads(cotangents: Mapping[Node, Node]) -> dict[Node, Node]:
    """Return the cotangent of every leaf of one head, given those of values that depend on them."""
    terms: dict[Node, list[Node]] = defaultdict(list)
    for value, cotangent in cotangents.items():
        terms[value].append(cotangent)
    leaves: dict[Node, Node] = {}
    for value in reversed(walk(list(cotangents))):  # users come before their arguments
        if value not in terms or value.op == "number":
            continue
        total = number(0)
        for term in terms.pop(value):
            total = total + term
        total = widened(total, value.width)
        if value.op in ("hoisted", "state"):
            leaves[value] = total
            continue
        for arg, cotangent in _backward(value, total):
            if arg.width == 1 < cotangent.width:
                whole = StridedView((cotangent.width,), (0,))
                cotangent = node("sum", cotangent, width=1, attribute=whole)
            terms[arg].append(cotangent)
    return leaves


def _backward(value: Node, cotangent: Node) -> list[tuple[Node, Node]]:
    """Return for each argument of an operation the argument and its cotangent."""
    if value.op == "view":
        source = value.args[0]
        return [(source, node("sum", cotangent, width=source.width, attribute=value.attribute))]

    def repeated(of_result: Node) -> Node:
        return node("view", of_result, width=value.args[0].width, attribute=value.attribute)

    if value.op == "sum":
        return [(value.args[0], repeated(cotangent))]
    if value.op == "amax":
        is_largest = node("eq", value.args[0], repeated(value))
        count = node("sum", is_largest, width=value.width, attribute=value.attribute)
        return [(value.args[0], repeated(cotangent / count) * is_largest)]
    cotangents = PRIMITIVES[value.op].derivative(value, cotangent, *value.args)
    return [(arg, result) for arg, result in zip(value.args, cotangents, strict=True) if result is not None]
