"""One step of a recurrence as a graph of expressions.

Every value stands for a row of ``width`` features. A batch consists of many rows, and no expression mixes them. A value
of width 1 is broadcast to every other width. Equal expressions are the same object, so that nothing is computed twice.

Leaves; ``attribute`` tells leaves of one kind apart:
    ``number``    a constant, its value in ``attribute``
    ``vector``    one row of parameters or constants, the same for all rows of the batch
    ``inputs``    the inputs of the step
    ``noise``     random numbers, uniform in [0, 1), or 0 and 1
    ``state``     one leaf of the state before the step
    ``hoisted``   computed from the inputs of all steps at once, before the loop
    ``cotangent`` the gradient by a result of the step, the input of the backward pass
    ``memory``    entries to attend to; neither they nor their weights are features of a row, as their number differs

Inner values are the operations of `seriatim.compiler.operators`, and
    ``product``   a row times the `Matrix` in ``attribute``
    ``sum``, ``amax``  over the features of a row; with a `StridedView` over some dimensions, in single steps and heads

only in a traced step, before `seriatim.compiler.lower`, in single steps and in heads (`seriatim.compiler.heads`):
    ``view``      elements of another value, at the positions that the `StridedView` in ``attribute`` gives
    ``join``      several values, one after another, each stored at the positions of its `StridedView` in ``attribute``
    ``gather``    a row of the table ``attribute``, at the index in its argument
    ``count``     a count plus the number in ``attribute``
    an operator of `seriatim.core.step_operators`, with its settings and the shapes of its arguments in ``attribute``

and only in loops:
    ``slice``     features from ``attribute`` on, of a value that is stored in memory
    ``cat``       the features of several values in a row
    ``affine``    the first argument plus each other argument times its `Matrix` in ``attribute``; stored in memory
    ``attend``    attention to a memory, the context Σ_n α_n m_n; ``attribute`` is an `AttentionKind`, and `operands_of`
                  names the arguments
    ``attended``  the weights α of an ``attend``, only to compare them
    ``attend_gradient``  of an ``attend`` and the cotangent of its context: the cotangent of the query
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

Item = TypeVar("Item")
LEAVES = frozenset({"number", "vector", "inputs", "noise", "state", "hoisted", "cotangent", "memory"})
ATTENTION = frozenset({"attend", "attended", "attend_gradient"})
STRUCTURE = frozenset({"slice", "cat", "sum", "amax", "product", "affine"}) | ATTENTION
STORED = frozenset({"affine", "attend", "attend_gradient"})
"""Operations whose result is stored in memory before anything else of its phase is computed."""


class Matrix(NamedTuple):
    """Columns ``start`` to ``stop`` of a constant matrix; if ``transposed``, these columns are used as rows."""

    constant: int
    start: int
    stop: int
    transposed: bool = False

    def joined(self, following: "Matrix") -> "Matrix | None":
        """Return these columns and the following ones as one range; None if they are not adjacent."""
        if (self.constant, self.stop, self.transposed) != (following.constant, following.start, following.transposed):
            return None
        return self._replace(stop=following.stop)


class Node:
    """One value of the graph. Create nodes with `node` and never change them.

    The operators ``+ - * /`` make nodes, too. They leave out a term that is the number 0 and a factor that is 1.
    """

    __slots__ = ("__weakref__", "args", "attribute", "op", "width")

    def __init__(self, op: str, args: tuple["Node", ...], width: int, attribute: Any) -> None:
        self.op, self.args, self.width, self.attribute = op, args, width, attribute

    def __repr__(self) -> str:
        operands = [*self.args] if self.attribute is None else [*self.args, self.attribute]
        return f"{self.op}:{self.width}({', '.join(map(repr, operands))})"

    def __add__(self, other: "Value") -> "Node":
        if self.is_number(0):
            return as_node(other)
        return self._combine("add", other, neutral=0)

    def __radd__(self, other: float) -> "Node":
        return number(other) + self

    def __sub__(self, other: "Value") -> "Node":
        return self._combine("sub", other, neutral=0)

    def __rsub__(self, other: float) -> "Node":
        return number(other) - self

    def __mul__(self, other: "Value") -> "Node":
        if self.is_number(1):
            return as_node(other)
        return self._combine("mul", other, neutral=1)

    def __rmul__(self, other: float) -> "Node":
        return number(other) * self

    def __truediv__(self, other: "Value") -> "Node":
        return self._combine("div", other, neutral=1)

    def __rtruediv__(self, other: float) -> "Node":
        return number(other) / self

    def __neg__(self) -> "Node":
        return node("neg", self)

    def _combine(self, op: str, other: "Value", *, neutral: float) -> "Node":
        right = as_node(other)
        return self if right.is_number(neutral) else node(op, self, right)

    def is_number(self, expected: float) -> bool:
        """Return whether this is a certain number, of width 1."""
        return self.op == "number" and self.width == 1 and bool(self.attribute == expected)


Value = Node | float

_nodes: WeakValueDictionary[tuple[Hashable, ...], Node] = WeakValueDictionary()


def node(op: str, *args: Node, width: int | None = None, attribute: Hashable = None) -> Node:
    """Return the only object for an expression; ``width`` is the width of the widest argument by default."""
    if width is None:
        width = max(arg.width for arg in args)
    key = (op, tuple(map(id, args)), width, type(attribute), attribute)
    value = _nodes.get(key)
    if value is None:
        value = _nodes[key] = Node(op, args, width, attribute)
    return value


def number(value: float, width: int = 1) -> Node:
    """Return a constant."""
    return node("number", width=width, attribute=float(value))


def as_node(value: Value) -> Node:
    """Return a Python number as an expression."""
    return value if isinstance(value, Node) else number(value)


def widened(value: Node, width: int) -> Node:
    """Repeat a value of width 1; wider ones are unchanged."""
    return value * number(1, width) if value.width < width else value


def with_offsets(values: Sequence[Node]) -> Iterator[tuple[int, Node]]:
    """Iterate over values that lie side by side, each with its first feature."""
    return zip(itertools.accumulate((value.width for value in values), initial=0), values, strict=False)


def is_elementwise(value: Node) -> bool:
    """Return whether each feature of a value depends on the same feature of its arguments alone."""
    return value.op not in LEAVES and value.op not in STRUCTURE


def merge_neighbours(items: Iterable[Item], merge: Callable[[Item, Item], Item | None]) -> list[Item]:
    """Replace successive items by the one that ``merge`` returns; where it returns None, they stay apart."""
    merged: list[Item] = []
    for item in items:
        joined = merge(merged[-1], item) if merged else None
        if joined is None:
            merged.append(item)
        else:
            merged[-1] = joined
    return merged


def cat(values: Sequence[Node]) -> Node:
    """Join the features of several values; neighbouring slices of one value become one slice."""

    def merge(left: Node, right: Node) -> Node | None:
        are_slices = left.op == right.op == "slice" and left.args == right.args
        if are_slices and left.attribute + left.width == right.attribute:
            return sliced(left.args[0], left.attribute, left.width + right.width)
        return None

    joined = merge_neighbours(values, merge)
    return joined[0] if len(joined) == 1 else node("cat", *joined, width=sum(value.width for value in joined))


def sliced(value: Node, start: int, width: int) -> Node:
    """Return features ``start`` to ``start + width``; the slice moves to the arguments as far as possible."""
    return _sliced(value, start, width, {})


def _sliced(value: Node, start: int, width: int, cache: dict[Node, Node]) -> Node:
    if start == 0 and width == value.width:
        return value
    assert 0 <= start <= start + width <= value.width
    if value in cache:
        return cache[value]
    if value.op == "number":
        result = number(value.attribute, width)
    elif value.op == "slice":
        result = _sliced(value.args[0], value.attribute + start, width, {})
    elif value.op == "cat":
        slices = []
        for first, arg in with_offsets(value.args):
            low, high = max(start - first, 0), min(start + width - first, arg.width)
            if low < high:
                slices.append(_sliced(arg, low, high - low, {}))
        result = cat(slices)
    elif is_elementwise(value):
        args = [arg if arg.width == 1 else _sliced(arg, start, width, cache) for arg in value.args]
        result = node(value.op, *args, attribute=value.attribute)
    else:
        result = node("slice", value, width=width, attribute=start)
    cache[value] = result
    return result


def segments(value: Node) -> list[tuple[int, Node]]:
    """Cut a value into segments that contain no ``cat``; each comes with its first feature."""
    boundaries = sorted({0, value.width, *_boundaries(value, {})})
    return [(low, sliced(value, low, high - low)) for low, high in itertools.pairwise(boundaries)]


def _boundaries(value: Node, cache: dict[Node, frozenset[int]]) -> frozenset[int]:
    """Return the features at which an argument of a ``cat`` begins."""
    if value in cache:
        return cache[value]
    boundaries: set[int] = set()
    if value.op == "cat":
        for first, arg in with_offsets(value.args):
            boundaries |= {first, *(first + boundary for boundary in _boundaries(arg, cache))}
    elif is_elementwise(value):
        for arg in value.args:
            if arg.width == value.width > 1:
                boundaries |= _boundaries(arg, cache)
    cache[value] = frozenset(boundaries)
    return cache[value]


def walk(roots: Sequence[Node], is_leaf: Callable[[Node], bool] = lambda value: False) -> list[Node]:
    """Return all values that ``roots`` depend on, arguments first; the arguments of leaves are left out."""
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        value, ready = stack.pop()
        if value in order:
            continue
        if ready or is_leaf(value):
            order[value] = None
        else:
            stack.append((value, True))
            stack.extend((arg, False) for arg in reversed(value.args))
    return list(order)


def depends(roots: Sequence[Node], on: Callable[[Node], bool]) -> dict[Node, bool]:
    """Return for every value that ``roots`` depend on whether it depends on a value for which ``on`` holds."""
    result: dict[Node, bool] = {}
    for value in walk(roots):
        result[value] = on(value) or any(result[arg] for arg in value.args)
    return result


def rebuild(value: Node, args: Sequence[Node]) -> Node:
    """Apply the operation of a value to other arguments of the same widths."""
    if all(new is old for new, old in zip(args, value.args, strict=True)):
        return value
    if value.op == "slice":
        return sliced(args[0], value.attribute, value.width)
    if value.op == "cat":
        return cat(args)
    return node(value.op, *args, width=value.width, attribute=value.attribute)


class StridedView(NamedTuple):
    """Elements of a row: their number and distance along each dimension, and the position of the first one."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another without gaps."""
        expected = contiguous(self.sizes)
        return all(size == 1 or a == b for size, a, b in zip(self.sizes, self.strides, expected, strict=True))


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the distances along dimensions of elements without gaps."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def merged(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Join neighbouring dimensions along which elements are equally far apart."""
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


