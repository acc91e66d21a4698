"""A loop over time whose state holds matrices, in compiled code: what comes before and after it, and its gradient.

Every head of every row is a recurrence of its own. What depends on the inputs alone is computed before the loop, and
what the state does not depend on after it, both by PyTorch for all steps at once. The loop keeps a checkpoint of the
state for the gradient every `BLOCK` steps, from which the backward pass computes the states between again.
"""

import copy
import ctypes
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ..compiler.buffers import Numbers
from ..compiler.cpp.emit_heads import BLOCK, emit_heads
from ..compiler.cpp.toolchain import typed_library
from ..compiler.heads import HeadInput, HeadStep
from ..compiler.operators import evaluate
from ..compiler.recorder import Traced
from .compiled_loop import UncompiledError, refuse_second_derivative
from .packing import SequencePacking

Pointers = ctypes.Array[ctypes.c_void_p]


class HeadLoop:
    """A step with matrices in its state, compiled for one type of numbers; raises UncompiledError without compiler."""

    constants: list[Tensor] | None = None
    """What the loop computes with, if these are the weights of a module that do not change."""

    def __init__(self, traced: Traced, step: HeadStep, numbers: Numbers) -> None:
        self.traced, self.step, self.dtype = traced, step, numbers.dtype
        self.code = emit_heads(step, numbers)
        functions = typed_library(self.code.text, forward="ppppppqqi", backward="ppppppqqi")
        if functions is None:
            raise UncompiledError
        self.functions = functions
        self.inputs: list[HeadInput] = [leaf.attribute for leaf in step.inputs]
        self.output_widths = [value.width * step.heads for value in dict.fromkeys(step.outputs.values())]
        self.with_gradient = {number for kind, number in self.code.buffers if kind == "input_cotangent"}

    def prepared(self, weights: Sequence[Tensor]) -> Self:
        """Return a copy that keeps these weights."""
        loop = copy.copy(self)
        loop.constants = self.traced.constants(weights)
        return loop

    def fits(self, leaves: Sequence[Tensor]) -> bool:
        """Return whether the loop can run on a state."""
        return True

    def run(
        self, weights: Sequence[Tensor], inputs: Tensor, states: Sequence[Tensor], packing: SequencePacking
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the loop over sequences that are joined as ``packing`` says; see `CompiledLoop.run`."""
        constants = self.constants or self.traced.constants(weights)
        known = {self.traced.leaves[0]: inputs, **packing.noise(self.traced.noise, inputs)}
        before = evaluate([content.value for content in self.inputs], known, constants, inputs)
        arguments = []
        for value, content in zip(before, self.inputs, strict=True):
            shape = (content.value.width,) if content.is_constant else (packing.rows, content.value.width)
            arguments.append(value.to(self.dtype).expand(shape).contiguous())
        starts = packing.sort(tuple(state.reshape(packing.batch, -1) for state in states))
        apply: Any = _HeadFunction.apply
        results = apply(self, packing, *arguments, *(start.contiguous() for start in starts))

        # equal values of one head are returned once
        outputs = dict(zip(dict.fromkeys(self.step.outputs.values()), results, strict=False))
        known.update((value, outputs[of_head]) for value, of_head in self.step.outputs.items())
        (result,) = evaluate([self.traced.outputs], known, constants, inputs)
        ends = packing.unsort(tuple(results[len(outputs) :]))
        result = result.to(self.dtype).expand(packing.rows, self.traced.outputs.width).contiguous()
        return result, [end.view_as(state) for end, state in zip(ends, states, strict=True)]

    def call(
        self,
        packing: SequencePacking,
        buffers: dict[tuple[str, int], Tensor],
        states: tuple[Sequence[Tensor], Sequence[Tensor]],
        checkpoints: Tensor | None,
        *,
        backward: bool,
    ) -> None:
        """Run one direction, from the first to the second of two states or their cotangents."""
        function = self.functions.backward if backward else self.functions.forward
        tables = [_pointers([buffers.get(buffer) for buffer in self.code.buffers]), *map(_pointers, states)]
        function(
            *tables,
            None if checkpoints is None else checkpoints.data_ptr(),
            packing.counts.data_ptr(),
            packing.starts.data_ptr(),
            len(packing.counts),
            packing.batch,
            self.threads(packing),
        )

    def threads(self, packing: SequencePacking) -> int:
        """Return how many threads share the heads of all rows."""
        return min(torch.get_num_threads(), packing.batch * self.step.heads)


def _pointers(tensors: Sequence[Tensor | None]) -> Pointers:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(None if x is None else x.data_ptr() for x in tensors))


class _HeadFunction(torch.autograd.Function):
    """Both directions of the loop; the tensors are the inputs of its heads, then the leaves of the state."""

    @staticmethod
    def forward(ctx: Any, loop: HeadLoop, packing: SequencePacking, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(loop.inputs)
        inputs, starts = tensors[:count], tensors[count:]
        outputs = [starts[0].new_empty(packing.rows, width) for width in loop.output_widths]
        ends = [torch.empty_like(start) for start in starts]
        checkpoints = None
        if any(ctx.needs_input_grad):
            blocks = -(-len(packing.counts) // BLOCK)
            checkpoints = starts[0].new_empty(packing.batch, loop.step.heads, blocks, loop.code.state_size)
        buffers = {("input", i): value for i, value in enumerate(inputs)}
        buffers |= {("output", i): value for i, value in enumerate(outputs)}
        loop.call(packing, buffers, (starts, ends), checkpoints, backward=False)
        if checkpoints is not None:
            ctx.loop, ctx.packing = loop, packing
            ctx.save_for_backward(checkpoints, *inputs)
        return (*outputs, *ends)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        loop: HeadLoop = ctx.loop
        packing: SequencePacking = ctx.packing
        checkpoints, *inputs = ctx.saved_tensors
        count, heads = len(loop.output_widths), loop.step.heads
        buffers = {("input", i): value for i, value in enumerate(inputs)}
        buffers |= {("output_cotangent", i): value.contiguous() for i, value in enumerate(cotangents[:count])}

        # heads write the cotangent of what they share side by side; each thread adds up those of constants of its own
        gradients: dict[int, Tensor] = {}
        for i, (leaf, content) in enumerate(zip(loop.step.inputs, loop.inputs, strict=True)):
            if i in loop.with_gradient:
                if content.is_constant:
                    gradients[i] = checkpoints.new_zeros(loop.threads(packing), content.value.width)
                else:
                    gradients[i] = checkpoints.new_empty(packing.rows, heads, leaf.width)
        buffers |= {("input_cotangent", i): value for i, value in gradients.items()}
        lasts = [value.contiguous() for value in cotangents[count:]]
        firsts = [torch.empty_like(value) for value in lasts]
        loop.call(packing, buffers, (lasts, firsts), checkpoints, backward=True)
        for i, gradient in gradients.items():
            if loop.inputs[i].is_constant:
                gradients[i] = gradient.sum(0)
            else:
                gradients[i] = gradient.sum(1) if loop.inputs[i].is_shared else gradient.flatten(1)
        return (None, None, *(gradients.get(i) for i in range(len(inputs))), *firsts)
