"""The fast path: runs a step over sequences in compiled code if it can be compiled."""

import copy
import itertools
from collections.abc import Hashable, Mapping, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..compiler.module_cache import ModuleCache
from ..compiler.reasons import Reason, UnsupportedError
from ..compiler.trace import Step, Traced, trace
from ..compiler.verify import verify
from ..core.state import State, map_state, state_leaves
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
        lengths: ``(batch,)``, or None if every row is full.
    """
    inputs = without_autocast(inputs)
    if 0 in inputs.shape[:2] or inputs.shape[1] == 1:
        return None
    if next(obstacles(owner, [inputs, *state_leaves(state)], weights), None) is not None:
        return None
    program = runner(owner, step, weights, inputs[:, 0], state)
    if isinstance(program, tuple):
        return None
    packing = pack(inputs.shape[0], inputs.shape[1], None if lengths is None else lengths.cpu()).to(inputs.device)
    leaves = state_leaves(packing.sort(state))
    outputs, ends = run(program, weights, packing.join(inputs), leaves, packing)
    remaining = iter(ends)
    return packing.split(outputs), packing.unsort(map_state(lambda _: next(remaining), state))


def as_step(module: nn.Module, weights: Mapping[str, Tensor] | None = None) -> tuple[Step, list[Tensor]]:
    """Return a module as a function of its weights, and all its parameters and buffers.

    Args:
        module: maps inputs and a state to outputs and a state.
        weights: values to use instead of some parameters, by name.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **(weights or {})}

    def step(values: Sequence[Tensor], inputs: Tensor, state: State) -> tuple[Tensor, State]:
        target = _shallow_copy(module) if _tracing.get() else module
        output: tuple[Tensor, State] = functional_call(target, dict(zip(tensors, values, strict=True)), (inputs, state))
        return output

    return step, list(tensors.values())


def _shallow_copy(module: nn.Module) -> nn.Module:
    """Copy a module but not its tensors. Tracing replaces the tensors of the copy, which no other thread sees."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def tracing() -> bool:
    """Return whether a step is being traced, so that a cell must run as it is written."""
    return _tracing.get()


def runner(owner: nn.Module, step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Runner | Refusal:
    """Return the compiled step of a module for these shapes and types, from the cache if possible.

    ``inputs`` are those of one step, ``(batch, input_size)``; the other arguments are those of `sequence`.
    """
    numbers, runner_type = numbers_of(inputs), TritonRunner if on_gpu(inputs) else Runner
    shapes = tuple((weight.shape, weight.dtype) for weight in weights)
    key = (numbers, runner_type, inputs.shape[1:], _structure(state), shapes)
    programs = PROGRAMS.of(owner)
    program = programs.get(key)
    if program is None:
        if programs.is_full:  # compiling takes long, and most likely the next call needs yet another program
            return (Reason("its attributes or shapes keep changing", about_step=False),)
        program = programs.store(key, _compile(runner_type, step, weights, inputs, state))
    return program


def _compile(
    runner_type: type[Runner], step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State
) -> Runner | Refusal:
    try:
        return runner_type(traced_step(step, weights, inputs, state), numbers_of(inputs))
    except (UnsupportedError, UncompiledError, RecursionError) as error:
        return refusal(error)


def refusal(error: UnsupportedError | UncompiledError | RecursionError) -> Refusal:
    """Return the reasons for an error of the compiler."""
    if isinstance(error, UnsupportedError):
        return error.reasons
    if isinstance(error, UncompiledError):
        return (Reason("there is no working C++ compiler", about_step=False),)
    return (Reason("its expressions are too deep"),)


def traced_step(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Return a step as expressions, verified against the step itself.

    Raises:
        UnsupportedError: it cannot be expressed.
    """
    token = _tracing.set(True)
    try:
        # layers within the step must run as they are written
        with uncompiled(), torch.autocast("cpu", enabled=False), torch.inference_mode(False), torch.no_grad():
            weights, inputs, state = [weight.cpu() for weight in weights], inputs.cpu(), map_state(Tensor.cpu, state)
            traced = trace(step, weights, inputs, state)
            verify(step, traced, weights, state)
            return traced
    finally:
        _tracing.reset(token)


def _structure(state: State) -> Hashable:
    """Return structure, shapes and types of a state without the batch."""
    if isinstance(state, Tensor):
        return state.shape[1:], state.dtype
    return type(state), tuple(map(_structure, state))
