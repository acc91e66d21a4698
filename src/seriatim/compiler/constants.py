"""What a step computes from its weights alone, as a list of torch's operators."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch._ops import OpOverload


class Slot(NamedTuple):
    """A constant, by its place among all that are computed."""

    place: int


class Call(NamedTuple):
    """One operator on constants."""

    operator: OpOverload
    args: Any
    options: Any
    results: Any


class Constants(NamedTuple):
    """Computes what depends on weights alone."""

    calls: list[Call]
    wanted: list[Slot]

    def __call__(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """All weights to the list that ``vector`` leaves and matrices point into; differentiable."""
        values: dict[int, Tensor] = dict(enumerate(weights))

        def given(slot: Slot) -> Tensor:
            return values[slot.place]

        for call in self.calls:
            options = _fill(call.options, given)
            if options.get("device") is not None:  # it was traced on the CPU
                options["device"] = weights[0].device if weights else options["device"]
            found = call.operator(*_fill(call.args, given), **options)
            for slot, value in zip(flat(call.results), flat(found), strict=True):
                if isinstance(slot, Slot):
                    values[slot.place] = value
        return [values[slot.place] for slot in self.wanted]


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of nested lists, tuples and dictionaries."""
    return [item for item in flat(tree) if isinstance(item, Tensor)]


def slots(tree: Any) -> list[Slot]:
    """The slots likewise."""
    return [item for item in flat(tree) if isinstance(item, Slot)]


def flat(tree: Any) -> list[Any]:
    """The items of nested lists, tuples and dictionaries."""
    if isinstance(tree, Slot):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [item for part in tree for item in flat(part)]
    return [tree]


def _fill(tree: Any, given: Callable[[Slot], Tensor]) -> Any:
    """A tree with the slots replaced by what they stand for."""
    if isinstance(tree, Slot):
        return given(tree)
    if isinstance(tree, dict):
        return {key: _fill(value, given) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_fill(part, given) for part in tree)
    return tree
