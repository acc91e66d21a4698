"""When each part of a step is computed, and where it is kept.

A step falls into phases: products, then functions of what they gave, stored as the rows of the next phase's products.
The backward pass is a step of the same kind, read from the end. It computes again what is cheap, from what the products
gave; only that, the states, and the rows of products are kept. Cotangents of products take the products' own place.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .differentiate import Gradient, differentiate
from .expressions import Matrix, Node, node, number, pieces, walk
from .lower import Loop

Rows = Literal["now", "before", "after", "in", "out", "all"]
"""Which rows a step sees: its own, those of the state before or after it, one of two buffers that take turns, or one row
for all."""


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


class Group(NamedTuple):
    """``sequence`` leaves that one product before the loop computes: all of the same inputs, or one that is plain."""

    leaves: tuple[Node, ...]
    width: int


@dataclass
class Program:
    """Both directions, and what surrounds them."""

    groups: list[Group]
    state_widths: tuple[int, ...]
    output: Place
    """Where outputs are found: with the states, or in a buffer of their own."""
    forward: Kernel
    backward: Kernel
    gradient: Gradient
    group_cotangents: list[Place | None]
    matrix_cotangents: list[tuple[Place, Matrix, Place]]
    """Rows, matrix, cotangent of the product: each gives one product over all steps."""
    vector_cotangents: dict[Node, Buffer]
    in_place: bool = True


def program(loop: Loop) -> Program:
    """Plans a loop and its gradient."""
    return _Planner(loop).plan()


def single_step(loop: Loop) -> tuple[Kernel, Place]:
    """Plans a step by itself, from ``inputs`` and ``given`` states to ``new`` states; and where its outputs are found."""
    planner = _Planner(loop)
    places = {
        value: Place(Buffer("inputs" if value.op == "inputs" else f"given{value.note}", "now", value.width))
        for value in walk(planner.roots)
        if value.op in ("inputs", "state")
    }
    after = [Place(Buffer(f"new{i}", "now", value.width)) for i, value in enumerate(loop.states)]
    return planner.forward(places | planner.vectors(), after)


class _Planner:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.roots = [loop.outputs, *loop.states]
        self.counter: Counter[str] = Counter()

    def fresh(self, kind: str, rows: Rows, width: int) -> Place:
        """A buffer of its own."""
        self.counter[kind] += 1
        return Place(Buffer(f"{kind}{self.counter[kind] - 1}", rows, width))

    def plan(self) -> Program:
        values = walk(self.roots)
        groups, places = self.sequences([value for value in values if value.op == "sequence"])
        for value in values:
            if value.op == "state":
                places[value] = Place(Buffer(f"states{value.note}", "before", value.width))
        after = [Place(Buffer(f"states{i}", "after", value.width)) for i, value in enumerate(self.loop.states)]
        forward, output = self.forward(places | self.vectors(), after)
        return self.backward(groups, forward, output)

    def vectors(self) -> dict[Node, Place]:
        """Where constants are found that are the same for all rows."""
        found = [value for value in walk(self.roots) if value.op == "vector"]
        return {value: Place(Buffer(f"vector{value.note}", "all", value.width)) for value in found}

    def sequences(self, leaves: list[Node]) -> tuple[list[Group], dict[Node, Place]]:
        """Groups leaves by the inputs their products share, in the order of the matrices' columns."""
        groups: dict[object, list[Node]] = defaultdict(list)
        for leaf in leaves:
            groups[leaf if leaf.note.plain is not None else leaf.note.products[0][0]].append(leaf)
        found, places = [], {}
        for i, members in enumerate(groups.values()):
            members.sort(key=lambda leaf: [matrix for _, matrix in leaf.note.products[:1]])
            width = sum(leaf.width for leaf in members)
            found.append(Group(tuple(members), width))
            start = 0
            for leaf in members:
                places[leaf] = Place(Buffer(f"sequence{i}", "now", width), start)
                start += leaf.width
        return found, places

    def forward(self, places: dict[Node, Place], after: list[Place]) -> tuple[Kernel, Place]:
        """The step as it is written, and where its outputs are found; ``after`` is where new states go."""
        loop = self.loop
        stores = list(zip(loop.states, after, strict=True))
        if loop.outputs in loop.states:
            output = after[loop.states.index(loop.outputs)]
        else:
            output = Place(Buffer("outputs", "now", loop.outputs.width))
            stores.append((loop.outputs, output))
        uses = Counter(arg for value in walk(self.roots) for arg in value.args)
        wanted = {value: place for value, place in reversed(stores) if value.op == "affine"}

        def destination(value: Node) -> Place:
            base = value.args[0]
            if base.op == "sequence" and base.note.plain is None and uses[base] == 1:
                return places[base]
            if base.op == "number" and value in wanted:
                return wanted[value]
            return self.fresh("product", "now", value.width)

        known = {value: place for value, place in reversed(stores) if value.op != "affine"}
        rows = lambda width: self.fresh("rows", "now", width)  # noqa: E731
        return _schedule(stores, [], places, destination, rows, known), output

    def backward(self, groups: list[Group], forward: Kernel, output: Place) -> Program:
        """The vector-Jacobian product of the step."""
        loop = self.loop
        cotangents: dict[Node, Node] = {}
        for i, value in enumerate([*loop.states, loop.outputs]):
            note = "outputs" if i == len(loop.states) else i
            given = node("cotangent", width=value.width, note=note)
            cotangents[value] = given if value not in cotangents else node("add", cotangents[value], given)
        gradient = differentiate(cotangents)
        kernel, found = self.schedule_backward(groups, forward, gradient, in_place=True)
        in_place = _safe(kernel)
        if not in_place:
            kernel, found = self.schedule_backward(groups, forward, gradient, in_place=False)
        group_places, products, vectors = found
        widths = tuple(value.width for value in loop.states)
        return Program(
            groups, widths, output, forward, kernel, gradient, group_places, products, vectors, in_place=in_place
        )

    def schedule_backward(
        self, groups: list[Group], forward: Kernel, gradient: Gradient, *, in_place: bool
    ) -> tuple[Kernel, tuple[list[Place | None], list[tuple[Place, Matrix, Place]], dict[Node, Buffer]]]:
        loop, leaves = self.loop, gradient.leaves
        places = dict(forward.places)
        cotangent_places: dict[Node, Place] = {}
        for i, value in enumerate(loop.states):
            places[node("cotangent", width=value.width, note=i)] = Place(Buffer(f"carry{i}", "in", value.width))
        outputs = node("cotangent", width=loop.outputs.width, note="outputs")
        places[outputs] = Place(Buffer("cotangent_outputs", "now", loop.outputs.width))
        stores: list[tuple[Node, Place]] = []
        group_places: list[Place | None] = []
        kept = {forward.loaded(rows, 10**9) for rows, _, _ in gradient.products}
        for i, group in enumerate(groups):
            if not any(leaf in leaves for leaf in group.leaves):
                group_places.append(None)
                continue
            plain = group.leaves[0].note.plain is not None
            reused = in_place and not plain and not any(p and p.buffer.name == f"sequence{i}" for p in kept)
            buffer = Buffer(f"sequence{i}" if reused else f"cotangent_sequence{i}", "now", group.width)
            group_places.append(Place(buffer))
            start = 0
            for leaf in group.leaves:
                value = leaves.get(leaf, number(0, leaf.width))
                stores.append((value, Place(buffer, start)))
                cotangent_places.setdefault(value, Place(buffer, start))
                start += leaf.width
        carries = []
        for i, value in enumerate(loop.states):
            state = node("state", width=value.width, note=i)
            carries.append((leaves.get(state, number(0, value.width)), Place(Buffer(f"carry{i}", "out", value.width))))
        products = []
        for rows, matrix, cotangent in gradient.products:
            if cotangent not in cotangent_places:
                cotangent_places[cotangent] = self.fresh("cotangent_product", "now", cotangent.width)
                stores.append((cotangent, cotangent_places[cotangent]))
            source = forward.loaded(rows, 10**9)
            assert source is not None
            products.append((source, matrix, cotangent_places[cotangent]))
        vectors = {leaf: Buffer(f"sum{leaf.note}", "all", leaf.width) for leaf in leaves if leaf.op == "vector"}
        sums = [(leaves[leaf], Place(buffer)) for leaf, buffer in vectors.items()]
        wanted: dict[Node, Place] = {}
        for value, place in carries:
            if value.op == "affine":
                wanted.setdefault(value, place)

        def destination(value: Node) -> Place:
            return wanted.get(value) or self.fresh("scratch", "out", value.width)

        kernel = _schedule(
            stores + carries,
            sums,
            places,
            destination,
            lambda width: self.fresh("rows", "now", width),
            cotangent_places,
        )
        kernel.backward = True
        return kernel, (group_places, products, vectors)


