"""Memories of attention in the compiled loop, and their gradients.

The weights of all steps are stored. So the gradient of the values, and of keys that are multiplied by queries, is one
product for each sequence after the loop; the loop itself sums that of additive keys.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from ..compiler.expressions import Node
from ..compiler.memory_attention import Operands
from ..compiler.schedule import Memory, Place, Role
from .packing import Packing
from .program_runner import Memories, Runner


def load(place: Place, width: int, packing: Packing, memories: Memories) -> Tensor:
    """Return what a place holds for every row of the packing ``(rows, width)``."""
    value = memories[place.buffer.memory][:, place.start : place.start + width]
    if place.buffer.rows == "before":
        return packing.before(value)
    return value[packing.batch :] if place.buffer.rows == "after" else value


def attended(runner: Runner) -> list[Node]:
    """Return the memories that hold weights of the step before, which a step replaces."""
    attentions = (runner.program.attentions[i] for i in runner.located)
    parts = (Operands.of(value.args, value.note).before for value in attentions)
    return [part for part in parts if part is not None]


def fits(runner: Runner, leaves: Sequence[Tensor]) -> bool:
    """Return whether values, keys and weights in the parts of a state have the same number of entries."""
    parts = dict(zip(runner.traced.leaves[1:], leaves, strict=True))
    for value in runner.program.attentions:
        operands = Operands.of(value.args, value.note)
        entries = (operands.values, operands.keys, operands.before)
        if len({parts[part].shape[1] for part in entries if part is not None}) > 1:
            return False
    return True


def weight_memories(runner: Runner, packing: Packing, memories: Memories) -> Memories:
    """Allocate the weights of each attention for each row, and the order of the sequences."""
    added: Memories = {}
    for i, value in enumerate(runner.program.attentions):
        entries = memories[_values(value)]
        if Memory(Role.WEIGHTS, i) not in memories:
            added[Memory(Role.WEIGHTS, i)] = entries.new_empty(packing.batch + packing.rows, entries.shape[1])
    if runner.program.attentions:
        added[Memory(Role.ORDER)] = packing.order()
    return added


def gradient_memories(runner: Runner, packing: Packing, memories: Memories) -> Memories:
    """Allocate what the backward pass writes for each attention, and return the order of the sequences, too."""
    added: Memories = {}
    for value, i, *_ in runner.program.cotangents.attentions:
        entries = memories[_values(value)]
        batch, time = entries.shape[:2]
        added[Memory(Role.SCORE_COTANGENT, i)] = entries.new_empty(packing.rows, time)
        added[Memory(Role.ORDER)] = packing.order()
        if value.note.is_additive:
            added[Memory(Role.KEY_COTANGENT, i)] = entries.new_zeros(batch, time, _query(value).width)
    return added


def memory_cotangents(
    runner: Runner, packing: Packing, memories: Memories, *, are_needed: bool
) -> Iterable[Tensor | None]:
    """Return the gradient of each memory that is an argument of the loop ``(batch, time, size)``, if any is needed."""
    if not are_needed:
        return [None] * len(runner.memories)
    gradients: dict[int, Tensor] = {}

    def add(part: Node, gradient: Tensor) -> None:
        gradients[part.note] = gradients[part.note] + gradient if part.note in gradients else gradient

    for value, i, query, cotangent in runner.program.cotangents.attentions:
        operands = Operands.of(value.args, value.note)
        weights = memories[Memory(Role.WEIGHTS, i)][packing.batch :]
        contexts = load(cotangent, value.width, packing, memories)
        add(operands.values, packing.split(weights).mT @ packing.split(contexts))
        if value.note.is_additive:
            add(operands.keys, memories[Memory(Role.KEY_COTANGENT, i)])
        else:
            scores = value.note.scale * memories[Memory(Role.SCORE_COTANGENT, i)]
            queries = load(query, operands.query.width, packing, memories)
            add(operands.keys, packing.split(scores).mT @ packing.split(queries))
    return [gradients.get(memory.number) if memory.role is Role.MEMORY else None for memory in runner.memories]


def _values(value: Node) -> Memory:
    return Memory(Role.MEMORY, Operands.of(value.args, value.note).values.note)


def _query(value: Node) -> Node:
    return Operands.of(value.args, value.note).query
