"""The fast path: runs a step over sequences in compiled code, if it can be compiled and the circumstances allow it."""

import copy
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from ..compiler.cpp.emit import Numbers
from ..compiler.fallback_reasons import FallbackReasons, Reason, UnsupportedError
from ..compiler.module_cache import HOOKS, ModuleCache
from ..compiler.recorder import Traced
from ..compiler.trace import Step, trace, trace_loop
from ..core.exporting import exporting
from ..core.key_value_cache import memories_of
from ..core.state import State, map_state, state_leaves, with_leaves
from .compiled_loop import CompiledLoop, UncompiledError
from .packing import pack
from .triton_runner import TritonLoop, missing_triton

Compiled = TypeVar("Compiled")

_compiling = ContextVar("compiling", default=True)
_tracing = ContextVar("tracing", default=False)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run without compiled code inside the context: for gradients of gradients, or to compare."""
    token = _compiling.set(False)
    try:
        yield
    finally:
        _compiling.reset(token)


def compiling() -> bool:
    """Return whether compiled code is allowed, which is not the case within `uncompiled`."""
    return _compiling.get()


def circumstances(owner: nn.Module, arguments: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[Reason]:
    """Yield every reason outside the equations of a step why a module cannot run in compiled code.

    The arguments are inputs and parts of the state.
    """
    return (Reason(problem, about_step=False) for problem in _circumstances(owner, arguments, weights))


def _circumstances(owner: nn.Module, arguments: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[str]:
    first, tensors = arguments[0], [*arguments, *weights]
    if any(getattr(part, name) for part in owner.modules() for name in HOOKS):
        yield "hooks are registered on it"
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        yield "tensors of a subclass of torch.Tensor"
    if first.dtype not in (torch.float32, torch.float64):
        yield f"numbers of type {first.dtype}; float32 and float64 are compiled"
    elif any(tensor.is_floating_point() and tensor.dtype != first.dtype for tensor in weights):
        yield "numbers of several types"
    if any(tensor.dtype != first.dtype for tensor in arguments):
        yield "a state of another type than the inputs"
    yield from _device_circumstances(tensors)
    if not compiling():
        yield "within uncompiled()"
    if torch.compiler.is_compiling():
        yield "inside torch.compile"
    if torch.is_autocast_enabled(first.device.type) and not _reduces(first):
        yield "autocast to another type than bfloat16"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        yield "inside a function transform"


def _device_circumstances(tensors: Sequence[Tensor]) -> Iterator[str]:
    device = tensors[0].device
    if device.type not in ("cpu", "cuda"):
        yield f"on {device.type}"
    elif any(tensor.device != device for tensor in tensors):
        yield "tensors on several devices"
    elif on_gpu(tensors[0]) and (problem := missing_triton(device)):
        yield f"on {device.type}, and {problem}"


def without_autocast(inputs: Tensor) -> Tensor:
    """Convert inputs that autocast has cast to bfloat16 back to float32."""
    return inputs.float() if _reduces(inputs) and inputs.dtype == torch.bfloat16 else inputs


def numbers_of(inputs: Tensor) -> Numbers:
    """Return the types to compute with: matrices in bfloat16 under autocast."""
    return Numbers(double=inputs.dtype == torch.float64, reduced=_reduces(inputs) and inputs.dtype == torch.float32)


def on_gpu(tensor: Tensor) -> bool:
    """Return whether Triton runs the loop."""
    return tensor.device.type == "cuda"


def _reduces(tensor: Tensor) -> bool:
    device = tensor.device.type
    return (
        device in ("cpu", "cuda")
        and torch.is_autocast_enabled(device)
        and torch.get_autocast_dtype(device) == torch.bfloat16
    )


PROGRAMS = ModuleCache[CompiledLoop | FallbackReasons](max_entries=64)
"""The compiled steps of every module, for the shapes and types they were used with."""


def run_sequence(
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
    if next(circumstances(owner, [inputs, *floats], weights), None) is not None:
        return None
    program = compiled_loop(owner, step, weights, inputs[:, 0], state)
    if isinstance(program, tuple) or not program.fits(leaves):
        return None
    packing = pack(inputs.shape[0], inputs.shape[1], None if lengths is None else lengths.cpu()).to(inputs.device)
    outputs, ends = program.run(weights, packing.join(inputs), leaves, packing)
    return packing.split(outputs), with_leaves(state, ends)


def functional_step(module: nn.Module, weights: Mapping[str, Tensor] | None = None) -> tuple[Step, list[Tensor]]:
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


def compiled_loop(
    owner: nn.Module, step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State
) -> CompiledLoop | FallbackReasons:
    """Return the compiled step of a module for inputs of one step ``(batch, input_size)``, cached if possible."""
    memories = memories_of(state)
    leaves = [leaf[:, :0] if i in memories and leaf.dim() > 1 else leaf for i, leaf in enumerate(state_leaves(state))]
    state = with_leaves(state, leaves)  # one program serves memories of any length
    numbers, loop_type = numbers_of(inputs), TritonLoop if on_gpu(inputs) else CompiledLoop
    shapes = tuple((weight.shape, weight.dtype) for weight in weights)
    key = (numbers, loop_type, inputs.shape[1:], _structure(state), shapes)
    programs = PROGRAMS.of(owner)
    program = programs.get(key)
    if program is None:
        if programs.is_full:  # compiling takes long, and most likely the next call needs yet another program
            return (Reason("its attributes or shapes keep changing", about_step=False),)
        program = unless_unsupported(lambda: loop_type(traced_loop(step, weights, inputs, state), numbers))
        programs.store(key, program)
    return program


def unless_unsupported(compile_it: Callable[[], Compiled]) -> Compiled | FallbackReasons:
    """Return what is compiled, or the reasons why it cannot be."""
    try:
        return compile_it()
    except UnsupportedError as error:
        return error.reasons
    except UncompiledError:
        return (Reason("there is no working C++ compiler", about_step=False),)
    except RecursionError:
        return (Reason("its expressions are too deep"),)


def traced_loop(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Return the step of a loop as expressions that are verified, or raise UnsupportedError."""
    leaves = state_leaves(state)
    memories = {i: leaves[i].shape[2] if leaves[i].dim() > 2 else 1 for i in memories_of(state)}
    with _tracing_on_cpu(weights, inputs, state) as example:
        return trace_loop(step, *example, memories)


def traced_step(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Return a single step as expressions, or raise UnsupportedError."""
    with _tracing_on_cpu(weights, inputs, state) as example:
        return trace(step, *example)


@contextmanager
def _tracing_on_cpu(
    weights: Sequence[Tensor], inputs: Tensor, state: State
) -> Iterator[tuple[Sequence[Tensor], Tensor, State]]:
    """Trace inside the context, where layers within the step run as they are written; give the arguments on the CPU."""
    token = _tracing.set(True)
    try:
        with uncompiled(), torch.autocast("cpu", enabled=False), torch.inference_mode(False), torch.no_grad():
            yield [weight.cpu() for weight in weights], inputs.cpu(), map_state(Tensor.cpu, state)
    finally:
        _tracing.reset(token)


def _structure(state: State) -> Hashable:
    """Return structure, shapes and types of a state without the batch."""
    if isinstance(state, Tensor):
        return state.shape[1:], state.dtype
    return type(state), tuple(map(_structure, state))
