"""The fast path: when it can be taken, and what is remembered of each cell."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from ..compiler.cpp.emit import Numbers
from ..compiler.fingerprint import fingerprint
from ..compiler.operators import UnsupportedError
from ..compiler.trace import Step, Traced, trace
from ..compiler.verify import verify
from ..core.state import State, map_state, state_leaves
from .compiled_loop import run
from .packing import pack
from .program_runner import Runner, UncompiledError
from .triton_runner import TritonRunner, missing

Found = Runner | str
"""A compiled step, or why there is none."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

MOST = 64
"""What is compiled of one module at most, where an attribute or a shape changes at every call."""

_compiling = ContextVar("compiling", default=True)
_tracing = ContextVar("tracing", default=False)

_known: WeakKeyDictionary[nn.Module, dict[Any, Found]] = WeakKeyDictionary()


def sequence(
    owner: nn.Module,
    step: Step,
    weights: Sequence[Tensor],
    inputs: Tensor,
    state: State,
    lengths: Tensor | None,
) -> tuple[Tensor, State] | None:
    """Runs a step over sequences in compiled code, or returns None where that cannot be.

    Args:
        owner: the module whose step it is. What is compiled is remembered with it, for as long as its plain attributes,
            and the shapes and types given, stay what they are.
        step: one step, as a function of weights.
        weights: parameters and constants of the step.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: ``(batch,)``, or None where every row is full.
    """
    inputs = unreduced(inputs)
    if 0 in inputs.shape[:2] or inputs.shape[1] == 1 or obstacle(owner, [inputs, *state_leaves(state)], weights):
        return None
    found = runner(owner, step, weights, inputs[:, 0], state)
    if isinstance(found, str):
        return None
    packing = pack(inputs.shape[0], inputs.shape[1], None if lengths is None else lengths.cpu()).to(inputs.device)
    leaves = state_leaves(packing.sort(state))
    outputs, ends = run(found, weights, packing.join(inputs), leaves, packing)
    remaining = iter(ends)
    return packing.split(outputs), packing.unsort(map_state(lambda _: next(remaining), state))


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within it nothing runs in compiled code: for gradients of gradients, or to compare."""
    token = _compiling.set(False)
    try:
        yield
    finally:
        _compiling.reset(token)


def _twin(module: nn.Module) -> nn.Module:
    """A copy that shares all tensors: tracing gives a module other ones for a while, which no other thread may see."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def compiling() -> bool:
    """Whether this is outside of `uncompiled`."""
    return _compiling.get()


def tracing() -> bool:
    """Tell whether a step is being traced, for which a cell must run as it is written."""
    return _tracing.get()


def as_step(module: nn.Module, weights: Mapping[str, Tensor] | None = None) -> tuple[Step, list[Tensor]]:
    """A module called as a step, and all its parameters and buffers, some of them exchanged by name."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers()), **(weights or {})}

    def step(values: Sequence[Tensor], inputs: Tensor, state: State) -> tuple[Tensor, State]:
        target = _twin(module) if _tracing.get() else module
        output: tuple[Tensor, State] = functional_call(target, dict(zip(found, values, strict=True)), (inputs, state))
        return output

    return step, list(found.values())


def obstacle(owner: nn.Module, given: Sequence[Tensor], weights: Sequence[Tensor]) -> str | None:
    """Why a module or its tensors cannot be given to compiled code, whatever the step.

    Args:
        owner: the module.
        given: inputs, and the parts of the state.
        weights: parameters and constants.
    """
    first, tensors = given[0], [*given, *weights]
    if any(getattr(part, name) for part in owner.modules() for name in HOOKS):
        return "hooks watch it"
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return "tensors of a class of their own"
    if first.dtype not in (torch.float32, torch.float64):
        return f"numbers of type {first.dtype}; float32 and float64 are compiled"
    if any(tensor.is_floating_point() and tensor.dtype != first.dtype for tensor in weights):
        return "numbers of several types"
    if any(tensor.dtype != first.dtype for tensor in given):
        return "a state that is not of the inputs' type"
    return _of_the_device(first.device, tensors) or _of_the_surroundings(first)


def _of_the_device(device: torch.device, tensors: Sequence[Tensor]) -> str | None:
    if device.type not in ("cpu", "cuda"):
        return f"on {device.type}"
    if any(tensor.device != device for tensor in tensors):
        return "tensors on several devices"
    if on_gpu(tensors[0]) and (reason := missing(device)):
        return f"on {device.type}, and {reason}"
    return None


def _of_the_surroundings(first: Tensor) -> str | None:
    if not compiling():
        return "within uncompiled()"
    if torch.compiler.is_compiling():
        return "inside torch.compile"
    if torch.is_autocast_enabled(first.device.type) and not _reducing(first):
        return "autocast to another type than bfloat16"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return "inside a function transform"
    return None


def runner(owner: nn.Module, step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Found:
    """The compiled step of a module for these shapes and types, from memory where it is there.

    ``inputs`` are those of one step, ``(batch, input_size)``; the rest is as in `sequence`.
    """
    numbers, compiled = numbers_of(inputs), TritonRunner if on_gpu(inputs) else Runner
    key = (
        numbers,
        compiled,
        inputs.shape[1:],
        structure(state),
        tuple((weight.shape, weight.dtype) for weight in weights),
        fingerprint(owner),
    )
    known = _known.setdefault(owner, {})
    if key not in known:
        if len(known) >= MOST:
            return "its attributes or shapes keep changing"
        try:
            known[key] = compiled(traced_step(step, weights, inputs, state), numbers)
        except UnsupportedError as reason:
            known[key] = str(reason)
        except UncompiledError:
            known[key] = "nothing can be compiled here"
        except RecursionError:
            known[key] = "its expressions are too deep"
    return known[key]


def traced_step(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """A step as expressions, compared with the step itself.

    Raises:
        UnsupportedError: it cannot be written so.
    """
    token = _tracing.set(True)
    try:
        return _traced_step(step, weights, inputs, state)
    finally:
        _tracing.reset(token)


def _traced_step(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    # layers within it must be called as they are written
    with uncompiled(), torch.autocast("cpu", enabled=False), torch.inference_mode(False), torch.no_grad():
        weights, inputs, state = [weight.cpu() for weight in weights], inputs.cpu(), map_state(Tensor.cpu, state)
        traced = trace(step, weights, inputs, state)
        verify(step, traced, weights, state)
        return traced


def unreduced(inputs: Tensor) -> Tensor:
    """Inputs that autocast has made narrower, as they were."""
    return inputs.float() if _reducing(inputs) and inputs.dtype == torch.bfloat16 else inputs


def numbers_of(inputs: Tensor) -> Numbers:
    """What to compute with: matrices in bfloat16 where autocast says so."""
    return Numbers(double=inputs.dtype == torch.float64, reduced=_reducing(inputs) and inputs.dtype == torch.float32)


def on_gpu(tensor: Tensor) -> bool:
    """Whether Triton runs the loop."""
    return tensor.device.type == "cuda"


def _reducing(tensor: Tensor) -> bool:
    device = tensor.device.type
    return (
        device in ("cpu", "cuda")
        and torch.is_autocast_enabled(device)
        and torch.get_autocast_dtype(device) == torch.bfloat16
    )


def structure(state: State) -> Any:
    """What two states share that may take each other's place, in another batch."""
    if isinstance(state, Tensor):
        return state.shape[1:], state.dtype
    return type(state), tuple(map(structure, state))
