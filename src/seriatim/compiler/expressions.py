"""One step of a recurrence as a graph of expressions.

Every value stands for a row of ``width`` features; a batch is many rows, and no expression mixes them. A value of width
1 goes with every width. Equal expressions are one object, so that what is computed twice is seen to be the same.

Leaves, told apart by ``note``:
    ``number``    a constant, its value in ``note``
    ``vector``    one row of parameters or constants, the same for all rows of the batch
    ``inputs``    what the step is given
    ``noise``     random numbers, uniform in [0, 1)
    ``state``     one part of the state before the step
    ``sequence``  computed from the inputs of all steps at once, before the loop
    ``cotangent`` what the backward pass is given

Inner values: the operations of `seriatim.compiler.primitives`, and
    ``slice``     features from ``note`` on, of a value that is kept in memory
    ``cat``       features of several values, one after another
    ``sum``, ``amax``  over the features of a row
    ``product``   a row times the `Matrix` in ``note``
    ``affine``    the first argument (or nothing) plus the others, each times its `Matrix` in ``note``: kept in memory
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

LEAVES = frozenset({"number", "vector", "inputs", "noise", "state", "sequence", "cotangent"})
STRUCTURE = frozenset({"slice", "cat", "sum", "amax", "product", "affine"})


class Matrix(NamedTuple):
    """Columns ``start`` to ``stop`` of a constant matrix; transposed, they are the rows of what acts."""

    constant: int
    start: int
    stop: int
    transposed: bool = False


class Node:
    """One value of the graph. Made by `node` and never changed."""

    __slots__ = ("__weakref__", "args", "note", "op", "width")

    def __init__(self, op: str, args: tuple["Node", ...], width: int, note: Any) -> None:
        self.op, self.args, self.width, self.note = op, args, width, note

    def __repr__(self) -> str:
        inside = ", ".join([repr(arg) for arg in self.args] + ([] if self.note is None else [repr(self.note)]))
        return f"{self.op}:{self.width}({inside})"


_known: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def node(op: str, *args: Node, width: int | None = None, note: Any = None) -> Node:
    """The one object for an expression; ``width`` is the widest argument's unless given."""
    if width is None:
        width = max(arg.width for arg in args)
    key = (op, tuple(map(id, args)), width, type(note), note)
    found = _known.get(key)
    if found is None:
        found = _known[key] = Node(op, args, width, note)
    return found


def number(value: float, width: int = 1) -> Node:
    """A constant."""
    return node("number", width=width, note=float(value))


def elementwise(value: Node) -> bool:
    """Whether each feature of a value depends on the same feature of its arguments alone."""
    return value.op not in LEAVES and value.op not in STRUCTURE


def cat(parts: Sequence[Node]) -> Node:
    """Features of several values, one after another; pieces that were cut from one value are joined again."""
    joined: list[Node] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and _adjacent(last, part):
            start = last.note if last.op == "slice" else 0
            source = last.args[0]
            joined[-1] = cut(source, start, last.width + part.width)
        else:
            joined.append(part)
    return joined[0] if len(joined) == 1 else node("cat", *joined, width=sum(part.width for part in joined))


def _adjacent(left: Node, right: Node) -> bool:
    return (
        left.op == right.op == "slice"
        and left.args[0] is right.args[0]
        and int(left.note) + left.width == int(right.note)
    )


def cut(value: Node, start: int, width: int) -> Node:
    """Features ``start`` to ``start + width``: of what is behind an expression rather than of the expression."""
    return _cut(value, start, width, {})


def _cut(value: Node, start: int, width: int, done: dict[Node, Node]) -> Node:
    if start == 0 and width == value.width:
        return value
    assert 0 <= start <= start + width <= value.width
    if value in done:
        return done[value]
    if value.op == "number":
        found = number(value.note, width)
    elif value.op == "slice":
        found = _cut(value.args[0], value.note + start, width, {})
    elif value.op == "cat":
        found = cat([_cut(part, low, size, {}) for part, low, size in _parts(value, start, width)])
    elif elementwise(value):
        parts = [arg if arg.width == 1 else _cut(arg, start, width, done) for arg in value.args]
        found = node(value.op, *parts, note=value.note)
    else:
        found = node("slice", value, width=width, note=start)
    done[value] = found
    return found


def _parts(value: Node, start: int, width: int) -> Iterator[tuple[Node, int, int]]:
    """The arguments of ``cat`` that features ``start`` to ``start + width`` lie in, with where and how many."""
    position = 0
    for part in value.args:
        low, high = max(start, position), min(start + width, position + part.width)
        if low < high:
            yield part, low - position, high - low
        position += part.width


def pieces(value: Node) -> list[tuple[int, Node]]:
    """Cuts a value where what is behind it changes, so that no piece contains a ``cat``; with where each starts."""
    places = sorted({0, value.width, *_seams(value, {})})
    return [(low, cut(value, low, high - low)) for low, high in itertools.pairwise(places)]


def _seams(value: Node, done: dict[Node, frozenset[int]]) -> frozenset[int]:
    if value in done:
        return done[value]
    found: set[int] = set()
    if value.op == "cat":
        position = 0
        for part in value.args:
            found |= {position, *(position + seam for seam in _seams(part, done))}
            position += part.width
    elif elementwise(value):
        for arg in value.args:
            if arg.width == value.width > 1:
                found |= _seams(arg, done)
    done[value] = frozenset(found)
    return done[value]


def walk(roots: Sequence[Node]) -> list[Node]:
    """All values behind ``roots``, arguments before what uses them."""
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        value, ready = stack.pop()
        if value in order:
            continue
        if ready:
            order[value] = None
        else:
            stack.append((value, True))
            stack.extend((arg, False) for arg in reversed(value.args))
    return list(order)


def depends(roots: Sequence[Node], on: Callable[[Node], bool]) -> dict[Node, bool]:
    """For every value behind ``roots``: whether a leaf for which ``on`` holds is behind it."""
    found: dict[Node, bool] = {}
    for value in walk(roots):
        found[value] = on(value) or any(found[arg] for arg in value.args)
    return found


def replace(roots: Sequence[Node], known: Mapping[Node, Node]) -> list[Node]:
    """Rebuilds expressions with some of their values exchanged."""
    done = dict(known)
    for value in walk(roots):
        if value not in done:
            done[value] = rebuild(value, [done[arg] for arg in value.args])
    return [done[root] for root in roots]


def rebuild(value: Node, args: Sequence[Node]) -> Node:
    """The same operation on other arguments of the same widths."""
    if all(new is old for new, old in zip(args, value.args, strict=True)):
        return value
    if value.op == "slice":
        return cut(args[0], value.note, value.width)
    if value.op == "cat":
        return cat(args)
    return node(value.op, *args, width=value.width, note=value.note)
