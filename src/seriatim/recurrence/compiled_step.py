"""Runs one step at a time in compiled code: a whole stack in one call, with weights that are packed once.

Packing the weights takes longer than a step. So only layers in evaluation mode and without gradients use it.
"""

import ctypes
import threading
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from ..compiler.cpp.emit import Numbers, emit
from ..compiler.lower import lower
from ..compiler.module_cache import ModuleCache
from ..compiler.program import plan_single_step
from ..compiler.reasons import UnsupportedError
from ..compiler.schedule import Memory, Role
from ..compiler.trace import Traced
from ..core.contract import SequenceLayer
from ..core.state import State, state_leaves, with_leaves
from .fast_path import as_step, traced_step
from .obstacles import compiling, numbers_of, obstacles, on_gpu, without_autocast
from .program_runner import UncompiledError, compiled, dtype_of, num_threads, packed_memory, size_table

STEPPERS = ModuleCache["Stepper | tuple[()]"](max_entries=16, depends_on_values=True)
"""The compiled steps of every layer, for the numbers of rows and types they were used with; () for none."""


def stepped(layer: SequenceLayer, inputs: Tensor, state: State) -> tuple[Tensor, State] | None:
    """Run one step of a layer, or return None if it must run as it is written in its method ``advance_once``."""
    if not compiling() or layer.training or torch.is_grad_enabled() or type(inputs) is not Tensor or on_gpu(inputs):
        return None
    inputs = without_autocast(inputs)
    steppers = STEPPERS.of(layer)
    if steppers.has_hooks:
        return None
    key: Hashable = (inputs.dtype, inputs.shape[0], type(state), torch.is_autocast_enabled("cpu"))
    stepper = steppers.get(key)
    if stepper is None:
        if any(leaf.shape[:1] != inputs.shape[:1] for leaf in state_leaves(state)):
            return None
        layer.check_state(state, inputs.shape[0])
        stepper = steppers.store(key, _compile(layer, inputs, state))
    return stepper(inputs, state) if isinstance(stepper, Stepper) else None


class _WrittenStep(nn.Module):
    """The step of a layer as it is written, as a module."""

    def __init__(self, layer: SequenceLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        output: tuple[Tensor, State] = self.layer.advance_once(inputs, state)  # type: ignore[operator]
        return output


def _compile(layer: SequenceLayer, inputs: Tensor, state: State) -> "Stepper | tuple[()]":
    step, weights = as_step(_WrittenStep(layer))
    if next(obstacles(layer, [inputs, *state_leaves(state)], weights), None) is not None:
        return ()
    try:
        traced = traced_step(step, weights, inputs, state)
        with torch.inference_mode(False), torch.no_grad():
            return Stepper(traced, weights, state, inputs.shape[0], numbers_of(inputs))
    except (UnsupportedError, UncompiledError, RecursionError):
        return ()


class Stepper:
    """A compiled step for one batch size, with packed weights."""

    def __init__(self, traced: Traced, weights: Sequence[Tensor], state: State, batch: int, numbers: Numbers) -> None:
        dtype = dtype_of(numbers)
        kernel, output = plan_single_step(lower(traced, alone=True))
        source, (function,) = emit({"step": kernel}, numbers)
        self.function = compiled(source, ["step"]).step
        widths = {buffer.memory: buffer.width for buffer in kernel.buffers()}
        constants = [value.detach().to(dtype) for value in traced.constants(weights)]
        self.memory: list[Tensor] = []
        self.arguments: list[tuple[int, int | None]] = []
        """For the inputs (None) and each part of the state: the index in the table of pointers."""
        results: dict[Memory, tuple[int, int]] = {}
        pointers = [0] * len(function.memories)
        for i, memory in enumerate(function.memories):
            if memory.role in (Role.INPUTS, Role.OLD_STATE):
                self.arguments.append((i, None if memory.role is Role.INPUTS else memory.number))
                continue
            if memory.role in (Role.OUTPUTS, Role.NEW_STATE):
                results[memory] = (i, widths[memory])
                continue
            if memory.role is Role.PACKED:
                tensor = packed_memory(function.packed[memory.number], numbers)
            elif memory.role is Role.MATRIX:
                tensor = constants[memory.number]
            elif memory.role is Role.VECTOR:
                tensor = constants[memory.number].reshape(-1).contiguous()
            else:
                tensor = torch.empty(2, batch, widths[memory], dtype=dtype)
            self.memory.append(tensor)
            pointers[i] = tensor.data_ptr()
        self.results = list(results.values())
        """For each new tensor: the index in the table of pointers, and its width."""
        places = {memory: place for place, memory in enumerate(results)}
        self.new_state = [
            (places[Memory(Role.NEW_STATE, i)], leaf.shape if leaf.dim() > 2 else None)
            for i, leaf in enumerate(state_leaves(state))
        ]
        """For each part of the state: its place among the new tensors, and its shape unless it is a row per input."""
        self.output_place = places[output.buffer.memory]
        self.sizes = size_table(function.sizes, dict(enumerate(constants)))
        self.pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.counts, self.starts = (ctypes.c_int64 * 1)(batch), (ctypes.c_int64 * 1)(0)
        self.batch, self.threads = batch, num_threads(function, batch)
        self.expected = [(leaf.shape, dtype) for leaf in state_leaves(state)]
        self.must_pack = 1
        self.lock = threading.Lock()

    def __call__(self, inputs: Tensor, state: State) -> tuple[Tensor, State] | None:
        """Run the step, or return None if the state does not have the layer's shapes and type."""
        leaves = state_leaves(state)
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != self.expected:
            return None
        arguments = [inputs.contiguous() if part is None else leaves[part].contiguous() for _, part in self.arguments]
        results = [inputs.new_empty(self.batch, width) for _, width in self.results]
        with self.lock:  # one call at a time uses the table of pointers and the memory for intermediate values
            for (i, _), tensor in zip(self.arguments, arguments, strict=True):
                self.pointers[i] = tensor.data_ptr()
            for (i, _), tensor in zip(self.results, results, strict=True):
                self.pointers[i] = tensor.data_ptr()
            self.function(
                self.pointers, self.sizes, self.counts, self.starts, 1, self.batch, self.threads, self.must_pack
            )
            self.must_pack = 0
        parts = [results[i] if shape is None else results[i].view(shape) for i, shape in self.new_state]
        return results[self.output_place], with_leaves(state, parts)
