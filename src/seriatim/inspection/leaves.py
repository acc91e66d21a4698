"""The parts of a model that compute over time, and what people call them.

A leaf is a sequence layer that has no other inside: a recurrence, an attention, a convolution. Containers, such as
stacks, residual connections and directions, only pass on.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.state import state_leaves
from ..layers.registry import REGISTRY

BACKWARDS = "backwards"
"""What the direction from the last input to the first is called, in a module's path and in its name."""
DECODER = "decoder"


class Leaf(NamedTuple):
    """A part of a model.

    Attributes:
        name: for people, such as ``encoder, layer 2, backwards: gru``.
        path: as in ``named_modules``.
        layer: the part itself.
    """

    name: str
    path: str
    layer: SequenceLayer

    @property
    def backwards(self) -> bool:
        """Whether it reads from the last input to the first."""
        return BACKWARDS in self.path.split(".")

    @property
    def decodes(self) -> bool:
        """Whether it reads what a decoder writes."""
        return self.path.split(".")[0] == DECODER


def leaves(model: nn.Module) -> list[Leaf]:
    """The leaves of the layers that a model runs over its inputs, in order; what reads the letters of words is none."""
    found: list[Leaf] = []
    for role, top in roots(model):
        numbers: dict[str, int] = {}
        paths = {path: layer for path, layer in inside(top) if not any(True for _ in _within(layer))}
        for path, layer in paths.items():
            number = _number(path, layer, numbers)
            whole = ".".join(part for part in (role, path) if part)
            found.append(Leaf(_name(whole, kind_of(layer), number), whole, layer))
    return found


def roots(model: nn.Module) -> Iterator[tuple[str, SequenceLayer]]:
    """The sequence layers that a model is made of, by name; a layer by itself is its own, without one."""
    if isinstance(model, SequenceLayer):
        yield "", model
        return
    for name, part in model.named_children():
        if isinstance(part, SequenceLayer):
            yield name, part


def inside(layer: SequenceLayer) -> Iterator[tuple[str, SequenceLayer]]:
    """A layer and all sequence layers in it, by path."""
    return ((path, part) for path, part in layer.named_modules() if isinstance(part, SequenceLayer))


def kind_of(layer: nn.Module) -> str:
    """What a layer is called: by the registry where it stands there, or else by its class, in words."""
    names: dict[type, str] = {cls: name for name, cls in REGISTRY.items()}
    for part in layer.modules():
        if type(part) in names:
            return names[type(part)]
    own = next((getattr(layer, name) for name in ("cell", "module") if hasattr(layer, name)), layer)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(own).__name__).lower()


def keeps_numbers(layer: SequenceLayer) -> bool:
    """Whether a layer's state holds anything of its own inputs but counts."""
    return not isinstance(layer, MemoryLayer) and any(
        leaf.is_floating_point() for leaf in state_leaves(layer.initial_state(1))
    )


def _within(layer: SequenceLayer) -> Iterator[SequenceLayer]:
    return (part for part in layer.modules() if part is not layer and isinstance(part, SequenceLayer))


def _number(path: str, layer: SequenceLayer, numbers: dict[str, int]) -> int:
    """Which layer this is, from 1: those that keep something are counted, once where there are two directions."""
    if not keeps_numbers(layer):
        return max(1, len(set(numbers.values())))
    key = re.sub(r"\b(forwards|backwards)\b", "*", path)
    return numbers.setdefault(key, len(numbers) + 1)


def _name(path: str, kind: str, number: int) -> str:
    parts = path.split(".")
    role = [parts[0]] if parts[0] in ("encoder", DECODER) else []
    direction = [part for part in parts if part in ("forwards", BACKWARDS)][:1]
    return f"{', '.join([*role, f'layer {number}', *direction])}: {kind}"
