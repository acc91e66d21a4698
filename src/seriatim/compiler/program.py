"""A step and its vector-Jacobian product, planned together.

The backward pass is a step of the same kind, read from the end. It computes again what is cheap, from what the products
gave; only that, the states, and the rows of products are kept. Cotangents of products take the products' own place.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from .differentiate import Gradient, differentiate
from .expressions import Matrix, Node, node, number, walk
from .lower import Loop
from .schedule import ALWAYS, Buffer, Kernel, Place, Rows, Schedule, safe


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
    group_cotangents: list[Place | None]
    matrix_cotangents: list[tuple[Place, Matrix, Place]]
    """Rows, matrix, cotangent of the product: each gives one product over all steps."""
    vector_cotangents: dict[Node, Buffer]


def program(loop: Loop) -> Program:
    """Plans a loop and its gradient."""
    return _Planner(loop).plan()


def single_step(loop: Loop) -> tuple[Kernel, Place]:
    """Plans a step by itself, from ``inputs`` and ``given`` states to ``new`` ones; and says where its outputs are."""
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

    def rows(self, width: int) -> Place:
        """A buffer for the rows of a product."""
        return self.fresh("rows", "now", width)

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
        return Schedule(stores, places, destination=destination, fresh=self.rows, known=known).kernel, output

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
        if not safe(kernel):
            kernel, found = self.schedule_backward(groups, forward, gradient, in_place=False)
        group_places, products, vectors = found
        widths = tuple(value.width for value in loop.states)
        return Program(groups, widths, output, forward, kernel, group_places, products, vectors)

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
        kept = {forward.loaded(rows, ALWAYS) for rows, _, _ in gradient.products}
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
            source = forward.loaded(rows, ALWAYS)
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

        kernel = Schedule(
            stores + carries, places, sums=sums, destination=destination, fresh=self.rows, known=cotangent_places
        ).kernel
        kernel.backward = True
        return kernel, (group_places, products, vectors)
