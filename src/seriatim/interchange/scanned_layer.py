"""A recurrence as an operator that other programs have: one step, and a loop over time around it.

The body of the loop is the graph of a single step. So the length of a sequence stays free, and every layer is exported
by its `step` alone, whatever its `forward` does to be fast.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.exporting import time_scan
from ..core.state import OutputsAndState, State, state_leaves, with_leaves

Value: TypeAlias = Any
"""What an operator of a graph takes or returns: usually a tensor."""
ROWS = 3
"""Rows of the batch with which a step is traced; any number of rows may follow."""


class StepGraph:
    """The operators of a step of a layer, without those that only its parameters determine.

    Attributes:
        constants: what these operators read of parameters and constants, computed once.
    """

    def __init__(self, layer: SequenceLayer) -> None:
        state = layer.initial_state(ROWS)
        example = (layer.zeros(ROWS, layer.input_size), *(leaf.clone() for leaf in state_leaves(state)))
        sizes = {0: torch.export.Dim.DYNAMIC}
        step = _LayerStep(layer, state)
        program = torch.export.export(step, example, dynamic_shapes=(tuple(sizes for _ in example),), strict=False)
        program = program.run_decompositions({})  # without operators that write in place
        stored = {**program.state_dict, **program.constants}
        signature = program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        names |= signature.inputs_to_lifted_tensor_constants
        known: dict[fx.Node, Value] = {}
        self._inputs: list[fx.Node] = []
        self._operations: list[fx.Node] = []
        for node in program.graph.nodes:
            if node.op == "placeholder":
                if node.name in names:
                    known[node] = stored[names[node.name]].detach()
                else:
                    self._inputs.append(node)
            elif node.op == "call_function" and all(argument in known for argument in node.all_input_nodes):
                known[node] = _result(node, known)
            else:
                self._operations.append(node)
        read = dict.fromkeys(n for node in self._operations for n in node.all_input_nodes if n in known)
        self._known = {node: known[node] for node in read if not isinstance(known[node], Tensor)}
        self._names = [node for node in read if isinstance(known[node], Tensor)]
        tensors = (known[node] for node in self._names)
        self.constants = [value.clone(memory_format=torch.contiguous_format) for value in tensors]  # none shares memory

    def run(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
        """Return outputs and the leaves of the next state, given inputs and the leaves of the state."""
        values: dict[fx.Node, Value] = dict(self._known)
        values |= zip(self._names, constants, strict=True)
        values |= zip(self._inputs, inputs, strict=True)
        for node in self._operations:
            if node.op == "output":
                results: Value = node.args[0]
                return [values[result].clone(memory_format=torch.contiguous_format) for result in results]
            values[node] = _result(node, values)
        raise AssertionError("a graph has an output")


class ScannedLayer(SequenceLayer):
    """Runs the step of a causal layer, whose state has a fixed size, over a sequence in one operator.

    It has the contract of the layer, except that a sequence must have at least one input, and is for export only.
    """

    def __init__(self, layer: SequenceLayer) -> None:
        super().__init__()
        self.input_size, self.output_size, self.layer = layer.input_size, layer.output_size, layer
        self.graph = StepGraph(layer)
        for i, constant in enumerate(self.graph.constants):
            self.register_buffer(f"constant{i}", constant, persistent=False)

    def initial_state(self, batch_size: int) -> State:
        """Return the initial state of the layer."""
        return self.layer.initial_state(batch_size)

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step of the layer."""
        outputs, *after = self.graph.run([inputs, *state_leaves(state)], self.constants)
        return outputs, with_leaves(state, after)

    @property
    def constants(self) -> list[Tensor]:
        """What the graph reads of parameters, as tensors of the module."""
        return [getattr(self, f"constant{i}") for i in range(len(self.graph.constants))]

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.validate_inputs(inputs, state, lengths)
        start = state_leaves(state)
        sequences = [inputs.transpose(0, 1)]
        if lengths is not None:
            sequences.append(torch.arange(inputs.shape[1], device=inputs.device).unsqueeze(1) < lengths)  # (T, B)

        def advance(*values: Tensor) -> list[Tensor]:
            before, (x, *valid) = values[: len(start)], values[len(start) : len(start) + len(sequences)]
            outputs, *after = self.graph.run([x, *before], values[len(start) + len(sequences) :])
            for mask in valid:
                outputs = _where(mask, outputs, torch.zeros_like(outputs))
                after = [_where(mask, new, old) for new, old in zip(after, before, strict=True)]
            return [*after, outputs]

        carried = [leaf.clone(memory_format=torch.contiguous_format) for leaf in start]
        *end, outputs = time_scan(advance, carried, sequences, self.constants)
        return outputs.transpose(0, 1), with_leaves(state, end)


def scan_layers(module: nn.Module) -> None:
    """Replace every part of a model that runs step by step by a `ScannedLayer`.

    These are the causal layers whose state has a fixed size. Attention, whose state grows, and layers without a state
    keep their own `forward`, and so do layers of the library that are made of others.
    """
    for name, part in module.named_children():
        if isinstance(part, SequenceLayer) and _runs_step_by_step(part):
            setattr(module, name, ScannedLayer(part))
        else:
            scan_layers(part)


def _runs_step_by_step(layer: SequenceLayer) -> bool:
    if not layer.causal or isinstance(layer, MemoryLayer):
        return False
    leaves = state_leaves(layer.initial_state(1))
    if not leaves or not all(leaf.numel() for leaf in leaves):
        return False
    if type(layer).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return True  # a layer from outside the library
    inner = any(isinstance(part, SequenceLayer) for part in layer.modules() if part is not layer)
    return not inner and any(leaf.is_floating_point() for leaf in leaves)


class _LayerStep(nn.Module):
    """A step as a function of tensors."""

    def __init__(self, layer: SequenceLayer, like: State) -> None:
        super().__init__()
        self.layer, self.like = layer, like

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        inputs, *leaves = values
        outputs, state = self.layer.step(inputs, with_leaves(self.like, leaves))
        return outputs, *state_leaves(state)


def _result(node: fx.Node, values: dict[fx.Node, Value]) -> Value:
    """Compute a node of a graph from the values of other nodes."""
    arguments: Value = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    assert callable(node.target)
    return node.target(*arguments[0], **arguments[1])


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (new.dim() - 1)), new, old)