def common(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return dimensions from which each shape follows by joining neighbours, or None."""
    cuts = sorted({math.prod(shape[i:]) for shape in shapes for i in range(len(shape))})
    if any(b % a for a, b in itertools.pairwise(cuts)):
        return None
    sizes = [cuts[0], *(b // a for a, b in itertools.pairwise(cuts))]
    return tuple(reversed([size for size in sizes if size > 1] or [1]))


def refined(view: StridedView, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances of a view along dimensions that divide its own."""
    coarse, distances = map(list, merged(view.sizes, view.strides))
    strides: list[int] = []
    rest, distance = coarse.pop(), distances.pop()
    for size in reversed(sizes):
        if size == 1:
            strides.append(0)
            continue
        if rest == 1:
            rest, distance = coarse.pop(), distances.pop()
        assert rest % size == 0
        strides.append(distance)
        rest, distance = rest // size, distance * size
    return tuple(reversed(strides))


# ---- attention of one step to a memory


class AttentionKind(NamedTuple):
    """What kind of attention it is."""

    scale: float  # of scores that are products
    is_additive: bool
    is_located: bool  # whether the scores depend on the weights of the step before


class AttentionOperands(NamedTuple, Generic[Item]):
    """The arguments: expressions, their values, or slots."""

    query: Item
    values: Item  # (batch, time, size), entries of the memory
    keys: Item  # (batch, time, key_size)
    lengths: Item  # (batch,)
    vector: Item | None  # of additive scores
    before: Item | None  # (batch, time), the weights of the step before
    filter: Item | None  # over their neighbours

    @staticmethod
    def of(arguments: Sequence[Item], kind: AttentionKind) -> "AttentionOperands[Item]":
        """Return the arguments of an ``attend`` by name."""
        query, values, keys, lengths, *rest = arguments
        vector = rest.pop(0) if kind.is_additive else None
        before, taps = rest if kind.is_located else (None, None)
        return AttentionOperands(query, values, keys, lengths, vector, before, taps)

    @property
    def weights(self) -> list[Item]:
        """Return the parameters of the scores."""
        return [operand for operand in (self.vector, self.filter) if operand is not None]


def operands_of(value: Node) -> AttentionOperands[Node]:
    """Return the arguments of an ``attend`` by name."""
    return AttentionOperands.of(value.args, value.attribute)
