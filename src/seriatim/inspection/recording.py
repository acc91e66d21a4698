"""Recording of a model from outside: its primitive layers run step by step, and every state is recorded.

Hooks replace the result of a primitive layer's `forward` by the same computation one step after another (by the second
law of the contract, the results are equal), so that the state after every step can be recorded and differentiated. If a
model calls `step` itself, for which torch has no hooks, a method of this file takes its place.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.lengths import run_by_length
from ..core.state import State, map_state, state_leaves
from ..layers.registry import REGISTRY
from ..recurrence import uncompiled
from ..tasks.explainer import Example, Explainer

# Finds and names the sequence layers of a model.
# A primitive layer contains no other one: a recurrence, an attention, a convolution. Containers such as stacks and
# residual connections only pass on what the primitive layers compute.


BACKWARDS = "backwards"
"""Name of the direction from the last input to the first, in the path of a module and in its name."""
DECODER = "decoder"


class PrimitiveLayer(NamedTuple):
    """A layer of a model, with its path as in ``named_modules`` and a name such as ``layer 2, backwards: gru``."""

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
        for path, layer in inside(role, top):
            if any(isinstance(module, SequenceLayer) for module in layer.modules() if module is not layer):
                continue
            result.append(PrimitiveLayer(_name(path, kind_of(layer), _number(path, layer, numbers)), path, layer))
    return result


def top_layers(model: nn.Module) -> list[tuple[str, SequenceLayer]]:
    """Return the sequence layers of a model that are in no other one, by name; a layer by itself has no name."""
    if isinstance(model, SequenceLayer):
        return [("", model)]
    return [(name, child) for name, child in model.named_children() if isinstance(child, SequenceLayer)]


def inside(name: str, layer: SequenceLayer) -> Iterator[tuple[str, SequenceLayer]]:
    """Yield a layer and all sequence layers in it, by path, which begins with the name of the layer."""
    return ((path, inner) for path, inner in layer.named_modules(prefix=name) if isinstance(inner, SequenceLayer))


def kind_of(layer: nn.Module) -> str:
    """Return the name of a layer in the registry, or the words of its class name if it is not registered."""
    names: dict[type, str] = {cls: name for name, cls in REGISTRY.items()}
    for module in layer.modules():
        if type(module) in names:
            return names[type(module)]
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
        explainer.require(explainer.inputs).forward([example])


def _number(path: str, layer: SequenceLayer, numbers: dict[str, int]) -> int:
    """Return the number of a layer, from 1; only layers with memory are counted, and both directions share one."""
    if not has_memory(layer):
        return max(1, len(set(numbers.values())))
    key = re.sub(r"\b(forwards|backwards)\b", "*", path)
    return numbers.setdefault(key, len(numbers) + 1)


def _name(path: str, kind: str, number: int) -> str:
    components = path.split(".")
    role = [components[0]] if components[0] in ("encoder", DECODER) else []
    direction = [component for component in components if component in ("forwards", BACKWARDS)][:1]
    return f"{', '.join([*role, f'layer {number}', *direction])}: {kind}"


Record = TypeVar("Record")
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]
Changed = tuple[Arguments, dict[str, object]]


@dataclass
class Steps(Generic[Record]):
    """The steps of one primitive layer: the states before the first and after each, and what was recorded of each.

    A leaf of a state that a step does not change is the same tensor. If rows differ in length, the longest comes first,
    and rows that have ended are missing.
    """

    primitive: PrimitiveLayer
    before: State | None = None
    states: list[State] = field(default_factory=list)
    recorded: list[Record] = field(default_factory=list)


@contextmanager
def unrolled(model: nn.Module, *, watch: Callable[[], AbstractContextManager[Record]]) -> Iterator[list[Steps[Record]]]:
    """Run every causal primitive layer that has memory step by step while the context is active; record the steps.

    Outputs are the same up to rounding, and only plain PyTorch is used. Every state is a tensor of its own that is
    passed to the next step and to nothing else. The gradient with respect to it therefore measures what the loss owes
    to the state, and not to the output of that step. The context ``watch`` is entered for every step. The steps of each
    layer, in the order of `primitive_layers`, are filled while the model runs.
    """
    layers = [each for each in primitive_layers(model) if each.layer.causal and has_memory(each.layer)]
    unrollers = [_Unroller(primitive, watch) for primitive in layers]
    with uncompiled(), ExitStack() as stack:
        for unroller in unrollers:
            stack.enter_context(unroller.active())
        yield [unroller.steps for unroller in unrollers]


class CallRecorder(TorchFunctionMode):
    """Passes every call of a torch function, with its result, to `observe` while it is active."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.observe(func, args, kwargs or {}, result)
        return result

    def observe(self, func: Callable[..., object], args: Arguments, kwargs: Keywords, result: Tensor) -> None:
        """Record what is needed of a call."""
        raise NotImplementedError


