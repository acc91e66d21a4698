"""Plans a step and its vector-Jacobian product together.

The backward pass is a step of the same kind, run from the last step to the first. It computes cheap values again from
the results of the products; only these results, the states and the rows of products are stored by the forward pass. The
cotangent of a product overwrites the product.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from .differentiate import Gradient, differentiate
from .expressions import Matrix, Node, node, number, walk
from .lower import Loop
from .schedule import LAST, Buffer, Kernel, Memory, Place, Role, Rows, Schedule, is_safe_in_place


class Group(NamedTuple):
    """``sequence`` leaves that one product before the loop computes from the same inputs, or one ``plain`` leaf."""

    leaves: tuple[Node, ...]
    width: int


class Cotangents(NamedTuple):
    """Where the backward pass stores the cotangents.

    Attributes:
        groups: the cotangent of each group of ``sequence`` leaves, None if it has none.
        matrices: rows, matrix, and cotangent of the product; each gives one product over all steps.
        vectors: the cotangent of each constant row.
    """

    groups: list[Place | None]
    matrices: list[tuple[Place, Matrix, Place]]
    vectors: dict[Node, Buffer]


@dataclass
class Program:
    """Both directions of a loop.

    Attributes:
        groups: what is computed before the loop.
        state_widths: features of each part of the state.
        output: where the outputs are stored: with the states, or in a buffer of their own.
        forward: the step.
        backward: its vector-Jacobian product.
        cotangents: where the backward pass stores its results.
    """

    groups: list[Group]
    state_widths: tuple[int, ...]
    output: Place
    forward: Kernel
    backward: Kernel
    cotangents: Cotangents


def plan_program(loop: Loop) -> Program:
    """Plan a loop and its gradient."""
    return _Planner(loop).plan()


def plan_single_step(loop: Loop) -> tuple[Kernel, Place]:
    """Plan one step without a loop; return it and where its outputs are stored."""
    planner = _Planner(loop)
    places = planner.vectors()
    for value in planner.values:
        if value.op == "inputs":
            places[value] = Place(Buffer(Memory(Role.INPUTS), "now", value.width))
        elif value.op == "state":
            places[value] = Place(Buffer(Memory(Role.OLD_STATE, value.note), "now", value.width))
    after = [Place(Buffer(Memory(Role.NEW_STATE, i), "now", value.width)) for i, value in enumerate(loop.states)]
    return planner.forward(places, after)


class _Planner:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.roots = [loop.outputs, *loop.states]
        self.values = walk(self.roots)
        self.counter: Counter[Role] = Counter()

    def allocate(self, role: Role, rows: Rows, width: int) -> Place:
        """Return a new buffer."""
        self.counter[role] += 1
        return Place(Buffer(Memory(role, self.counter[role] - 1), rows, width))

    def allocate_rows(self, width: int) -> Place:
        """Return a new buffer for the rows of a product."""
        return self.allocate(Role.ROWS, "now", width)

    def plan(self) -> Program:
        groups, places = self.sequences([value for value in self.values if value.op == "sequence"])
        for value in self.values:
            if value.op == "state":
                places[value] = Place(Buffer(Memory(Role.STATES, value.note), "before", value.width))
        states = enumerate(self.loop.states)
        after = [Place(Buffer(Memory(Role.STATES, i), "after", value.width)) for i, value in states]
        forward, output = self.forward(places | self.vectors(), after)
        backward, cotangents = self.backward(groups, forward)
        widths = tuple(value.width for value in self.loop.states)
        return Program(groups, widths, output, forward, backward, cotangents)

    def vectors(self) -> dict[Node, Place]:
        """Return the places of constant rows."""
        vectors = [value for value in self.values if value.op == "vector"]
        return {value: Place(Buffer(Memory(Role.VECTOR, value.note), "all", value.width)) for value in vectors}

    def sequences(self, leaves: list[Node]) -> tuple[list[Group], dict[Node, Place]]:
        """Group leaves whose products have the same inputs, in the order of the matrices' columns."""
        by_inputs: dict[object, list[Node]] = defaultdict(list)
        for leaf in leaves:
            by_inputs[leaf if leaf.note.plain is not None else leaf.note.products[0][0]].append(leaf)
        groups, places = [], {}
        for i, members in enumerate(by_inputs.values()):
            members.sort(key=lambda leaf: [matrix for _, matrix in leaf.note.products[:1]])
            width = sum(leaf.width for leaf in members)
            groups.append(Group(tuple(members), width))
            start = 0
            for leaf in members:
                places[leaf] = Place(Buffer(Memory(Role.SEQUENCE, i), "now", width), start)
                start += leaf.width
        return groups, places

    def forward(self, places: dict[Node, Place], after: list[Place]) -> tuple[Kernel, Place]:
        """Plan the step; return it and where its outputs are stored.

        Args:
            places: where the leaves are stored.
            after: where the new states are stored.
        """
        loop = self.loop
        stores = list(zip(loop.states, after, strict=True))
        if loop.outputs in loop.states:
            output = after[loop.states.index(loop.outputs)]
        else:
            output = Place(Buffer(Memory(Role.OUTPUTS), "now", loop.outputs.width))
            stores.append((loop.outputs, output))
        uses = Counter(arg for value in self.values for arg in value.args)
        affine_stores = {value: place for value, place in reversed(stores) if value.op == "affine"}

        def destination(value: Node) -> Place:
            base = value.args[0]
            if base.op == "sequence" and base.note.plain is None and uses[base] == 1:
                return places[base]
            if base.op == "number" and value in affine_stores:
                return affine_stores[value]
            return self.allocate(Role.PRODUCT, "now", value.width)

        stored = {value: place for value, place in reversed(stores) if value.op != "affine"}
        schedule = Schedule(stores, places, destination=destination, allocate_rows=self.allocate_rows, stored=stored)
        return schedule.kernel, output

    def backward(self, groups: list[Group], forward: Kernel) -> tuple[Kernel, Cotangents]:
        """Plan the vector-Jacobian product of the step."""
        cotangents: dict[Node, Node] = {}
        for i, value in enumerate([*self.loop.states, self.loop.outputs]):
            cotangent = _cotangent(value, i if i < len(self.loop.states) else None)
            cotangents[value] = cotangent if value not in cotangents else node("add", cotangents[value], cotangent)
        gradient = differentiate(cotangents)
        kernel, results = self.schedule_backward(groups, forward, gradient, in_place=True)
        if not is_safe_in_place(kernel):
            kernel, results = self.schedule_backward(groups, forward, gradient, in_place=False)
        return kernel, results

    def schedule_backward(
        self, groups: list[Group], forward: Kernel, gradient: Gradient, *, in_place: bool
    ) -> tuple[Kernel, Cotangents]:
        loop, leaves = self.loop, gradient.leaves
        places = dict(forward.places)
        carries = []
        for i, value in enumerate(loop.states):
            carry = Memory(Role.CARRY, i)
            places[_cotangent(value, i)] = Place(Buffer(carry, "in", value.width))
            state = node("state", width=value.width, note=i)
            carries.append((leaves.get(state, number(0, value.width)), Place(Buffer(carry, "out", value.width))))
        output_buffer = Buffer(Memory(Role.OUTPUT_COTANGENT), "now", loop.outputs.width)
        places[_cotangent(loop.outputs, None)] = Place(output_buffer)
        stores: list[tuple[Node, Place]] = []
        stored: dict[Node, Place] = {}
        group_places: list[Place | None] = []
        needed_later = {forward.loaded(rows, LAST) for rows, _, _ in gradient.products}
        for i, group in enumerate(groups):
            if not any(leaf in leaves for leaf in group.leaves):
                group_places.append(None)
                continue
            memory = Memory(Role.SEQUENCE, i)
            is_needed = any(place and place.buffer.memory == memory for place in needed_later)
            if not in_place or group.leaves[0].note.plain is not None or is_needed:
                memory = Memory(Role.SEQUENCE_COTANGENT, i)
            buffer = Buffer(memory, "now", group.width)
            group_places.append(Place(buffer))
            start = 0
            for leaf in group.leaves:
                value = leaves.get(leaf, number(0, leaf.width))
                stores.append((value, Place(buffer, start)))
                stored.setdefault(value, Place(buffer, start))
                start += leaf.width
        products = []
        for rows, matrix, cotangent in gradient.products:
            if cotangent not in stored:
                stored[cotangent] = self.allocate(Role.PRODUCT_COTANGENT, "now", cotangent.width)
                stores.append((cotangent, stored[cotangent]))
            source = forward.loaded(rows, LAST)
            assert source is not None
            products.append((source, matrix, stored[cotangent]))
        vectors = {
            leaf: Buffer(Memory(Role.VECTOR_SUM, leaf.note), "all", leaf.width)
            for leaf in leaves
            if leaf.op == "vector"
        }
        affine_carries: dict[Node, Place] = {}
        for value, place in carries:
            if value.op == "affine":
                affine_carries.setdefault(value, place)

        def destination(value: Node) -> Place:
            return affine_carries.get(value) or self.allocate(Role.SCRATCH, "out", value.width)

        kernel = Schedule(
            stores + carries,
            places,
            sums=[(leaves[leaf], Place(buffer)) for leaf, buffer in vectors.items()],
            destination=destination,
            allocate_rows=self.allocate_rows,
            stored=stored,
        ).kernel
        kernel.backward = True
        return kernel, Cotangents(group_places, products, vectors)


def _cotangent(value: Node, part: int | None) -> Node:
    """Return the leaf for the cotangent of a part of the state, or of the outputs for None."""
    return node("cotangent", width=value.width, note=part)
