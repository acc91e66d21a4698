"""Sorts the operations of a step into phases, and decides where each value is stored.

A phase first computes products, then functions of their results, and stores them as the rows of the next phase's
products.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Literal, NamedTuple

from .expressions import STORED, Matrix, Node, pieces, walk
from .memory_attention import Operands

LAST = 10**9  # a phase after all others

Rows = Literal["now", "before", "after", "in", "out", "all"]
"""Which rows a step accesses: the rows of its own inputs, the rows of the state before or after it, one of two buffers
that are swapped after every step, or one row for the whole batch."""


class Role(StrEnum):
    """The purpose of a buffer. The members are part of the names in generated code."""

    STATES = auto()  # a part of the state: the initial state, then the state after each row
    SEQUENCE = auto()  # what is computed before the loop
    VECTOR = auto()  # a constant row
    MATRIX = auto()  # a constant matrix
    PACKED = auto()  # a part of a matrix in the layout that the products of the C++ code read
    ROWS = auto()  # the left factor of a product
    PRODUCT = auto()  # the result of a product
    OUTPUTS = auto()  # the outputs, unless they are a part of the state
    OUTPUT_COTANGENT = auto()
    SEQUENCE_COTANGENT = auto()
    PRODUCT_COTANGENT = auto()
    CARRY = auto()  # the cotangent of a part of the state, which passes from step to step
    SCRATCH = auto()  # a value of the backward pass that only its own step needs
    VECTOR_SUM = auto()  # the cotangent of a constant row, summed over rows and steps
    MEMORY = auto()  # a part of a memory (batch, time, ...)
    LENGTHS = auto()  # of a memory, integers
    ORDER = auto()  # the row of a memory for each sorted sequence, integers
    WEIGHTS = auto()  # of attention: those before the first step, then those of each row (rows, time)
    SCORE_COTANGENT = auto()  # of attention, for each row
    KEY_COTANGENT = auto()  # of additive attention, summed over steps
    WEIGHT_CARRY = auto()  # the cotangent of the weights that the next step reads


class Memory(NamedTuple):
    """One tensor that the loop reads or writes."""

    role: Role
    number: int = 0

    @property
    def name(self) -> str:
        """The name in generated code."""
        return f"{self.role}{self.number}"


class Buffer(NamedTuple):
    """The rows of a memory that a step accesses, of ``width`` features each."""

    memory: Memory
    rows: Rows
    width: int


class Place(NamedTuple):
    """Features of a buffer, from ``start`` on."""

    buffer: Buffer
    start: int = 0

    @property
    def is_sum(self) -> bool:
        """Whether what is stored here is added up over rows and steps."""
        return self.buffer.memory.role is Role.VECTOR_SUM

    def shifted(self, features: int) -> "Place":
        """Return the place that begins some features further on."""
        return Place(self.buffer, self.start + features)


class Store(NamedTuple):
    """A value or a piece of it, and where it is stored."""

    value: Node
    place: Place


class Product(NamedTuple):
    """Rows times a matrix, stored in a place or added to its content."""

    rows: Place
    matrix: Matrix
    place: Place
    depth: int
    width: int
    add: bool


class Attending(NamedTuple):
    """Attention to a memory, or its vector-Jacobian product."""

    value: Node  # the ``attend``
    number: int  # among all of the step
    query: Place
    place: Place  # of the context, or of the cotangent of the query
    cotangent: Place | None  # of the context, in the backward pass
    parameters: tuple[Place, ...]  # of the scores


@dataclass
class Phase:
    """Products, then attention, then stores."""

    products: list[Product] = field(default_factory=list)
    attentions: list[Attending] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass
class Kernel:
    """One direction of the loop."""

    phases: list[Phase]  # in order
    places: dict[Node, Place]  # where a value is stored after its phase; leaves are stored before the first phase
    depths: dict[Node, int]  # the phase that computes each value; −1 for leaves
    backward: bool  # whether the loop runs from the last step to the first

    @property
    def width(self) -> int | None:
        """The width of all values that a step computes, so that threads can share columns; None if widths differ."""
        widths = {store.value.width for phase in self.phases for store in phase.stores}
        widths.update(product.width for phase in self.phases for product in phase.products)
        if len(widths) != 1 or any(phase.attentions for phase in self.phases):
            return None
        width = widths.pop()
        for depth in range(len(self.phases)):
            for value in self.values_of(depth):
                place = self.loaded(value, depth)
                if value.op in ("sum", "amax") or (place and place.start % width and place.buffer.rows != "all"):
                    return None
        return width

    def buffers(self) -> set[Buffer]:
        """Return all buffers that the kernel accesses."""
        places = [*self.places.values()]
        for phase in self.phases:
            places += [store.place for store in phase.stores]
            places += [place for product in phase.products for place in (product.rows, product.place)]
            places += [place for attention in phase.attentions for place in (attention.query, attention.place)]
        return {place.buffer for place in places}

    def values_of(self, depth: int) -> list[Node]:
        """Return all values that a phase loads or computes, arguments first."""
        return self.walk([store.value for store in self.phases[depth].stores], depth)

    def walk(self, roots: Sequence[Node], depth: int) -> list[Node]:
        """Return the values that roots depend on, down to the values that a phase loads."""
        return walk(roots, lambda value: value.op in ("number", "memory") or self.loaded(value, depth) is not None)

    def loaded(self, value: Node, depth: int) -> Place | None:
        """Return the place from which a phase loads a value, or None if the phase computes it."""
        source, start = (value.args[0], value.note) if value.op == "slice" else (value, 0)
        place, since = self.places.get(source), self.depths.get(source, -1)
        if place is None or since > depth or (since == depth and source.op not in STORED):
            return None
        return place.shifted(start)

    def assign_phases(self, order: Sequence[Node]) -> None:
        """Assign each value to a phase: a product or attention to the phase after its rows, leaves to −1."""
        for value in order:
            if value.op in ("number", "memory") or self.loaded(value, 0):
                self.depths[value] = -1
            else:
                self.depths[value] = max(0, *(self.depths[arg] for arg in value.args)) + (value.op in STORED)
        self.phases = [Phase() for _ in range(1 + max(0, *self.depths.values()))]

    def store(self, value: Node, place: Place) -> None:
        """Store a value in the phase that computes it."""
        phase = self.phases[max(0, self.depths[value])]
        phase.stores += [Store(piece, place.shifted(start)) for start, piece in pieces(value)]


def schedule(
    stores: Sequence[Store],
    leaves: Mapping[Node, Place],
    *,
    destination: Callable[[Node], Place],
    allocate: Callable[[Role, Rows, int], Place],
    stored: Mapping[Node, Place],
    attentions: Mapping[Node, int],
    backward: bool = False,
) -> Kernel:
    """Sort the operations of a step into the phases of a kernel.

    Args:
        stores: the values that a step must store, and where.
        leaves: where values are stored before the first phase.
        destination: returns the place for the result of an ``affine`` value or of attention.
        allocate: returns a new buffer of a role, given its rows and its width.
        stored: where values are stored that may also be rows of a product or queries.
        attentions: the number of each ``attend``.
        backward: whether the loop runs from the last step to the first.
    """
    kernel, stored = Kernel([], dict(leaves), {}, backward), dict(stored)
    order = kernel.walk([store.value for store in stores], 0)
    kernel.assign_phases(order)

    def read(row: Node) -> Place:
        """Return where the rows of a product or queries are stored; store them if they are not."""
        source = kernel.loaded(row, LAST) or stored.get(row)
        if source is None:
            source = stored[row] = kernel.places[row] = allocate(Role.ROWS, "now", row.width)
            kernel.store(row, source)
        return source

    for value in order:
        if value.op not in STORED or value in leaves:
            continue
        place = kernel.places[value] = destination(value)
        if value.op != "affine":
            attend = value if value.op == "attend" else value.args[0]
            operands = Operands.of(attend.args, attend.note)
            cotangent = None if attend is value else read(value.args[1])
            parameters = tuple(kernel.places[part] for part in operands.weights)
            attention = Attending(attend, attentions[attend], read(operands.query), place, cotangent, parameters)
            kernel.phases[kernel.depths[value]].attentions.append(attention)
            continue
        base, *factors = value.args
        adds = base.op != "number"
        if adds and kernel.places.get(base) != place:
            kernel.store(base, place)
        for row, matrix in zip(factors, value.note, strict=True):
            product = Product(read(row), matrix, place, row.width, value.width, adds)
            kernel.phases[kernel.depths[value]].products.append(product)
            adds = True
    for value, place in stores:
        if kernel.places.get(value) != place:
            kernel.store(value, place)
            if not place.is_sum:
                kernel.places.setdefault(value, place)
    return kernel


def is_safe_in_place(kernel: Kernel) -> bool:
    """Return whether no value of a ``sequence`` is loaded after a cotangent was stored in its place."""
    written: set[tuple[Memory, int, int]] = set()
    for depth, phase in enumerate(kernel.phases):
        new = {
            (store.place.buffer.memory, store.place.start, store.place.start + store.value.width)
            for store in phase.stores
            if store.place.buffer.memory.role is Role.SEQUENCE
        }
        one_loop = len({store.value.width for store in phase.stores}) == 1
        for value in kernel.values_of(depth):
            place = kernel.loaded(value, depth)
            if place is None:
                continue
            for memory, start, stop in written | new:
                overlaps = memory == place.buffer.memory and place.start < stop and start < place.start + value.width
                # one loop over columns may read a feature and then overwrite it, but not read a neighbour
                may_overwrite = one_loop and (memory, start, stop) not in written and start == place.start
                if overlaps and not may_overwrite:
                    return False
        written |= new
    return True
