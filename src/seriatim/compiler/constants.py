"""The part of a step that depends on its weights alone, as a list of PyTorch operators."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

Tree: TypeAlias = Any  # nested lists, tuples and dictionaries of arguments or results of an operator
Item = TypeVar("Item")


class Slot(int):
    """A constant, by its number among all that are computed."""


class Call(NamedTuple):
    """One operator on constants."""

    operator: OpOverload
    args: Tree
    options: Tree
    results: Tree


class Constants(NamedTuple):
    """Computes everything that depends on weights alone."""

    calls: list[Call]  # the operators, in order
    outputs: list[Slot]  # the constants that expressions refer to

    def __call__(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the constants that ``vector`` leaves and matrices refer to; differentiable."""
        values: dict[int, Tensor] = dict(enumerate(weights))
        for call in self.calls:
            options = _fill(call.options, values)
            if weights and options.get("device") is not None:  # the step was traced on the CPU
                options["device"] = weights[0].device
            results = call.operator(*_fill(call.args, values), **options)
            pairs = zip(tree_leaves(call.results), tree_leaves(results), strict=True)
            values.update((slot, value) for slot, value in pairs if isinstance(slot, Slot))
        return [values[slot] for slot in self.outputs]


def items_in(tree: Tree, kind: type[Item]) -> list[Item]:
    """Return the items of one type in nested lists, tuples and dictionaries."""
    return [item for item in tree_leaves(tree) if isinstance(item, kind)]


def _fill(tree: Tree, values: Mapping[int, Tensor]) -> Tree:
    """Return a tree with the slots replaced by tensors; `tree_map` of PyTorch takes ten times as long."""
    if isinstance(tree, Slot):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _fill(value, values) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_fill(part, values) for part in tree)
    return tree
