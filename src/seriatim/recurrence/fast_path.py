"""The fast path: runs sequences and single steps in compiled code, if they can be compiled and circumstances allow it.

What is compiled for a module is kept here; `seriatim.recurrence.compiled_modules` compiles what is missing. It imports
the compiler, which no training in a kernel of PyTorch needs, and so it is imported itself where it is first needed.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..compiler.fallback_reasons import FallbackReasons, Reason
from ..compiler.module_cache import ModuleCache
from ..core.key_value_cache import memories_of
from ..core.state import FunctionalStep, OutputsAndState, State, kind_of, map_state, state_leaves, with_leaves
from .conditions import (
    circumstances,
    compiling,
    functional_step,
    inside_transform,
    numbers_of,
    on_gpu,
    without_autocast,
)
from .packing import pack

if TYPE_CHECKING:
    from .compiled_loop import CompiledLoop
    from .compiled_step import CompiledStep
    from .head_loop import HeadLoop

PROGRAMS: "ModuleCache[CompiledLoop | HeadLoop | FallbackReasons]" = ModuleCache(64)
"""The compiled loops of every module, for the shapes and types they were used with; or why there is none."""
PREPARED: "ModuleCache[CompiledLoop | HeadLoop]" = ModuleCache(16, depends_on_values=True)
"""The compiled loops of modules that answer few inputs at once, with their weights as the loops read them."""
FEW_ROWS = 1024
"""The largest number of inputs for which weights are kept a second time, so that they need not be packed again."""
STEPS: "ModuleCache[CompiledStep | FallbackReasons]" = ModuleCache(16, depends_on_values=True)
"""The compiled steps of every module, for the types they were used with; or why there is none."""


def run_sequence(
    owner: nn.Module,
    module: nn.Module,
    inputs: Tensor,
    state: State,
    lengths: Tensor | None,
    weights: Mapping[str, Tensor] | None = None,
) -> OutputsAndState | None:
    """Run a step over sequences in compiled code, or return None if that is not possible.

    Args:
        owner: the module that has the step; its compiled code stays valid as `seriatim.compiler.module_cache` says.
        module: one step.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: as in `SequenceLayer.forward`.
        weights: values to use instead of the parameters of the step, by name.
    """
    inputs, state = without_autocast(inputs), map_state(without_autocast, state)
    if 0 in inputs.shape[:2] or inputs.shape[1] == 1:
        return None
    if weights is None and (result := run_kept(owner, inputs, state, lengths)) is not None:
        return result
    leaves, memories = state_leaves(state), memories_of(state)
    floats = [leaf for i, leaf in enumerate(leaves) if i not in memories or leaf.is_floating_point()]
    step, values = functional_step(module, weights)
    reasons = circumstances(owner, [inputs, *floats], values)
    if any(0 in leaves[i].shape for i in memories) or next(reasons, None) is not None:
        return None
    loop = compiled_loop(owner, step, values, inputs[:, 0], state)
    if isinstance(loop, tuple) or not loop.fits(leaves):
        return None
    if weights is None and not memories and (key := _kept_key(owner, inputs, state)) is not None:
        loop = PREPARED.of(owner).store(key, loop.prepared(values))
    return _run(loop, values, inputs, state, lengths)


def run_kept(owner: nn.Module, inputs: Tensor, state: State, lengths: Tensor | None) -> OutputsAndState | None:
    """Run `run_sequence` where a loop keeps the weights of the module, else return None.

    Inputs and states that do not fit the module have another key, so that they need not be checked before.
    """
    key = _kept_key(owner, inputs, state)
    if key is None or (kept := PREPARED.of(owner)).has_hooks or (loop := kept.get(key)) is None:
        return None
    return _run(loop, [], inputs, state, lengths)


def _kept_key(owner: nn.Module, inputs: Tensor, state: State) -> Hashable | None:
    """Return what a loop that keeps weights depends on; None where none is kept."""
    if not is_evaluated(owner, inputs) or inputs.dim() != 3 or not 0 < inputs.shape[:2].numel() <= FEW_ROWS:
        return None
    forms = (
        (x.shape[1:], x.shape[:1] == inputs.shape[:1], type(x), x.dtype, x.layout, x.device)
        for x in state_leaves(state)
    )
    return (
        inputs.shape[1] > 1,
        inputs.shape[2],
        inputs.dtype,
        inputs.layout,
        inputs.device,
        kind_of(state),
        cpu_autocast(),
        *forms,
    )


def _run(
    loop: "CompiledLoop | HeadLoop", values: Sequence[Tensor], inputs: Tensor, state: State, lengths: Tensor | None
) -> OutputsAndState:
    packing = pack(inputs.shape[0], inputs.shape[1], None if lengths is None else lengths.cpu()).to(inputs.device)
    outputs, ends = loop.run(values, packing.join(inputs), state_leaves(state), packing)
    return packing.split(outputs), with_leaves(state, ends)


def cpu_autocast() -> torch.dtype | None:
    """Return the type to which autocast converts on the CPU; None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def is_evaluated(layer: nn.Module, inputs: Tensor) -> bool:
    """Return whether compiled code may use weights as they were packed before: on a CPU, without gradients."""
    # this is asked at every step, so that what costs least is asked first
    if not compiling() or layer.training or torch.is_grad_enabled() or type(inputs) is not Tensor or on_gpu(inputs):
        return False
    return not (inside_transform() or torch.compiler.is_compiling())


def compiled_loop(
    owner: nn.Module, step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State
) -> "CompiledLoop | HeadLoop | FallbackReasons":
    """Return the compiled step of a module for inputs of one step ``(batch, input_size)``, cached if possible."""
    memories = memories_of(state)
    leaves = [leaf[:, :0] if i in memories and leaf.dim() > 1 else leaf for i, leaf in enumerate(state_leaves(state))]
    state = with_leaves(state, leaves)  # one program serves memories of any length
    shapes = *((leaf.shape[1:], leaf.dtype) for leaf in leaves), *((weight.shape, weight.dtype) for weight in weights)
    key = (numbers_of(inputs), on_gpu(inputs), inputs.shape[1:], kind_of(state), shapes)
    programs = PROGRAMS.of(owner)
    program = programs.get(key)
    if program is None:
        if programs.is_full:  # compiling takes long, and most likely the next call needs yet another program
            return (Reason("its attributes or shapes keep changing", about_step=False),)
        from .compiled_modules import compile_loop

        program = programs.store(key, compile_loop(step, weights, inputs, state))
    return program


def run_step(layer: nn.Module, inputs: Tensor, state: State) -> OutputsAndState | None:
    """Run one step of a layer or a model, or return None if it must run as it is written in its method ``step``.

    Args:
        layer: a module with the method ``step(inputs, state)``.
        inputs: ``(batch, input_size)``, or token ids ``(batch,)``.
        state: the state before the step.
    """
    if not is_evaluated(layer, inputs):
        return None
    inputs = without_autocast(inputs)
    steps = STEPS.of(layer)
    if steps.has_hooks:
        return None
    key: Hashable = (inputs.dtype, kind_of(state), cpu_autocast())
    step = steps.get(key)
    if step is None:
        # the method `step` itself refuses a state that does not fit, with the reason
        if inputs.shape[0] == 0 or any(leaf.shape[:1] != inputs.shape[:1] for leaf in state_leaves(state)):
            return None
        from .compiled_modules import compile_step

        step = steps.store(key, compile_step(layer, inputs, state))
    return None if isinstance(step, tuple) else step(inputs, state)
