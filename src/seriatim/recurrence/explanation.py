"""Explains in words how a cell or a layer runs over time, and why."""

import inspect
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..compiler.cpp.emit import merge_products
from ..compiler.cpp.emit_heads import BLOCK
from ..compiler.fallback_reasons import FallbackReasons, Location, Reason
from ..core.contract import MemoryLayer, RecurrentCell, SequenceLayer
from ..core.errors import RangeError, shown
from ..core.key_value_cache import memories_of
from ..core.state import State, state_leaves
from .compiled_loop import CompiledLoop
from .compiled_modules import compile_step, example
from .compiled_step import CompiledStep
from .conditions import circumstances, functional_step
from .fast_path import compiled_loop
from .head_loop import HeadLoop
from .recurrent import Zoneout


def explain(module: nn.Module) -> str:
    """Say if a cell, or every layer of a stack, runs in compiled code, in a kernel of PyTorch, or as a loop, and why.

    For a layer or a language model, say also whether one step without gradients is one call of compiled code.

    For a loop, every reason in the equations names the line of the cell and the function that is called there. Code
    that depends on the result of such a function is not examined, so there may be further reasons in it.

    Raises:
        InputError: neither a cell, a layer nor a language model.
    """
    if isinstance(module, RecurrentCell):
        return _explain_cell(module)
    layer = module if isinstance(module, SequenceLayer) else getattr(module, "layer", None)
    if not isinstance(layer, SequenceLayer) or not callable(getattr(module, "step", None)):
        raise RangeError(f"explain: {shown(module)} cannot be explained; give a cell, a layer or a language model")
    lines = _explain_layer(layer)
    if layer.causal and not isinstance(layer, MemoryLayer):
        lines.append(f"one step: {explain_step(module)}")
    return "\n".join(lines)


def explain_step(module: nn.Module) -> str:
    """Say whether one step of a layer or a model without gradients is one call of compiled code, and if not, why."""
    step = compile_step(module, *example(module, 1))
    if isinstance(step, CompiledStep):
        counts = Counter(instruction.kind for instruction in step.program.instructions)
        return f"one call of compiled code with {counts.total()} instructions; matrix products: {counts['product']}"
    reasons = [_describe_reason(reason, module) for reason in step]
    return "\n  ".join(["as it is written:", *reasons])


def _explain_inner_layers(module: SequenceLayer) -> list[str]:
    layers = [layer for layer in _inner_layers(module) if layer.keeps != "nothing"]  # others are maps of one position
    if layers:
        return [line for layer in layers for line in _explain_layer(layer)]
    return [f"{type(module).__name__} computes whole sequences with PyTorch's operators"]


def _explain_layer(layer: SequenceLayer) -> list[str]:
    cell, step = getattr(layer, "cell", None), getattr(layer, "loop_step", None)
    if isinstance(step, nn.Module):
        inputs, state = example(layer, 1)
        return [_explain_loop(step, layer, inputs, state, otherwise="as a loop")]
    return [_explain_cell(cell)] if isinstance(cell, RecurrentCell) else _explain_inner_layers(layer)


def _explain_cell(cell: RecurrentCell) -> str:
    written = cell.cell if isinstance(cell, Zoneout) else cell
    has_kernel = cell.vendor_kernel() is not None
    like = next((value for value in functional_step(cell)[1] if value.is_floating_point()), torch.zeros(()))
    if has_kernel and like.device.type != "cpu":
        name = type(written).__name__
        return f"{name} runs in PyTorch's own kernel: on {like.device.type}, cuDNN's is as fast as compiled code"
    inputs, state = like.new_zeros(1, cell.input_size), cell.initial_state(1)
    otherwise = "in PyTorch's own kernel" if has_kernel else "as a loop"
    return _explain_loop(cell, written, inputs, state, otherwise=otherwise)


