"""One step at a time in compiled code: a whole stack in one call, its weights packed once.

Packing costs more than a step, so that it is done only for layers that do not learn at the moment: in evaluation mode,
without gradients. A layer whose tensors or attributes have changed since is packed again.
"""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..compiler.cpp.emit import Numbers, emit
from ..compiler.lower import lower
from ..compiler.operators import UnsupportedError
from ..compiler.program import single_step
from ..compiler.trace import Traced
from ..core.contract import SequenceLayer
from ..core.state import State, map_state, state_leaves
from .fast_path import HOOKS, as_step, compiling, numbers_of, obstacle, on_gpu, traced_step, unreduced
from .program_runner import UncompiledError, compiled, packed_memory, sharing

MOST = 16
"""Compiled steps kept of one layer, each for a number of rows and with weights of its own; the oldest go first."""

_known: WeakKeyDictionary[nn.Module, "_Memory"] = WeakKeyDictionary()


def stepped(layer: SequenceLayer, inputs: Tensor, state: State) -> tuple[Tensor, State] | None:
    """One step of a layer, ``(batch, input_size)`` to ``(batch, output_size)``, or None where it must run as written.

    Args:
        layer: has a method ``advance_once(inputs, state)``, the step as written.
        inputs: of the step.
        state: before it.
    """
    if not compiling() or layer.training or torch.is_grad_enabled() or type(inputs) is not Tensor or on_gpu(inputs):
        return None
    inputs = unreduced(inputs)
    memory = _known.get(layer)
    if memory is None:
        memory = _known[layer] = _Memory(layer)
    stepper = memory.find(layer, inputs, state)
    return None if isinstance(stepper, str) else stepper(inputs, state)


class _Memory:
    """What is remembered of one layer, for as long as it stays as it was."""

    def __init__(self, layer: SequenceLayer) -> None:
        self.watch(layer)

    def watch(self, layer: SequenceLayer) -> None:
        """Forgets everything, and notes how the layer is now."""
        parts = list(layer.modules())
        tables = [table for part in parts for table in (part._parameters, part._buffers, part._modules)]
        self.watched = [table.values for table in (*tables, *map(vars, parts))]
        self.tensors = [value for table in tables for value in table.values() if isinstance(value, Tensor)]
        self.tensors = [tensor for tensor in self.tensors if not tensor.is_inference()]  # these cannot be written to
        self.hooks = [getattr(part, name) for part in parts for name in HOOKS]
        self.seen = self.snapshot()
        self.steppers: dict[Any, Stepper | str] = {}

    def find(self, layer: SequenceLayer, inputs: Tensor, state: State) -> "Stepper | str":
        """The compiled step for these shapes and types, or why there is none."""
        if any(self.hooks):
            return "hooks watch it"
        if not self.unchanged():
            self.watch(layer)
        key = (inputs.dtype, inputs.shape[0], type(state), torch.is_autocast_enabled("cpu"))
        if key not in self.steppers:
            if any(leaf.shape[:1] != inputs.shape[:1] for leaf in state_leaves(state)):
                return "inputs and state differ in rows"
            layer.check_state(state, inputs.shape[0])
            if len(self.steppers) >= MOST:
                self.steppers.pop(next(iter(self.steppers)))
            self.steppers[key] = _make(layer, inputs, state)
        return self.steppers[key]

    def snapshot(self) -> list[Any]:
        """Everything a step depends on; of tensors also how often they have been written to."""
        found: list[Any] = [tensor._version for tensor in self.tensors]
        for values in self.watched:
            found.extend(values())
        return found

    def unchanged(self) -> bool:
        """Whether all is as it was: the same objects, or equal ones."""
        try:
            return self.snapshot() == self.seen
        except RuntimeError:  # another tensor has come, and tensors have no one truth value
            return False


