"""Plans a loop: in which phase of a step each value is computed, and where it is stored.

A phase first computes products, then functions of their results, and stores them as the rows of the next phase's
products. The backward pass is a step of the same kind, run from the last to the first. It computes cheap values again:
the forward pass stores only states, products and their rows. The cotangent of a product overwrites the product.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .buffers import Allocator, Buffer, BufferKind, Rows, Slot, slot
from .expressions import STORED, Matrix, Node, merge_neighbours, node, number, operands_of, segments, walk, with_offsets
from .lower import Gradient, Loop, differentiate

LAST = 10**9  # a phase after all others


class Write(NamedTuple):
    """A value or a segment of it, and where it is stored."""

    value: Node
    slot: Slot


class Product(NamedTuple):
    """Rows times a matrix, stored in a slot or added to its content."""

    rows: Slot
    matrix: Matrix
    slot: Slot
    depth: int
    width: int
    add: bool


class AttentionCall(NamedTuple):
    """Attention to a memory, or its vector-Jacobian product."""

    value: Node  # the ``attend``
    number: int  # among all of the step
    query: Slot
    slot: Slot  # of the context, or of the cotangent of the query
    cotangent: Slot | None  # of the context, in the backward pass
    parameters: tuple[Slot, ...]  # of the scores


@dataclass
class Phase:
    """Products, then attention, then writes."""

    products: list[Product] = field(default_factory=list)
    attentions: list[AttentionCall] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


@dataclass
class Kernel:
    """One direction of the loop."""

    phases: list[Phase]  # in order
    slots: dict[Node, Slot]  # where a value is stored after its phase; leaves are stored before the first phase
    depths: dict[Node, int]  # the phase that computes each value; −1 for leaves
    backward: bool  # whether the loop runs from the last step to the first

    @property
    def width(self) -> int | None:
        """The width of all values that a step computes, so that threads can share columns; None if widths differ."""
        widths = {write.value.width for phase in self.phases for write in phase.writes}
        widths.update(product.width for phase in self.phases for product in phase.products)
        if len(widths) != 1 or any(phase.attentions for phase in self.phases):
            return None
        width = widths.pop()
        for depth in range(len(self.phases)):
            for value in self.values_of(depth):
                slot = self.loaded(value, depth)
                if value.op in ("sum", "amax") or (slot and slot.start % width and slot.rows != "all"):
                    return None
        return width

    def accessed(self) -> set[Slot]:
        """Return all features of every buffer that the kernel accesses."""
        slots = [*self.slots.values()]
        for phase in self.phases:
            slots += [write.slot for write in phase.writes]
            slots += [slot for product in phase.products for slot in (product.rows, product.slot)]
            slots += [slot for attention in phase.attentions for slot in (attention.query, attention.slot)]
        return {slot.whole for slot in slots}

    def values_of(self, depth: int) -> list[Node]:
        """Return all values that a phase loads or computes, arguments first."""
        return self.walk([write.value for write in self.phases[depth].writes], depth)

    def walk(self, roots: Sequence[Node], depth: int) -> list[Node]:
        """Return the values that roots depend on, down to the values that a phase loads."""
        return walk(roots, lambda value: value.op in ("number", "memory") or self.loaded(value, depth) is not None)

    def loaded(self, value: Node, depth: int) -> Slot | None:
        """Return the slot from which a phase loads a value, or None if the phase computes it."""
        source, start = (value.args[0], value.attribute) if value.op == "slice" else (value, 0)
        slot, since = self.slots.get(source), self.depths.get(source, -1)
        if slot is None or since > depth or (since == depth and source.op not in STORED):
            return None
        return slot.shifted(start)

    def assign_phases(self, order: Sequence[Node]) -> None:
        """Assign each value to a phase: a product or attention to the phase after its rows, leaves to −1."""
        for value in order:
            if value.op in ("number", "memory") or self.loaded(value, 0):
                self.depths[value] = -1
            else:
                self.depths[value] = max(0, *(self.depths[arg] for arg in value.args)) + (value.op in STORED)
        self.phases = [Phase() for _ in range(1 + max(0, *self.depths.values()))]

    def store(self, value: Node, slot: Slot) -> None:
        """Write a value in the phase that computes it."""
        phase = self.phases[max(0, self.depths[value])]
        phase.writes += [Write(segment, slot.shifted(start)) for start, segment in segments(value)]


def schedule(
    writes: Sequence[Write],
    leaves: Mapping[Node, Slot],
    *,
    destination: Callable[[Node], Slot],
    allocate: Callable[[BufferKind, Rows, int], Slot],
    stored: Mapping[Node, Slot],
    attentions: Mapping[Node, int],
    backward: bool = False,
) -> Kernel:
    """Sort the operations of a step into the phases of a kernel.

    Args:
        writes: the values that a step must store, and where.
        leaves: where values are stored before the first phase.
        destination: returns the slot for the result of an ``affine`` value or of attention.
        allocate: returns a new buffer of a kind, given its rows and its width.
        stored: where values are stored that may also be rows of a product or queries.
        attentions: the number of each ``attend``.
        backward: whether the loop runs from the last step to the first.
    """
    # a product needs whole rows, which other threads compute a part of: it belongs to the phase after theirs
    kernel, stored = Kernel([], dict(leaves), {}, backward), dict(stored)
    order = kernel.walk([write.value for write in writes], 0)
    kernel.assign_phases(order)

    def read(row: Node) -> Slot:
        """Return where the rows of a product or queries are stored; store them if they are not."""
        source = kernel.loaded(row, LAST) or stored.get(row)
        if source is None:
            source = stored[row] = kernel.slots[row] = allocate(BufferKind.ROWS, "now", row.width)
            kernel.store(row, source)
        return source

    # products and attention are the only values that memory holds within a phase; all others are computed on the way
    for value in order:
        if value.op not in STORED or value in leaves:
            continue
        slot = kernel.slots[value] = destination(value)
        if value.op != "affine":
            attend = value if value.op == "attend" else value.args[0]
            operands = operands_of(attend)
            cotangent = None if attend is value else read(value.args[1])
            parameters = tuple(kernel.slots[weight] for weight in operands.weights)
            attention = AttentionCall(attend, attentions[attend], read(operands.query), slot, cotangent, parameters)
            kernel.phases[kernel.depths[value]].attentions.append(attention)
            continue
        # the first product adds to the base only if the base lies where the result belongs; the others always add
        base, *factors = value.args
        adds = base.op != "number"
        if adds and kernel.slots.get(base) != slot:
            kernel.store(base, slot)
        for row, matrix in zip(factors, value.attribute, strict=True):
            product = Product(read(row), matrix, slot, row.width, value.width, adds)
            kernel.phases[kernel.depths[value]].products.append(product)
            adds = True

    # a value that is stored already, as the result of a product or as rows, may have to be stored elsewhere, too
    for value, slot in writes:
        if kernel.slots.get(value) != slot:
            kernel.store(value, slot)
            if not slot.is_sum:
                kernel.slots.setdefault(value, slot)
    return kernel


def is_safe_in_place(kernel: Kernel) -> bool:
    """Return whether no hoisted value is loaded after a cotangent was stored in its slot."""
    written: set[tuple[Buffer, int, int]] = set()
    for depth, phase in enumerate(kernel.phases):
        new = {
            (write.slot.buffer, write.slot.start, write.slot.start + write.value.width)
            for write in phase.writes
            if write.slot.buffer.kind is BufferKind.HOISTED
        }
        one_loop = len({write.value.width for write in phase.writes}) == 1
        for value in kernel.values_of(depth):
            slot = kernel.loaded(value, depth)
            if slot is None:
                continue
            for buffer, start, stop in written | new:
                overlaps = buffer == slot.buffer and slot.start < stop and start < slot.start + value.width
                # one loop over columns may read a feature and then overwrite it, but not read a neighbour
                may_overwrite = one_loop and (buffer, start, stop) not in written and start == slot.start
                if overlaps and not may_overwrite:
                    return False
        written |= new
    return True


# ---- both directions of a loop


class Group(NamedTuple):
    """``hoisted`` leaves that one product before the loop computes from the same inputs, or one ``plain`` leaf."""

    leaves: tuple[Node, ...]
    width: int  # features of all leaves
    matrices: list[Matrix]  # side by side, the factor of that product


MatrixGradient = tuple[Slot, Matrix, Slot]
"""The factors of a term of a matrix's gradient: the rows of a product, its matrix, and the cotangent of the product."""


