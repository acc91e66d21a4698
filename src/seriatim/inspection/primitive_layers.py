"""Finds and names the sequence layers of a model.

A primitive layer contains no other one: a recurrence, an attention, a convolution. Containers such as stacks and
residual connections only pass on what the primitive layers compute.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.state import state_leaves
from ..layers.registry import REGISTRY
from ..tasks.explainer import Example, Explainer

BACKWARDS = "backwards"
"""Name of the direction from the last input to the first, in the path of a module and in its name."""
DECODER = "decoder"


class PrimitiveLayer(NamedTuple):
    """A part of a model, with its path as in ``named_modules`` and a name such as ``layer 2, backwards: gru``."""

    name: str
    path: str
    layer: SequenceLayer

    @property
    def backwards(self) -> bool:
        """Whether it reads from the last input to the first."""
        return BACKWARDS in self.path.split(".")

    @property
    def decodes(self) -> bool:
        """Whether it reads the tokens that a decoder writes."""
        return self.path.split(".")[0] == DECODER


def primitive_layers(model: nn.Module) -> list[PrimitiveLayer]:
    """Return the primitive layers that a model runs over its inputs, in order; not those that read characters."""
    result: list[PrimitiveLayer] = []
    for role, top in top_layers(model):
        numbers: dict[str, int] = {}
        for path, layer in inside(top):
            if any(isinstance(part, SequenceLayer) for part in layer.modules() if part is not layer):
                continue
            whole = ".".join(part for part in (role, path) if part)
            result.append(PrimitiveLayer(_name(whole, kind_of(layer), _number(path, layer, numbers)), whole, layer))
    return result


def top_layers(model: nn.Module) -> list[tuple[str, SequenceLayer]]:
    """Return the sequence layers of a model that are in no other one, by name; a layer by itself has no name."""
    if isinstance(model, SequenceLayer):
        return [("", model)]
    return [(name, part) for name, part in model.named_children() if isinstance(part, SequenceLayer)]


def inside(layer: SequenceLayer) -> Iterator[tuple[str, SequenceLayer]]:
    """Yield a layer and all sequence layers in it, by path."""
    return ((path, part) for path, part in layer.named_modules() if isinstance(part, SequenceLayer))


def kind_of(layer: nn.Module) -> str:
    """Return the name of a layer in the registry, or the words of its class name if it is not registered."""
    names: dict[type, str] = {cls: name for name, cls in REGISTRY.items()}
    for part in layer.modules():
        if type(part) in names:
            return names[type(part)]
    wrapped = next((getattr(layer, name) for name in ("cell", "module") if hasattr(layer, name)), layer)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(wrapped).__name__).lower()


def has_memory(layer: SequenceLayer) -> bool:
    """Return whether the state of a layer depends on its inputs through more than counts of them."""
    if isinstance(layer, MemoryLayer):
        return False
    return any(leaf.is_floating_point() for leaf in state_leaves(layer.initial_state(1)))


def run_once(explainer: Explainer, example: Example) -> None:
    """Run a model over one example if it has layers that can be observed; an n-gram model has none."""
    if top_layers(explainer.model):
        explainer.require(explainer.losses).forward([example])


def _number(path: str, layer: SequenceLayer, numbers: dict[str, int]) -> int:
    """Return the number of a layer, from 1; only layers with memory are counted, and both directions share one."""
    if not has_memory(layer):
        return max(1, len(set(numbers.values())))
    key = re.sub(r"\b(forwards|backwards)\b", "*", path)
    return numbers.setdefault(key, len(numbers) + 1)


def _name(path: str, kind: str, number: int) -> str:
    parts = path.split(".")
    role = [parts[0]] if parts[0] in ("encoder", DECODER) else []
    direction = [part for part in parts if part in ("forwards", BACKWARDS)][:1]
    return f"{', '.join([*role, f'layer {number}', *direction])}: {kind}"