class _Written(nn.Module):
    """The step of a layer as it is written, as a module."""

    def __init__(self, layer: SequenceLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        output: tuple[Tensor, State] = self.layer.advance_once(inputs, state)  # type: ignore[operator]
        return output


def _make(layer: SequenceLayer, inputs: Tensor, state: State) -> "Stepper | str":
    step, values = as_step(_Written(layer))
    reason = obstacle(layer, [inputs, *state_leaves(state)], values)
    if reason is not None:
        return reason
    try:
        traced = traced_step(step, values, inputs, state)
        with torch.inference_mode(False), torch.no_grad():
            return Stepper(traced, values, state, inputs.shape[0], numbers_of(inputs))
    except UnsupportedError as reason:
        return str(reason)
    except UncompiledError:
        return "nothing can be compiled here"
    except RecursionError:
        return "its expressions are too deep"


class Stepper:
    """A compiled step for one batch size, with packed weights."""

    def __init__(self, traced: Traced, weights: Sequence[Tensor], state: State, batch: int, numbers: Numbers) -> None:
        dtype = torch.float64 if numbers.double else torch.float32
        kernel, self.output = single_step(lower(traced, alone=True))
        source, (text,) = emit({"step": kernel}, numbers)
        self.function = compiled(source, ["step"]).step
        widths = {buffer.name: buffer.width for buffer in kernel.buffers()}
        constants = [value.detach().to(dtype) for value in traced.constants(weights)]
        like = torch.empty(0, dtype=dtype)
        self.kept: list[Tensor] = []
        self.given: list[tuple[int, int | None]] = []
        """Where in the table of pointers the inputs (None) and the parts of the state stand."""
        self.made: dict[str, tuple[int, int]] = {}
        """Where the new tensors stand, and their widths."""
        pointers: list[int] = []
        for i, name in enumerate(text.buffers):
            pointers.append(0)
            if name == "inputs" or name.startswith("given"):
                self.given.append((i, None if name == "inputs" else int(name.removeprefix("given"))))
            elif name == "outputs" or name.startswith("new"):
                self.made[name] = (i, widths[name])
            else:
                if name.startswith("packed"):
                    tensor = packed_memory(text.packed[int(name.removeprefix("packed"))], numbers)
                elif name.startswith(("matrix", "vector")):
                    tensor = constants[int(name[6:])]
                    tensor = tensor.reshape(-1).contiguous() if name.startswith("vector") else tensor
                else:
                    tensor = like.new_empty(2, batch, widths[name])
                self.kept.append(tensor)
                pointers[i] = tensor.data_ptr()
        sizes = [
            size if isinstance(size, int) else constants[size.matrix].stride(size.dimension) for size in text.sizes
        ]
        self.sizes = (ctypes.c_int64 * len(sizes))(*sizes)
        self.pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.counts, self.starts = (ctypes.c_int64 * 1)(batch), (ctypes.c_int64 * 1)(0)
        self.batch, self.threads = batch, sharing(text, batch)
        self.expected = [(leaf.shape, dtype) for leaf in state_leaves(state)]
        self.fresh = 1
        self.lock = threading.Lock()

    def __call__(self, inputs: Tensor, state: State) -> tuple[Tensor, State] | None:
        """The step; None where the state is not of the layer's shapes and type."""
        leaves = state_leaves(state)
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != self.expected:
            return None
        held = [inputs.contiguous() if part is None else leaves[part].contiguous() for _, part in self.given]
        made = {name: inputs.new_empty(self.batch, width) for name, (_, width) in self.made.items()}
        with self.lock:  # the table of pointers and the memory in between belong to one call at a time
            for (i, _), tensor in zip(self.given, held, strict=True):
                self.pointers[i] = tensor.data_ptr()
            for name, (i, _) in self.made.items():
                self.pointers[i] = made[name].data_ptr()
            self.function(self.pointers, self.sizes, self.counts, self.starts, 1, self.batch, self.threads, self.fresh)
            self.fresh = 0
        parts = iter([made[f"new{i}"].view(leaf.shape) for i, leaf in enumerate(leaves)])
        return made[self.output.buffer.name], map_state(lambda _: next(parts), state)