class AttentionGradient(NamedTuple):
    """What the gradients of a memory are computed from."""

    value: Node  # the ``attend``
    number: int
    query: Slot
    cotangent: Slot  # of the context


class Cotangents(NamedTuple):
    """Where the backward pass stores the cotangents."""

    groups: list[Slot | None]  # the cotangent of each group of hoisted leaves, None if it has none
    matrices: list[MatrixGradient]  # of each product
    attentions: list[AttentionGradient]  # of each attention whose result is used
    vectors: dict[Node, Slot]  # the cotangent of each constant row


@dataclass
class Program:
    """Both directions of a loop."""

    groups: list[Group]  # what is computed before the loop
    state_widths: tuple[int, ...]  # features of each leaf of the state
    output: Slot  # where the outputs are stored: with the states, or in a buffer of their own
    forward: Kernel  # the step
    backward: Kernel  # its vector-Jacobian product
    cotangents: Cotangents  # where the backward pass stores its results
    attentions: list[Node]  # every attention to a memory, by its number


def plan_loop(loop: Loop) -> Program:
    """Plan a loop and its gradient."""
    planner = _LoopPlanner(loop)
    groups, slots = planner.hoisted()
    forward, output = planner.forward(slots)
    backward, cotangents = planner.backward(groups, forward)
    widths = tuple(value.width for value in loop.states)
    return Program(groups, widths, output, forward, backward, cotangents, list(planner.attentions))