def _schedule(
    stores: Sequence[tuple[Node, Place]],
    sums: Sequence[tuple[Node, Place]],
    given: Mapping[Node, Place],
    destination: Callable[[Node], Place],
    rows_place: Callable[[int], Place],
    known: Mapping[Node, Place] | None = None,
) -> Kernel:
    """Sorts what a step computes into phases.

    Args:
        stores: values a step must leave, and where.
        sums: values to be added up over rows and steps, and where.
        given: what is in memory before the first phase.
        destination: where an ``affine`` value goes.
        rows_place: a new place for the rows of a product that are nowhere yet.
        known: where values are stored that may also be rows of a product.
    """
    kernel = Kernel([], dict(given), {})
    depths = kernel.depths
    order = list(kernel.walk([value for value, _ in [*stores, *sums]], 0))
    for value in order:
        if value.op == "number" or kernel.loaded(value, 0):
            depths[value] = -1
        else:
            depths[value] = max(0, *(depths[arg] for arg in value.args)) + (value.op == "affine")
    kernel.phases = [Phase() for _ in range(1 + max(depths.values(), default=0))]

    def put(value: Node, place: Place, *, total: bool = False) -> None:
        phase = kernel.phases[max(0, depths[value])]
        for start, piece in pieces(value):
            (phase.sums if total else phase.stores).append(Store(piece, place._replace(start=place.start + start)))

    pending = dict(known or {})
    for value in order:
        if value.op != "affine" or value in given:
            continue
        base, *factors = value.args
        place = destination(value)
        kernel.places[value] = place
        adds = base.op != "number"
        if adds and kernel.places.get(base) != place:
            put(base, place)
        for row, matrix in zip(factors, value.note, strict=True):
            source = kernel.loaded(row, 10**9) or pending.get(row)
            if source is None:
                source = pending[row] = kernel.places[row] = rows_place(row.width)
                put(row, source)
            kernel.phases[depths[value]].products.append(Product(source, matrix, place, row.width, value.width, adds))
            adds = True
    for value, place in stores:
        if kernel.places.get(value) != place:
            put(value, place)
            kernel.places.setdefault(value, place)
    for value, place in sums:
        put(value, place, total=True)
    return kernel


def _safe(kernel: Kernel) -> bool:
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
            for name, start, stop in before:
                if name == place.buffer.name and place.start < stop and start < place.start + width:
                    return False
        written |= here
    return True
