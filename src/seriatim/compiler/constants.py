"""The part of a step that depends on its weights alone, as a list of PyTorch operators."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch._ops import OpOverload

Tree: TypeAlias = Any
"""Nested lists, tuples and dictionaries of arguments or results of an operator."""


class Slot(NamedTuple):
    """A constant, by its number among all that are computed."""

    number: int


class Call(NamedTuple):
    """One operator on constants."""

    operator: OpOverload
    args: Tree
    options: Tree
    results: Tree


class Constants(NamedTuple):
    """Computes everything that depends on weights alone.

    Attributes:
        calls: the operators, in order.
        outputs: the constants that expressions refer to.
    """

    calls: list[Call]
    outputs: list[Slot]

    def __call__(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the constants that ``vector`` leaves and matrices refer to; differentiable."""
        values: dict[int, Tensor] = dict(enumerate(weights))

        def value_of(slot: Slot) -> Tensor:
            return values[slot.number]

        for call in self.calls:
            options = _fill(call.options, value_of)
            if options.get("device") is not None:  # the step was traced on the CPU
                options["device"] = weights[0].device if weights else options["device"]
            results = call.operator(*_fill(call.args, value_of), **options)
            for slot, value in zip(flatten(call.results), flatten(results), strict=True):
                if isinstance(slot, Slot):
                    values[slot.number] = value
        return [values[slot.number] for slot in self.outputs]


def tensors_in(tree: Tree) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [item for item in flatten(tree) if isinstance(item, Tensor)]


def slots_in(tree: Tree) -> list[Slot]:
    """Return the slots in nested lists, tuples and dictionaries."""
    return [item for item in flatten(tree) if isinstance(item, Slot)]


def flatten(tree: Tree) -> list[Tree]:
    """Return the items of nested lists, tuples and dictionaries."""
    if isinstance(tree, Slot):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [item for part in tree for item in flatten(part)]
    return [tree]


def _fill(tree: Tree, value_of: Callable[[Slot], Tensor]) -> Tree:
    """Return a tree with the slots replaced by tensors."""
    if isinstance(tree, Slot):
        return value_of(tree)
    if isinstance(tree, dict):
        return {key: _fill(value, value_of) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_fill(part, value_of) for part in tree)
    return tree