class _LoopPlanner:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.values = walk([loop.outputs, *loop.states])
        self.attentions = {value: i for i, value in enumerate(v for v in self.values if v.op == "attend")}
        self.allocate = Allocator()
        self.schedule = functools.partial(schedule, allocate=self.allocate, attentions=self.attentions)

    def hoisted(self) -> tuple[list[Group], dict[Node, Slot]]:
        """Group leaves whose products have the same inputs, in the order of the matrices' columns."""
        by_inputs: dict[Node, list[Node]] = defaultdict(list)
        for leaf in self.values:
            if leaf.op == "hoisted":
                by_inputs[leaf if leaf.attribute.plain is not None else leaf.attribute.products[0][0]].append(leaf)
        groups: list[Group] = []
        slots: dict[Node, Slot] = {}
        for i, leaves in enumerate(by_inputs.values()):
            leaves.sort(key=lambda leaf: [matrix for _, matrix in leaf.attribute.products[:1]])
            matrices = (matrix for leaf in leaves for _, matrix in leaf.attribute.products[:1])
            group_slot = slot(BufferKind.HOISTED, "now", sum(leaf.width for leaf in leaves), i)
            groups.append(Group(tuple(leaves), group_slot.width, merge_neighbours(matrices, Matrix.joined)))
            slots.update((leaf, group_slot.shifted(start)) for start, leaf in with_offsets(leaves))
        return groups, slots

    def forward(self, slots: dict[Node, Slot]) -> tuple[Kernel, Slot]:
        """Plan the step, given where the hoisted leaves are stored; return it and where its outputs are stored."""
        loop = self.loop
        for value in self.values:
            if value.op == "state":
                slots[value] = slot(BufferKind.STATES, "before", value.width, value.attribute)
            elif value.op == "vector":
                slots[value] = slot(BufferKind.VECTOR, "all", value.width, value.attribute)

        # outputs that are a leaf of the state need no memory of their own
        after = [slot(BufferKind.STATES, "after", value.width, i) for i, value in enumerate(loop.states)]
        writes = list(map(Write, loop.states, after))
        if loop.outputs in loop.states:
            output = after[loop.states.index(loop.outputs)]
        else:
            output = slot(BufferKind.OUTPUTS, "now", loop.outputs.width)
            writes.append(Write(loop.outputs, output))

        # a product is added to what was computed for it before the loop, in place, if nothing else reads that
        uses = Counter(arg for value in self.values for arg in value.args)
        affine_slots = {value: slot for value, slot in reversed(writes) if value.op == "affine"}

        def destination(value: Node) -> Slot:
            base = value.args[0]
            if value.op == "affine" and base.op == "hoisted" and base.attribute.plain is None and uses[base] == 1:
                return slots[base]
            if value.op == "affine" and base.op == "number" and value in affine_slots:
                return affine_slots[value]
            return self.allocate(BufferKind.PRODUCT, "now", value.width)

        stored = {value: slot for value, slot in reversed(writes) if value.op != "affine"}
        return self.schedule(writes, slots, destination=destination, stored=stored), output

    def backward(self, groups: list[Group], forward: Kernel) -> tuple[Kernel, Cotangents]:
        """Plan the vector-Jacobian product of the step."""
        cotangents: dict[Node, Node] = {}
        for index, value in [*enumerate(self.loop.states), (None, self.loop.outputs)]:
            cotangent = _cotangent(value, index)
            cotangents[value] = cotangents[value] + cotangent if value in cotangents else cotangent
        gradient = differentiate(cotangents)
        plan = self.schedule_backward(groups, forward, gradient, in_place=True)
        return plan if is_safe_in_place(plan[0]) else self.schedule_backward(groups, forward, gradient, in_place=False)

    def schedule_backward(
        self, groups: list[Group], forward: Kernel, gradient: Gradient, *, in_place: bool
    ) -> tuple[Kernel, Cotangents]:
        """Plan the vector-Jacobian product; ``in_place`` lets it overwrite what was computed before the loop."""
        loop, leaves = self.loop, gradient.leaves

        # The backward pass reads what the forward pass stored, and the cotangents that come from outside. That of a
        # state passes from step to step through two buffers that are swapped, so that a step may still read the one
        # of the step after it while it writes the one for the step before it.
        slots = dict(forward.slots)
        carries = []
        for i, value in enumerate(loop.states):
            slots[_cotangent(value, i)] = slot(BufferKind.CARRY, "in", value.width, i)
            cotangent = leaves.get(node("state", width=value.width, attribute=i), number(0, value.width))
            carries.append(Write(cotangent, slot(BufferKind.CARRY, "out", value.width, i)))
        slots[_cotangent(loop.outputs, None)] = slot(BufferKind.OUTPUT_COTANGENT, "now", loop.outputs.width)

        # The gradient of a matrix is computed after the loop, from the rows of all steps: those must survive it.
        sources = [forward.loaded(rows, LAST) for rows, _, _ in gradient.products]
        attending = [operands_of(value) for value, _ in gradient.attentions]
        queries = [forward.loaded(operands.query, LAST) for operands in attending]
        needed_later = {source.buffer for source in (*sources, *queries) if source}

        # The cotangent of a hoisted leaf overwrites the leaf, whose memory is the largest of a loop. Nothing outside
        # the loop reads the leaf again, because a product's gradient needs its inputs and not its result. A leaf that
        # is no product was computed by PyTorch, which may have kept it for a gradient of its own. Whether the step
        # itself still reads a feature that it has overwritten is seen from the finished plan (`is_safe_in_place`).
        writes: list[Write] = []
        group_slots: list[Slot | None] = []
        for i, group in enumerate(groups):
            if leaves.keys().isdisjoint(group.leaves):
                group_slots.append(None)
                continue
            target = slot(BufferKind.HOISTED, "now", group.width, i)
            if not in_place or group.leaves[0].attribute.plain is not None or target.buffer in needed_later:
                target = slot(BufferKind.HOISTED_COTANGENT, "now", group.width, i)
            group_slots.append(target)
            cotangents = [leaves.get(leaf, number(0, leaf.width)) for leaf in group.leaves]
            writes += [Write(value, target.shifted(start)) for start, value in with_offsets(cotangents)]

        # The cotangent of a product is kept for all steps, too. Where it is that of a hoisted leaf, it is stored.
        stored = dict(reversed(writes))

        def kept(cotangent: Node) -> Slot:
            if cotangent not in stored:
                stored[cotangent] = self.allocate(BufferKind.PRODUCT_COTANGENT, "now", cotangent.width)
                writes.append(Write(cotangent, stored[cotangent]))
            return stored[cotangent]

        products = []
        for source, (_, matrix, cotangent) in zip(sources, gradient.products, strict=True):
            assert source is not None
            products.append((source, matrix, kept(cotangent)))
        attentions = []
        for query, (value, cotangent) in zip(queries, gradient.attentions, strict=True):
            assert query is not None
            attentions.append(AttentionGradient(value, self.attentions[value], query, kept(cotangent)))

        # Carries come last: a product for the step before may be stored in one directly, if its value is nothing else.
        vectors = {
            leaf: slot(BufferKind.VECTOR_SUM, "all", leaf.width, leaf.attribute)
            for leaf in leaves
            if leaf.op == "vector"
        }
        writes += [*carries, *(Write(leaves[leaf], total) for leaf, total in vectors.items())]
        affine_carries = {value: slot for value, slot in reversed(carries) if value.op == "affine"}

        def destination(value: Node) -> Slot:
            return affine_carries.get(value) or self.allocate(BufferKind.SCRATCH, "out", value.width)

        kernel = self.schedule(writes, slots, destination=destination, stored=stored, backward=True)
        return kernel, Cotangents(group_slots, products, attentions, vectors)


def _cotangent(value: Node, index: int | None) -> Node:
    """Return the leaf for the cotangent of a leaf of the state, or of the outputs for None."""
    return node("cotangent", width=value.width, attribute=index)
