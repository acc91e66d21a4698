"""One step of a recurrence as a graph of expressions.

Every value stands for a row of ``width`` features. A batch consists of many rows, and no expression mixes them. A value
of width 1 is broadcast to every other width. Equal expressions are the same object, so that nothing is computed twice.

Leaves; ``note`` tells leaves of one kind apart:
    ``number``    a constant, its value in ``note``
    ``vector``    one row of parameters or constants, the same for all rows of the batch
    ``inputs``    the inputs of the step
    ``noise``     random numbers, uniform in [0, 1), or 0 and 1
    ``state``     one part of the state before the step
    ``sequence``  computed from the inputs of all steps at once, before the loop
    ``cotangent`` the gradient by a result of the step, the input of the backward pass

Inner values are the operations of `seriatim.compiler.primitives`, and
    ``slice``     features from ``note`` on, of a value that is stored in memory
    ``cat``       the features of several values in a row
    ``sum``, ``amax``  over the features of a row
    ``product``   a row times the `Matrix` in ``note``
    ``affine``    the first argument plus each other argument times its `Matrix` in ``note``; stored in memory
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

LEAVES = frozenset({"number", "vector", "inputs", "noise", "state", "sequence", "cotangent"})
STRUCTURE = frozenset({"slice", "cat", "sum", "amax", "product", "affine"})


class Matrix(NamedTuple):
    """Columns ``start`` to ``stop`` of a constant matrix; if ``transposed``, these columns are used as rows."""

    constant: int
    start: int
    stop: int
    transposed: bool = False


class Node:
    """One value of the graph. Create nodes with `node` and never change them."""

    __slots__ = ("__weakref__", "args", "note", "op", "width")

    def __init__(self, op: str, args: tuple["Node", ...], width: int, note: Any) -> None:
        self.op, self.args, self.width, self.note = op, args, width, note

    def __repr__(self) -> str:
        parts = [repr(arg) for arg in self.args] + ([] if self.note is None else [repr(self.note)])
        return f"{self.op}:{self.width}({', '.join(parts)})"


_nodes: WeakValueDictionary[tuple[Hashable, ...], Node] = WeakValueDictionary()


def node(op: str, *args: Node, width: int | None = None, note: Hashable = None) -> Node:
    """Return the only object for an expression; ``width`` is the width of the widest argument by default."""
    if width is None:
        width = max(arg.width for arg in args)
    key = (op, tuple(map(id, args)), width, type(note), note)
    value = _nodes.get(key)
    if value is None:
        value = _nodes[key] = Node(op, args, width, note)
    return value


def number(value: float, width: int = 1) -> Node:
    """Return a constant."""
    return node("number", width=width, note=float(value))


def is_elementwise(value: Node) -> bool:
    """Return whether each feature of a value depends on the same feature of its arguments alone."""
    return value.op not in LEAVES and value.op not in STRUCTURE


def cat(parts: Sequence[Node]) -> Node:
    """Join the features of several values; neighbouring slices of one value become one slice."""
    joined: list[Node] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and _are_adjacent(last, part):
            joined[-1] = cut(last.args[0], last.note, last.width + part.width)
        else:
            joined.append(part)
    return joined[0] if len(joined) == 1 else node("cat", *joined, width=sum(part.width for part in joined))


def _are_adjacent(left: Node, right: Node) -> bool:
    are_slices = left.op == right.op == "slice" and left.args[0] is right.args[0]
    return are_slices and int(left.note) + left.width == int(right.note)


def cut(value: Node, start: int, width: int) -> Node:
    """Return features ``start`` to ``start + width``; the slice moves to the arguments as far as possible."""
    return _cut(value, start, width, {})


def _cut(value: Node, start: int, width: int, cache: dict[Node, Node]) -> Node:
    if start == 0 and width == value.width:
        return value
    assert 0 <= start <= start + width <= value.width
    if value in cache:
        return cache[value]
    if value.op == "number":
        result = number(value.note, width)
    elif value.op == "slice":
        result = _cut(value.args[0], value.note + start, width, {})
    elif value.op == "cat":
        result = cat([_cut(part, low, size, {}) for part, low, size in _cat_parts(value, start, width)])
    elif is_elementwise(value):
        parts = [arg if arg.width == 1 else _cut(arg, start, width, cache) for arg in value.args]
        result = node(value.op, *parts, note=value.note)
    else:
        result = node("slice", value, width=width, note=start)
    cache[value] = result
    return result


def _cat_parts(value: Node, start: int, width: int) -> Iterator[tuple[Node, int, int]]:
    """Yield the arguments of a ``cat`` that overlap a range of features, with start and size of the overlap."""
    position = 0
    for part in value.args:
        low, high = max(start, position), min(start + width, position + part.width)
        if low < high:
            yield part, low - position, high - low
        position += part.width


def pieces(value: Node) -> list[tuple[int, Node]]:
    """Cut a value into pieces that contain no ``cat``; each comes with its first feature."""
    places = sorted({0, value.width, *_seams(value, {})})
    return [(low, cut(value, low, high - low)) for low, high in itertools.pairwise(places)]


def _seams(value: Node, cache: dict[Node, frozenset[int]]) -> frozenset[int]:
    """Return the features at which an argument of a ``cat`` begins."""
    if value in cache:
        return cache[value]
    seams: set[int] = set()
    if value.op == "cat":
        position = 0
        for part in value.args:
            seams |= {position, *(position + seam for seam in _seams(part, cache))}
            position += part.width
    elif is_elementwise(value):
        for arg in value.args:
            if arg.width == value.width > 1:
                seams |= _seams(arg, cache)
    cache[value] = frozenset(seams)
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
        return cut(args[0], value.note, value.width)
    if value.op == "cat":
        return cat(args)
    return node(value.op, *args, width=value.width, note=value.note)
