"""Plans a step and its vector-Jacobian product together.

The backward pass is a step of the same kind, run from the last to the first. It computes cheap values again: the
forward pass stores only states, products and their rows. The cotangent of a product overwrites the product.
"""

import functools
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from .expressions import Matrix, Node, merge_neighbours, node, number, placed, walk
from .lower import Gradient, Loop, differentiate
from .memory_attention import Operands
from .schedule import LAST, Buffer, Kernel, Memory, Place, Role, Rows, Store, is_safe_in_place, schedule


class Group(NamedTuple):
    """``sequence`` leaves that one product before the loop computes from the same inputs, or one ``plain`` leaf."""

    leaves: tuple[Node, ...]
    width: int  # features of all leaves
    matrices: list[Matrix]  # side by side, the factor of that product


MatrixGradient = tuple[Place, Matrix, Place]
"""The factors of a part of a matrix's gradient: the rows of a product, its matrix, and the cotangent of the product."""


class AttentionGradient(NamedTuple):
    """What the gradients of a memory are computed from."""

    value: Node  # the ``attend``
    number: int
    query: Place
    cotangent: Place  # of the context


class Cotangents(NamedTuple):
    """Where the backward pass stores the cotangents."""

    groups: list[Place | None]  # the cotangent of each group of sequence leaves, None if it has none
    matrices: list[MatrixGradient]  # of each product
    attentions: list[AttentionGradient]  # of each attention whose result is used
    vectors: dict[Node, Buffer]  # the cotangent of each constant row


@dataclass
class Program:
    """Both directions of a loop."""

    groups: list[Group]  # what is computed before the loop
    state_widths: tuple[int, ...]  # features of each part of the state
    output: Place  # where the outputs are stored: with the states, or in a buffer of their own
    forward: Kernel  # the step
    backward: Kernel  # its vector-Jacobian product
    cotangents: Cotangents  # where the backward pass stores its results
    attentions: list[Node]  # every attention to a memory, by its number


def plan_program(loop: Loop) -> Program:
    """Plan a loop and its gradient."""
    planner = _Planner(loop)
    groups, places = planner.sequences()
    for value in planner.values:
        if value.op == "state":
            places[value] = _place(Role.STATES, "before", value.width, value.note)
    after = [_place(Role.STATES, "after", value.width, i) for i, value in enumerate(loop.states)]
    forward, output = planner.forward(places, after)
    backward, cotangents = planner.backward(groups, forward)
    widths = tuple(value.width for value in loop.states)
    return Program(groups, widths, output, forward, backward, cotangents, list(planner.attentions))