def _explain_loop(module: nn.Module, written: nn.Module, inputs: Tensor, state: State, *, otherwise: str) -> str:
    """Say how a step runs over time, which is written in the code of another module, given an example."""
    name, (step, weights), memories = type(written).__name__, functional_step(module), memories_of(state)
    floats = [leaf for i, leaf in enumerate(state_leaves(state)) if i not in memories or leaf.is_floating_point()]
    owner = module if isinstance(module, RecurrentCell) else written
    result: CompiledLoop | HeadLoop | FallbackReasons = tuple(circumstances(owner, [inputs, *floats], weights))
    result = result or compiled_loop(owner, step, weights, inputs, state)
    if isinstance(result, CompiledLoop | HeadLoop):
        described = _describe_plan(result) if isinstance(result, CompiledLoop) else _describe_heads(result, state)
        return f"{name} runs in compiled code\n" + "\n".join(f"  {line}" for line in described)
    lines = [_describe_reason(reason, written) for reason in result]
    reasons = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} reasons", *lines])
    return f"{name} runs {otherwise}: {reasons}"


def _describe_reason(reason: Reason, module: nn.Module) -> str:
    """Return the problem after its line, and the source of the line after it."""
    if reason.location is None and reason.about_step:
        code = inspect.unwrap(type(module).forward).__code__
        reason = reason._replace(location=Location(code.co_filename, code.co_firstlineno))
    source = reason.location.source if reason.location else ""
    return f"{reason}\n      {source}" if source else str(reason)


def _inner_layers(module: nn.Module) -> Iterator[SequenceLayer]:
    """Yield the outermost layers within a layer."""
    for child in module.children():
        if isinstance(child, SequenceLayer):
            yield child
        else:
            yield from _inner_layers(child)


def _describe_plan(compiled: CompiledLoop) -> list[str]:
    plan = compiled.program
    lines = []
    for group in plan.groups:
        if group.leaves[0].attribute.plain is None:
            rows = group.leaves[0].attribute.products[0][0]
            lines.append(f"before the loop: one product for all steps, {rows.width} x {group.width}")
        else:
            lines.append(f"before the loop: {group.width} features per step, computed by PyTorch")
    for direction, kernel in (("each step forward", plan.forward), ("each step backward", plan.backward)):
        products = [product for phase in kernel.phases for product in merge_products(phase.products)]
        shapes = ", ".join(f"{product.depth} x {product.width}" for product in products) or "none"
        divided = "columns" if kernel.width is not None else "rows"
        attends = ", attention to a memory" if any(phase.attentions for phase in kernel.phases) else ""
        lines.append(f"{direction}: products {shapes}{attends}; threads share {divided}")
    count = len(plan.cotangents.matrices)
    counted = "1 product" if count == 1 else f"{count} products"
    memory = ", and those of each sequence for its memory" if plan.attentions else ""
    lines.append(f"after the loop: {counted} for the weight gradients, each over all steps at once{memory}")
    stored = {slot.buffer: slot.width for slot in plan.forward.accessed() if slot.rows != "all"}
    numbers = sum(width for buffer, width in stored.items() if buffer in compiled.read_backward)
    weights = ", and the attention weights" if plan.attentions else ""
    lines.append(f"stored for the gradient: {numbers} numbers per row and step{weights}")
    return lines


def _describe_heads(loop: HeadLoop, state: State) -> list[str]:
    heads = loop.step.heads
    shapes = " and ".join(" x ".join(map(str, leaf.shape[1:])) for leaf in state_leaves(state))
    before = sum(content.value.width for content in loop.inputs if not content.is_constant)
    each = "each row is a recurrence of its own" if heads == 1 else f"each of {heads} heads is a recurrence of its own"
    return [
        f"the state of a row: {shapes}; {each}; threads share {'rows' if heads == 1 else 'the heads of all rows'}",
        f"before the loop: {before} features per step, computed by PyTorch for all steps",
        f"after the loop: the outputs, from {sum(loop.output_widths)} features per step",
        f"stored for the gradient: these features, and checkpoints of the state every {BLOCK} steps",
    ]