class _Unroller(Generic[Record]):
    """Runs one primitive layer step by step."""

    def __init__(self, primitive: PrimitiveLayer, watch: Callable[[], AbstractContextManager[Record]]) -> None:
        self.layer, self.watch, self.steps = primitive.layer, watch, Steps[Record](primitive)
        self.original_step = primitive.layer.step
        self.signature = inspect.signature(primitive.layer.forward)
        self.stepping = False
        self.withheld: tuple[Tensor, State, Tensor | None]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Observe the primitive layer while the context is active."""
        vars(self.layer)["step"] = self.step
        try:
            with (
                self.layer.register_forward_pre_hook(self.withhold_inputs, with_kwargs=True),
                self.layer.register_forward_hook(self.replace_output),
            ):
                yield
        finally:
            del vars(self.layer)["step"]

    def withhold_inputs(self, layer: SequenceLayer, args: Arguments, kwargs: Keywords) -> Changed | None:
        """Pass no inputs to `forward`, so that nothing is computed twice."""
        if self.stepping:  # a primitive layer whose step is a forward of one input
            return None
        inputs, state, lengths = self.arguments(args, kwargs)
        initial, lengths = layer.validate_inputs(inputs, state, lengths)
        self.withheld = inputs, initial, lengths
        return (inputs[:, :0], initial), {}

    def replace_output(self, _layer: object, _args: object, output: tuple[Tensor, State]) -> tuple[Tensor, State]:
        """Return the output of `forward`, computed step by step."""
        if self.stepping or 0 in self.withheld[0].shape[:2]:
            return output
        inputs, state, lengths = self.withheld
        return self.run(inputs, state) if lengths is None else run_by_length(self.run, inputs, state, lengths)

    def arguments(self, args: Arguments, kwargs: Keywords) -> tuple[Tensor, State | None, Tensor | None]:
        """Return the inputs, state and lengths of a call."""
        arguments = self.signature.bind(*args, **kwargs).arguments
        return arguments["inputs"], arguments.get("state"), arguments.get("lengths")

    def run(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the primitive layer over a batch without padding ``(batch, time, input_size)``."""
        outputs = []
        for x_t in inputs.unbind(1):
            output, state = self.step(x_t, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1), state

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step and record it."""
        if self.stepping:
            return self.original_step(inputs, state)
        self.stepping = True
        try:
            with self.watch() as record:
                outputs, after = self.original_step(inputs, state)
        finally:
            self.stepping = False
        after = map_state(lambda new, old: new if new is old else _separate(new), after, state)
        self.steps.before = state if self.steps.before is None else self.steps.before
        self.steps.states.append(after)
        self.steps.recorded.append(record)
        return outputs, after


def _separate(tensor: Tensor) -> Tensor:
    """Return the same numbers as a tensor of its own, with respect to which a loss can be differentiated."""
    view = tensor.view_as(tensor)
    return view.requires_grad_() if torch.is_grad_enabled() and tensor.is_floating_point() else view