class _Planner:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.values = walk([loop.outputs, *loop.states])
        self.attentions = {value: i for i, value in enumerate(v for v in self.values if v.op == "attend")}
        self.counter: Counter[Role] = Counter()
        self.schedule = functools.partial(schedule, allocate=self.allocate, attentions=self.attentions)

    def allocate(self, role: Role, rows: Rows, width: int) -> Place:
        self.counter[role] += 1
        return _place(role, rows, width, self.counter[role] - 1)

    def sequences(self) -> tuple[list[Group], dict[Node, Place]]:
        """Group leaves whose products have the same inputs, in the order of the matrices' columns."""
        by_inputs: dict[Node, list[Node]] = defaultdict(list)
        for leaf in self.values:
            if leaf.op == "sequence":
                by_inputs[leaf if leaf.note.plain is not None else leaf.note.products[0][0]].append(leaf)
        groups: list[Group] = []
        places: dict[Node, Place] = {}
        for i, leaves in enumerate(by_inputs.values()):
            leaves.sort(key=lambda leaf: [matrix for _, matrix in leaf.note.products[:1]])
            matrices = (matrix for leaf in leaves for _, matrix in leaf.note.products[:1])
            width = sum(leaf.width for leaf in leaves)
            groups.append(Group(tuple(leaves), width, merge_neighbours(matrices, Matrix.joined)))
            buffer = Buffer(Memory(Role.SEQUENCE, i), "now", width)
            places.update((leaf, Place(buffer, start)) for start, leaf in placed(leaves))
        return groups, places

    def forward(self, places: dict[Node, Place], after: list[Place]) -> tuple[Kernel, Place]:
        """Plan the step; return it and where its outputs are stored.

        ``places`` has the leaves except constant rows, ``after`` the places of the new states.
        """
        loop = self.loop
        vectors = [value for value in self.values if value.op == "vector"]
        places |= {value: _place(Role.VECTOR, "all", value.width, value.note) for value in vectors}
        stores = list(map(Store, loop.states, after))
        if loop.outputs in loop.states:
            output = after[loop.states.index(loop.outputs)]
        else:
            output = _place(Role.OUTPUTS, "now", loop.outputs.width)
            stores.append(Store(loop.outputs, output))
        uses = Counter(arg for value in self.values for arg in value.args)
        affine_stores = {value: place for value, place in reversed(stores) if value.op == "affine"}

        def destination(value: Node) -> Place:
            base = value.args[0]
            if value.op == "attend":
                return self.allocate(Role.PRODUCT, "now", value.width)
            if base.op == "sequence" and base.note.plain is None and uses[base] == 1:
                return places[base]
            if base.op == "number" and value in affine_stores:
                return affine_stores[value]
            return self.allocate(Role.PRODUCT, "now", value.width)

        stored = {value: place for value, place in reversed(stores) if value.op != "affine"}
        return self.schedule(stores, places, destination=destination, stored=stored), output

    def backward(self, groups: list[Group], forward: Kernel) -> tuple[Kernel, Cotangents]:
        """Plan the vector-Jacobian product of the step."""
        cotangents: dict[Node, Node] = {}
        for part, value in [*enumerate(self.loop.states), (None, self.loop.outputs)]:
            cotangent = _cotangent(value, part)
            cotangents[value] = cotangents[value] + cotangent if value in cotangents else cotangent
        gradient = differentiate(cotangents)
        plan = self.schedule_backward(groups, forward, gradient, in_place=True)
        return plan if is_safe_in_place(plan[0]) else self.schedule_backward(groups, forward, gradient, in_place=False)

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
            cotangent = leaves.get(state, number(0, value.width))
            carries.append(Store(cotangent, Place(Buffer(carry, "out", value.width))))
        output_buffer = Buffer(Memory(Role.OUTPUT_COTANGENT), "now", loop.outputs.width)
        places[_cotangent(loop.outputs, None)] = Place(output_buffer)
        sources = [forward.loaded(rows, LAST) for rows, _, _ in gradient.products]
        queries = [forward.loaded(Operands.of(value.args, value.note).query, LAST) for value, _ in gradient.attentions]
        needed_later = {source.buffer.memory for source in (*sources, *queries) if source}
        stores: list[Store] = []
        group_places: list[Place | None] = []
        for i, group in enumerate(groups):
            if leaves.keys().isdisjoint(group.leaves):
                group_places.append(None)
                continue
            memory = Memory(Role.SEQUENCE, i)
            if not in_place or group.leaves[0].note.plain is not None or memory in needed_later:
                memory = Memory(Role.SEQUENCE_COTANGENT, i)
            buffer = Buffer(memory, "now", group.width)
            group_places.append(Place(buffer))
            cotangents = (leaves.get(leaf, number(0, leaf.width)) for leaf in group.leaves)
            stores += [Store(value, Place(buffer, start)) for start, value in placed(list(cotangents))]
        stored = dict(reversed(stores))

        def kept(cotangent: Node) -> Place:
            """Return where a cotangent is stored for all steps."""
            if cotangent not in stored:
                stored[cotangent] = self.allocate(Role.PRODUCT_COTANGENT, "now", cotangent.width)
                stores.append(Store(cotangent, stored[cotangent]))
            return stored[cotangent]

        products = []
        for source, (_, matrix, cotangent) in zip(sources, gradient.products, strict=True):
            assert source is not None
            products.append((source, matrix, kept(cotangent)))
        attentions = []
        for query, (value, cotangent) in zip(queries, gradient.attentions, strict=True):
            assert query is not None
            attentions.append(AttentionGradient(value, self.attentions[value], query, kept(cotangent)))
        vectors = {
            leaf: Buffer(Memory(Role.VECTOR_SUM, leaf.note), "all", leaf.width)
            for leaf in leaves
            if leaf.op == "vector"
        }
        affine_carries = {value: place for value, place in reversed(carries) if value.op == "affine"}

        def destination(value: Node) -> Place:
            return affine_carries.get(value) or self.allocate(Role.SCRATCH, "out", value.width)

        stores += [*carries, *(Store(leaves[leaf], Place(buffer)) for leaf, buffer in vectors.items())]
        kernel = self.schedule(stores, places, destination=destination, stored=stored, backward=True)
        return kernel, Cotangents(group_places, products, attentions, vectors)


def _place(role: Role, rows: Rows, width: int, index: int = 0) -> Place:
    return Place(Buffer(Memory(role, index), rows, width))


def _cotangent(value: Node, part: int | None) -> Node:
    """Return the leaf for the cotangent of a part of the state, or of the outputs for None."""
    return node("cotangent", width=value.width, note=part)
