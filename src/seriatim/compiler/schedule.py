"""When each part of a step is computed, and where it is kept.

A step falls into phases: products, then functions of what they gave, stored as the rows of the next phase's products.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .expressions import Matrix, Node, pieces

ALWAYS = 10**9
"""A phase after all others."""

Rows = Literal["now", "before", "after", "in", "out", "all"]
"""Which rows a step sees: its own, those of the state before or after it, one of two buffers that take turns, or one
row for all."""


class Buffer(NamedTuple):
    """Memory of ``width`` features a row."""

    name: str
    rows: Rows
    width: int


class Place(NamedTuple):
    """Features of a buffer, from ``start`` on."""

    buffer: Buffer
    start: int = 0


class Store(NamedTuple):
    """A piece of a value, and where it goes."""

    value: Node
    place: Place


class Product(NamedTuple):
    """Rows times a matrix into a place; added to what is there, or not."""

    rows: Place
    matrix: Matrix
    place: Place
    depth: int
    width: int
    add: bool


@dataclass
class Phase:
    """Products, then stores; ``sums`` are added up over rows and steps."""

    products: list[Product] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    sums: list[Store] = field(default_factory=list)


@dataclass
class Kernel:
    """One direction of the loop."""

    phases: list[Phase]
    places: dict[Node, Place]
    """Where values are found once their phase is over; leaves from the first phase on."""
    depths: dict[Node, int]
    backward: bool = False

    @property
    def width(self) -> int | None:
        """The one width of everything a step computes, so that threads may share columns; None where there is none."""
        widths = {store.value.width for phase in self.phases for store in phase.stores + phase.sums}
        widths |= {product.width for phase in self.phases for product in phase.products}
        if len(widths) != 1:
            return None
        width = widths.pop()
        for depth in range(len(self.phases)):
            for value in self.needed(depth):
                place = self.loaded(value, depth)
                if value.op in ("sum", "amax") or (place and place.start % width and place.buffer.rows != "all"):
                    return None
        return width

    def buffers(self) -> set[Buffer]:
        """All memory it touches."""
        places = [*self.places.values()]
        for phase in self.phases:
            places += [store.place for store in phase.stores + phase.sums]
            places += [place for product in phase.products for place in (product.rows, product.place)]
        return {place.buffer for place in places}

    def needed(self, depth: int) -> list[Node]:
        """All values that a phase loads or computes, arguments first."""
        phase = self.phases[depth]
        return list(self.walk([store.value for store in phase.stores + phase.sums], depth))

    def walk(self, roots: Sequence[Node], depth: int) -> Iterator[Node]:
        """What is behind roots, down to what a phase loads."""
        seen: set[Node] = set()
        stack = [(root, False) for root in reversed(roots)]
        while stack:
            value, ready = stack.pop()
            if value in seen:
                continue
            if ready or self.loaded(value, depth) is not None or value.op == "number":
                seen.add(value)
                yield value
            else:
                stack.append((value, True))
                stack.extend((arg, False) for arg in reversed(value.args))

    def loaded(self, value: Node, depth: int) -> Place | None:
        """Where a phase finds a value, unless it computes it."""
        source, start = (value.args[0], value.note) if value.op == "slice" else (value, 0)
        place, since = self.places.get(source), self.depths.get(source, -1)
        if place is None or since > depth or (since == depth and source.op != "affine"):
            return None
        return place._replace(start=place.start + start)


Values = Sequence[tuple[Node, Place]]
"""Values, and where they go."""


class Schedule:
    """Sorts what a step computes into the phases of a kernel.

    Args:
        stores: values a step must leave, and where.
        given: what is in memory before the first phase.
        sums: values to be added up over rows and steps, and where.
        destination: where an ``affine`` value goes.
        fresh: a new place for rows of a product that are nowhere yet, by their width.
        known: where values are stored that may also be rows of a product.
    """

    def __init__(
        self,
        stores: Values,
        given: Mapping[Node, Place],
        *,
        sums: Values = (),
        destination: Callable[[Node], Place],
        fresh: Callable[[int], Place],
        known: Mapping[Node, Place],
    ) -> None:
        self.kernel = Kernel([], dict(given), {})
        self.destination, self.fresh, self.pending = destination, fresh, dict(known)
        order = list(self.kernel.walk([value for value, _ in [*stores, *sums]], 0))
        self.measure(order)
        for value in order:
            if value.op == "affine" and value not in given:
                self.place_products(value)
        for value, place in stores:
            if self.kernel.places.get(value) != place:
                self.put(value, place)
                self.kernel.places.setdefault(value, place)
        for value, place in sums:
            self.put(value, place, total=True)

    def measure(self, order: Sequence[Node]) -> None:
        """The phase in which each value is known: one after that of its rows where it is a product; -1 if given."""
        depths = self.kernel.depths
        for value in order:
            if value.op == "number" or self.kernel.loaded(value, 0):
                depths[value] = -1
            else:
                depths[value] = max(0, *(depths[arg] for arg in value.args)) + (value.op == "affine")
        self.kernel.phases = [Phase() for _ in range(1 + max(0, *depths.values()))]

    def put(self, value: Node, place: Place, *, total: bool = False) -> None:
        """Stores a value as soon as it is known, or adds it up."""
        phase = self.kernel.phases[max(0, self.kernel.depths[value])]
        for start, piece in pieces(value):
            (phase.sums if total else phase.stores).append(Store(piece, place._replace(start=place.start + start)))

    def place_products(self, value: Node) -> None:
        """The products of an ``affine`` value, and before them their rows and what they are added to."""
        kernel, (base, *factors) = self.kernel, value.args
        place = kernel.places[value] = self.destination(value)
        adds = base.op != "number"
        if adds and kernel.places.get(base) != place:
            self.put(base, place)
        for row, matrix in zip(factors, value.note, strict=True):
            source = kernel.loaded(row, ALWAYS) or self.pending.get(row)
            if source is None:
                source = self.pending[row] = kernel.places[row] = self.fresh(row.width)
                self.put(row, source)
            product = Product(source, matrix, place, row.width, value.width, adds)
            kernel.phases[kernel.depths[value]].products.append(product)
            adds = True


def safe(kernel: Kernel) -> bool:
    """Whether nothing is loaded from a place after a cotangent has taken it."""
    written: set[tuple[str, int, int]] = set()
    for depth, phase in enumerate(kernel.phases):
        lengths = {store.value.width for store in phase.stores + phase.sums}
        loads = [(kernel.loaded(value, depth), value.width) for value in kernel.needed(depth)]
        here = {(s.place.buffer.name, s.place.start, s.place.start + s.value.width) for s in phase.stores}
        here = {span for span in here if span[0].startswith("sequence")}
        before = written | (here if len(lengths) > 1 else set())
        for place, width in loads:
            if place is None:
                continue
            for name, start, stop in written | here:
                overlap = name == place.buffer.name and place.start < stop and start < place.start + width
                # within one loop over columns a place may be taken after it has been read, but not beside it
                if overlap and ((name, start, stop) in before or start != place.start):
                    return False
        written |= here
    return True
