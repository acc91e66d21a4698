"""What is computed before the loop, for all steps at once and by torch."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..compiler.expressions import Matrix, Node
from ..compiler.interpreter import evaluate
from ..compiler.lower import Before
from ..compiler.program import Group


class Hoisted:
    """The values of ``sequence`` leaves; what several of them need is computed once.

    Args:
        constants: what vectors and matrices point into.
        inputs: ``(rows, input_size)``.
        noise: random numbers ``(rows, width)``, drawn for all steps.
    """

    def __init__(self, constants: Sequence[Tensor], inputs: Tensor, noise: Mapping[Node, Tensor]) -> None:
        self.constants, self.inputs = constants, inputs
        self.known: dict[Node, Tensor] = dict(noise)

    def group(self, group: Group) -> Tensor:
        """All leaves of a group side by side, ``(rows, width)``; a product is memory that nothing else reads."""
        notes: list[Before] = [member.note for member in group.leaves]
        if notes[0].plain is not None:
            return self.value(notes[0].plain).expand(self.inputs.shape[0], -1).contiguous()
        parts = [self.matrix(part) for part in _joined([note.products[0][1] for note in notes])]
        factor = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        rows = self.value(notes[0].products[0][0])
        result = rows @ factor
        if any(len(note.products) > 1 for note in notes):
            pieces = torch.split(result, [member.width for member in group.leaves], dim=1)
            result = torch.cat([self.more(piece, note) for piece, note in zip(pieces, notes, strict=True)], dim=1)
        return result

    def value(self, root: Node) -> Tensor:
        """An expression of the inputs."""
        return evaluate([root], self.leaf, self.matrix, self.inputs, self.known)[0]

    def leaf(self, value: Node) -> Tensor:
        """Inputs, or a vector."""
        return self.inputs if value.op == "inputs" else self.constants[int(value.note)].reshape(-1)

    def matrix(self, wanted: Matrix) -> Tensor:
        """A part of a constant matrix."""
        return self.constants[wanted.constant][:, wanted.start : wanted.stop]

    def more(self, first: Tensor, note: Before) -> Tensor:
        """All other products of a sum of products."""
        return first + sum(self.value(rows) @ self.matrix(factor) for rows, factor in note.products[1:])


def _joined(parts: Sequence[Matrix]) -> list[Matrix]:
    """Neighbouring columns of one matrix as one part."""
    joined: list[Matrix] = []
    for part in parts:
        if joined and joined[-1].constant == part.constant and joined[-1].stop == part.start:
            joined[-1] = joined[-1]._replace(stop=part.stop)
        else:
            joined.append(part)
    return joined
