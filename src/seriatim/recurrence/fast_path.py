"""The fast path: runs a step over sequences in compiled code if it can be compiled."""

import copy
import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..compiler.module_cache import ModuleCache
from ..compiler.reasons import Reason, UnsupportedError
from ..compiler.recorder import Recorder, Traced
from ..compiler.trace import Step, trace
from ..compiler.verify import verify
from ..core.exporting import exporting
from ..core.key_value_cache import memories_of
from ..core.state import State, map_state, state_leaves, with_leaves
from ..core.step_operators import step_tracing
from .attention_memory import fits
from .compiled_loop import run
from .obstacles import numbers_of, obstacles, on_gpu, uncompiled, without_autocast
from .packing import pack
from .program_runner import Runner, UncompiledError
from .triton_runner import TritonRunner

Refusal = tuple[Reason, ...]
"""The reasons why there is no compiled code."""

_tracing = ContextVar("tracing", default=False)

PROGRAMS = ModuleCache[Runner | Refusal](max_entries=64)
"""The compiled steps of every module, for the shapes and types they were used with."""


def sequence(
    owner: nn.Module,
    step: Step,
    weights: Sequence[Tensor],
    inputs: Tensor,
    state: State,
    lengths: Tensor | None,
) -> tuple[Tensor, State] | None:
    """Run a step over sequences in compiled code, or return None if that is not possible.

    Args:
        owner: the module that has the step; its compiled code stays valid as `seriatim.compiler.module_cache` says.
        step: one step, as a function of weights.
        weights: parameters and constants of the step.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: as in `SequenceLayer.forward`.
    """
    inputs, state = without_autocast(inputs), map_state(without_autocast, state)
    memories = memories_of(state)
    leaves = state_leaves(state)
    if 0 in inputs.shape[:2] or inputs.shape[1] == 1 or any(0 in leaves[i].shape for i in memories):
        return None
    floats = [leaf for i, leaf in enumerate(leaves) if i not in memories or leaf.is_floating_point()]
    if next(obstacles(owner, [inputs, *floats], weights), None) is not None:
        return None
    program = runner(owner, step, weights, inputs[:, 0], state)
    if isinstance(program, tuple) or not fits(program, leaves):
        return None
    packing = pack(inputs.shape[0], inputs.shape[1], None if lengths is None else lengths.cpu()).to(inputs.device)
    outputs, ends = run(program, weights, packing.join(inputs), leaves, packing)
    return packing.split(outputs), with_leaves(state, ends)


def as_step(module: nn.Module, weights: Mapping[str, Tensor] | None = None) -> tuple[Step, list[Tensor]]:
    """Return a module as a function of its weights, and the list of these weights.

    The weights are all parameters and buffers of the module; ``weights`` replaces those that it names.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **(weights or {})}

    def step(values: Sequence[Tensor], inputs: Tensor, state: State) -> tuple[Tensor, State]:
        target = module
        if _tracing.get():  # tracing replaces the tensors of a copy, which no other thread sees
            target = copy.deepcopy(
                module, {id(tensor): tensor for tensor in itertools.chain(module.parameters(), module.buffers())}
            )
        output: tuple[Tensor, State] = functional_call(target, dict(zip(tensors, values, strict=True)), (inputs, state))
        return output

    return step, list(tensors.values())


def tracing() -> bool:
    """Return whether a step is being traced or exported, so that a cell must run as it is written."""
    return _tracing.get() or exporting()


def runner(owner: nn.Module, step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Runner | Refusal:
    """Return the compiled step of a module for inputs of one step ``(batch, input_size)``, cached if possible."""
    memories = memories_of(state)
    leaves = [leaf[:, :0] if i in memories and leaf.dim() > 1 else leaf for i, leaf in enumerate(state_leaves(state))]
    state = with_leaves(state, leaves)  # one program serves memories of any length
    numbers, runner_type = numbers_of(inputs), TritonRunner if on_gpu(inputs) else Runner
    shapes = tuple((weight.shape, weight.dtype) for weight in weights)
    key = (numbers, runner_type, inputs.shape[1:], _structure(state), shapes)
    programs = PROGRAMS.of(owner)
    program = programs.get(key)
    if program is None:
        if programs.is_full:  # compiling takes long, and most likely the next call needs yet another program
            return (Reason("its attributes or shapes keep changing", about_step=False),)
        try:
            program = runner_type(traced_step(step, weights, inputs, state, memories=memories), numbers)
        except UnsupportedError as error:
            program = error.reasons
        except UncompiledError:
            program = (Reason("there is no working C++ compiler", about_step=False),)
        except RecursionError:
            program = (Reason("its expressions are too deep"),)
        programs.store(key, program)
    return program


def traced_step(
    step: Step,
    weights: Sequence[Tensor],
    inputs: Tensor,
    state: State,
    recorder_type: type[Recorder] | None = None,
    *,
    memories: Collection[int] = (),
) -> Traced:
    """Return a step as expressions, or raise UnsupportedError; for a loop, it is verified against the step itself."""
    token = _tracing.set(True)
    try:
        # layers within the step must run as they are written
        with uncompiled(), torch.autocast("cpu", enabled=False), torch.inference_mode(False), torch.no_grad():
            weights, inputs, state = [weight.cpu() for weight in weights], inputs.cpu(), map_state(Tensor.cpu, state)
            with step_tracing():
                traced = trace(step, weights, inputs, state, recorder_type, memories)
            if recorder_type is not None:
                return traced
            verify(step, traced, weights, state)
            return traced
    finally:
        _tracing.reset(token)


def _structure(state: State) -> Hashable:
    """Return structure, shapes and types of a state without the batch."""
    if isinstance(state, Tensor):
        return state.shape[1:], state.dtype
    return type(state), tuple(map(_structure, state))
