"""Rewrites a traced step as the body of a loop.

First, every value becomes a row of neighbouring features: a view of them is a slice, and values side by side are joined
(`as_rows`). Where elements move in other ways, only a state that holds matrices has a loop (`seriatim.compiler.heads`).

Then products of inputs with constant matrices move out of the loop, where one product computes all steps (`lower`).
Where a sum contains products of the state, they are added to the result from before the loop. Biases stay inside, where
they cost almost nothing. A product of which only slices are used becomes one product per slice: each gate is separate.

Last, the vector-Jacobian product of the step follows, as expressions of the same kind (`differentiate`).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.step_operators import OPERATORS as STEP_OPERATORS
from .expressions import (
    AttentionKind,
    AttentionOperands,
    Matrix,
    Node,
    StridedView,
    cat,
    depends,
    merged,
    node,
    number,
    operands_of,
    rebuild,
    sliced,
    walk,
    widened,
    with_offsets,
)
from .fallback_reasons import CallSite, Reason, UnsupportedError
from .operators import PRIMITIVES, NotCompiledError
from .recorder import Traced

SHAPES = (
    "works on tensors of more than two dimensions, which is compiled where the state has some, too; "
    "write a product with a matrix as x @ W"
)
SINGLE_STEPS = {"gather", "count", *STEP_OPERATORS} - {"attend_to_rows", "dropout_mask"}
"""Operations that loops do not compile."""
INSIDE = ("state", "memory")
"""Leaves that differ from step to step in a way that is not known before the loop."""


def as_rows(traced: Traced, memories: Mapping[int, int]) -> Traced:
    """Rewrite a step so that every value is a row of features.

    ``memories`` are the leaves of the state that the step attends to and does not change, with the size of an entry.

    Raises:
        UnsupportedError: the step does something that is compiled in single steps only; the error holds every reason.
    """
    rewriting = _Rewriting(traced, memories)
    # every value is rewritten, also after the first that cannot be: the user sees all reasons at once
    for value in walk([traced.outputs, *traced.states]):
        try:
            rewriting.rows[value] = rewriting.rewrite(value)
        except NotCompiledError as error:  # the search for reasons goes on with a value that causes none
            site = traced.call_sites.get(value, CallSite("the step", None))
            rewriting.reasons.append(site.reason(str(error)))
            rewriting.rows[value] = number(0, value.width)
    changed = [i for i in memories if traced.states[i] is not traced.leaves[1 + i]]
    reasons = rewriting.reasons or [Reason("the step changes a memory") for _ in changed[:1]]
    if reasons:
        raise UnsupportedError(reasons)
    return traced._replace(
        outputs=rewriting.rows[traced.outputs],
        states=tuple(rewriting.rows[value] for i, value in enumerate(traced.states) if i not in memories),
        constants=rewriting.constants,
        leaves=(traced.leaves[0], *rewriting.leaf_rows.values()),
        call_sites={},
    )


class _Rewriting:
    def __init__(self, traced: Traced, memories: Mapping[int, int]) -> None:
        numbers = itertools.count()  # of the leaves of the state other than memories
        self.leaf_rows = {
            leaf: node("memory", width=memories[i], attribute=i)
            if i in memories
            else node("state", width=leaf.width, attribute=next(numbers))
            for i, leaf in enumerate(traced.leaves[1:])
        }
        self.rows: dict[Node, Node] = {}
        self.constants = traced.constants
        self.rows_of_matrices: dict[tuple[int, int, int], int] = {}
        self.reasons: list[Reason] = []

    def rewrite(self, value: Node) -> Node:
        args = [self.rows[arg] for arg in value.args]
        if value in self.leaf_rows:
            return self.leaf_rows[value]
        if value.op == "attend_to_rows":
            return _attention(value, args)
        if any(arg.op == "memory" for arg in args):
            raise NotCompiledError("reads a memory; only attention to it is compiled")
        if value.op == "view":
            return _features(args[0], value.attribute)
        if value.op == "join":
            return _joined(args, value.attribute, value.width)
        if value.op == "product":
            return self.product(args[0], value.attribute)
        if value.op in ("sum", "amax") and isinstance(value.attribute, StridedView):
            if value.width > 1:
                raise NotCompiledError(SHAPES)
            return node(value.op, args[0], width=1)
        if value.op in SINGLE_STEPS:
            raise NotCompiledError("is compiled in single steps only")
        return rebuild(value, args)

    def product(self, rows: Node, matrix: Matrix) -> Node:
        """Split a product: rows that depend on the inputs alone are multiplied before the loop."""
        result: Node = number(0)
        for start, group in with_offsets(_by_time(rows)):
            factor = matrix
            if group is not rows:
                factor = matrix._replace(constant=self.rows_of(matrix.constant, start, start + group.width))
            result = result + node("product", group, width=matrix.stop - matrix.start, attribute=factor)
        return result

    def rows_of(self, matrix: int, start: int, stop: int) -> int:
        """Return the number of the constant that holds some rows of a matrix."""
        key = (matrix, start, stop)
        if key not in self.rows_of_matrices:
            self.rows_of_matrices[key] = len(self.constants.outputs)
            self.constants = self.constants.with_rows(*key)
        return self.rows_of_matrices[key]


def _features(source: Node, view: StridedView) -> Node:
    """Return neighbouring features of a value, or one feature for all columns."""
    sizes, strides = merged(view.sizes, view.strides)
    if len(sizes) > 1 or strides[0] not in (0, 1):
        raise NotCompiledError(SHAPES)
    if strides[0] == 1:
        return sliced(source, view.offset, sizes[0])
    return widened(sliced(source, view.offset, 1), sizes[0])


def _joined(values: Sequence[Node], views: Sequence[StridedView], width: int) -> Node:
    """Return values side by side; a later one lies over the earlier ones."""
    segments: list[tuple[int, Node]] = []  # in order, each with its first feature
    for value, view in zip(values, views, strict=True):
        sizes, strides = merged(view.sizes, view.strides)
        if len(sizes) > 1 or strides[0] not in (0, 1):
            raise NotCompiledError(SHAPES)
        low, high = view.offset, view.offset + sizes[0]
        left = [(start, sliced(old, 0, min(old.width, low - start))) for start, old in segments if start < low]
        right = [
            (max(start, high), sliced(old, max(high - start, 0), old.width - max(high - start, 0)))
            for start, old in segments
            if start + old.width > high
        ]
        segments = [*left, (low, widened(value, sizes[0])), *right]
    result = cat([value for _, value in segments])
    assert result.width == width, "values side by side leave gaps"
    return result


def _attention(value: Node, args: Sequence[Node]) -> Node:
    """Return attention to entries of a memory."""
    others, scale = args[4:], value.attribute[5]  # perhaps a vector; perhaps the weights before and a filter
    kind = AttentionKind(float(scale), is_additive=len(others) % 2 == 1, is_located=len(others) >= 2)
    operands = AttentionOperands.of(args, kind)
    entries = [arg for arg in (operands.values, operands.keys, operands.lengths, operands.before) if arg is not None]
    if any(arg.op != "memory" for arg in entries) or any(arg.op != "vector" for arg in operands.weights):
        raise NotCompiledError("attends to something other than a memory that is a part of the state")
    return node("attend", *args, width=value.width, attribute=kind)


def _by_time(value: Node) -> list[Node]:
    """Split the rows of a product into neighbouring features that depend on the inputs alone, and others."""
    if value.op != "cat":
        return [value]
    is_inside = depends([value], lambda leaf: leaf.op in INSIDE)
    has_inputs = depends([value], lambda leaf: leaf.op in ("inputs", "noise"))
    groups = itertools.groupby(value.args, lambda arg: has_inputs[arg] and not is_inside[arg])
    return [cat(list(args)) for _, args in groups]


# ---- what is computed before the loop


class Hoisted(NamedTuple):
    """The content of a ``hoisted`` leaf: a sum of inputs times matrices, or (``plain``) any function of the inputs."""

    products: tuple[tuple[Node, Matrix], ...]
    plain: Node | None = None


class Loop(NamedTuple):
    """One step, with ``hoisted`` leaves (whose attribute is a `Hoisted`) for what is computed before the loop."""

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
        self.boundaries: dict[Node, set[int]] = {}
        """For each product, the first and last features of the slices that are never used as a whole."""
        self.depends_on_inputs = depends(roots, lambda leaf: leaf.op in {"inputs", "noise"})
        self.is_inside = depends(roots, lambda leaf: leaf.op in INSIDE)
        self.has_reduction = depends(roots, lambda value: value.op in ("sum", "amax"))
        used_in_full = set(roots)
        for value in walk(roots):
            self.uses.update(value.args)
            if value.op == "slice":
                boundaries = self.boundaries.setdefault(value.args[0], {0, value.args[0].width})
                boundaries |= {value.attribute, value.attribute + value.width}
            else:
                used_in_full.update(value.args)
        self.boundaries.update({value: {0, value.width} for value in used_in_full})

    def lower(self, value: Node) -> Node:
        if value not in self.lowered:
            self.lowered[value] = self._lower(value)
        return self.lowered[value]

    def _lower(self, value: Node) -> Node:
        is_before = self.depends_on_inputs[value] and not self.is_inside[value]
        if is_before and (not value.args or self.has_reduction[value]):
            return _hoisted(Hoisted((), value), value.width)
        if not value.args:
            return value
        if value.op == "add":
            return self.sum(value)
        if value.op == "product":
            return self.slice_of_product(value, 0, value.width)
        if value.op == "slice" and value.args[0].op == "product":
            return self.slice_of_product(value.args[0], value.attribute, value.width)
        return rebuild(value, [self.lower(arg) for arg in value.args])

    def slice_of_product(self, product: Node, start: int, width: int) -> Node:
        """Return features of a product; each segment between two boundaries is one value."""
        slices = []
        for low, high in itertools.pairwise(sorted(self.boundaries[product])):
            first, last = max(low, start), min(high, start + width)
            if first < last:
                slices.append(sliced(self.segment_of_product(product, low, high), first - low, last - first))
        return cat(slices)

    def segment_of_product(self, product: Node, start: int, stop: int) -> Node:
        rows, matrix = product.args[0], product.attribute._replace(start=start, stop=stop)
        if self.is_inside[product]:
            return affine(number(0, stop - start), [(self.lower(rows), matrix)])
        return _hoisted(Hoisted(((rows, matrix),)), stop - start)

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
        total = _hoisted(Hoisted(tuple(before)), value.width) if before else number(0)
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
        """Return the factors of a term that is a product, or one segment of a product, and is used once; else None."""
        product, start = (term.args[0], term.attribute) if term.op == "slice" else (term, 0)
        stop = start + term.width
        if product.op != "product" or self.uses[term] > 1:
            return None
        if (start, stop) not in itertools.pairwise(sorted(self.boundaries[product])):
            return None
        return product.args[0], product.attribute._replace(start=start, stop=stop)


def affine(base: Node, products: Sequence[tuple[Node, Matrix]]) -> Node:
    """Return ``base`` plus rows times matrices."""
    rows, matrices = zip(*products, strict=True)
    return node("affine", base, *rows, width=base.width, attribute=matrices)


def _hoisted(content: Hoisted, width: int) -> Node:
    return node("hoisted", width=width, attribute=content)


# ---- the vector-Jacobian product


Contribution = tuple[int, int, Node]
"""A cotangent for some features of a value: the first feature, the number of features, and the cotangent."""


class Gradient(NamedTuple):
    """The cotangents of one step."""

    leaves: dict[Node, Node]  # the cotangent of every hoisted, state and vector leaf that the step uses
    attentions: list[tuple[Node, Node]]  # attention to a memory, cotangent of the context
    products: list[tuple[Node, Matrix, Node]]  # rows, matrix, cotangent of the product


def differentiate(cotangents: Mapping[Node, Node]) -> Gradient:
    """Return the cotangents of all leaves, given the cotangents of some values that depend on them."""
    # a value may be used by slices and by several operations, each of which contributes to its cotangent
    contributions: dict[Node, list[Contribution]] = defaultdict(list)
    for value, cotangent in cotangents.items():
        contributions[value].append((0, value.width, cotangent))
    leaves: dict[Node, Node] = {}
    products: list[tuple[Node, Matrix, Node]] = []
    attentions: list[tuple[Node, Node]] = []

    # users come before their arguments in this order, so that all contributions are there when a cotangent is summed
    for value in reversed(walk(list(cotangents))):
        if value not in contributions or value.op == "number":
            continue
        total = _gather(value, contributions.pop(value))
        if value.op in ("hoisted", "state", "vector"):
            leaves[value] = total
        else:
            if value.op == "attend":
                attentions.append((value, total))
            for arg, start, cotangent in _backward(value, total, products):
                if arg.width == 1 < cotangent.width:
                    cotangent = node("sum", cotangent, width=1)
                width = value.width if value.op == "slice" else arg.width
                contributions[arg].append((start, width, cotangent))
    return Gradient(leaves, attentions, products)


def _backward(value: Node, cotangent: Node, products: list[tuple[Node, Matrix, Node]]) -> list[tuple[Node, int, Node]]:
    """Return for each argument of an operation: the argument, the first feature, and the cotangent."""
    if value.op == "slice":
        return [(value.args[0], value.attribute, cotangent)]
    if value.op == "cat":
        return [(arg, 0, sliced(cotangent, start, arg.width)) for start, arg in with_offsets(value.args)]
    if value.op == "sum":
        return [(value.args[0], 0, cotangent * number(1, value.args[0].width))]
    if value.op == "amax":
        is_largest = node("eq", value.args[0], value)
        return [(value.args[0], 0, cotangent * is_largest / node("sum", is_largest, width=1))]
    if value.op == "attend":
        operands = operands_of(value)
        query = node("attend_gradient", value, cotangent, width=operands.query.width)
        # the instruction that computes the cotangent of the query adds to those of the parameters
        return [(operands.query, 0, query), *((weight, 0, number(0, weight.width)) for weight in operands.weights)]
    if value.op == "affine":
        base, *rows = value.args
        results = [(base, 0, cotangent)]
        for row, matrix in zip(rows, value.attribute, strict=True):
            products.append((row, matrix, cotangent))
            results.append((row, 0, affine(number(0, row.width), [(cotangent, matrix._replace(transposed=True))])))
        return results
    cotangents = PRIMITIVES[value.op].derivative(value, cotangent, *value.args)
    return [(arg, 0, result) for arg, result in zip(value.args, cotangents, strict=True) if result is not None]


def _gather(value: Node, contributions: list[Contribution]) -> Node:
    """Sum the cotangents of a value; features without a cotangent get zeros."""
    if all(width == value.width for _, width, _ in contributions):
        return _sum([cotangent for _, _, cotangent in contributions], value.width)
    boundaries = sorted({0, value.width} | {at for start, width, _ in contributions for at in (start, start + width)})
    segments = []
    for low, high in itertools.pairwise(boundaries):
        terms = [
            term if term.width == 1 else sliced(term, low - start, high - low)
            for start, width, term in contributions
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
            products.extend(zip(rows, term.attribute, strict=True))
            term = number(0) if base.op == "number" else base
        total = total + term
    if total.width < width:
        total = total * number(1, width) if total.op != "number" else number(total.attribute, width)
    return affine(total, products) if products else total
