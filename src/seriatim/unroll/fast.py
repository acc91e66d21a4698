"""The fast path: when it can be taken, and what is remembered of each cell."""

import inspect
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ..state import State, map_state, state_leaves
from .compiled_loop import run
from .operators import UnsupportedError
from .packing import pack
from .runner import Runner, UncompiledError
from .trace import Step, trace
from .verify import verify

Found = Runner | str
"""A compiled step, or why there is none."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

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
    if 0 in inputs.shape[:2] or inputs.shape[1] == 1 or obstacle(owner, [inputs, *state_leaves(state), *weights]):
        return None
    found = runner(owner, step, weights, inputs[:, 0], state)
    if isinstance(found, str):
        return None
    packing = pack(inputs.shape[0], inputs.shape[1], lengths)
    leaves = state_leaves(packing.sort(state))
    outputs, ends = run(found, weights, packing.join(inputs), leaves, packing)
    remaining = iter(ends)
    return packing.split(outputs), packing.unsort(map_state(lambda _: next(remaining), state))


def obstacle(owner: nn.Module, tensors: Sequence[Tensor]) -> str | None:
    """Why a module or its tensors cannot be given to compiled code, whatever the step."""
    first = tensors[0]
    if any(getattr(part, name) for part in owner.modules() for name in HOOKS):
        return "hooks watch it"
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return "tensors of a class of their own"
    if first.device.type != "cpu":
        return f"on {first.device.type}"
    if first.dtype not in (torch.float32, torch.float64):
        return f"numbers of type {first.dtype}; float32 and float64 are compiled"
    if any(tensor.is_floating_point() and tensor.dtype != first.dtype for tensor in tensors):
        return "numbers of several types"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return "inside a function transform"
    return None


def runner(owner: nn.Module, step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Found:
    """The compiled step of a module for these shapes and types, from memory where it is there.

    Args:
        inputs: of one step, ``(batch, input_size)``.
    """
    key = (
        inputs.dtype,
        inputs.shape[1:],
        structure(state),
        tuple((weight.shape, weight.dtype) for weight in weights),
        fingerprint(owner),
    )
    known = _known.setdefault(owner, {})
    if key not in known:
        known[key] = _make(step, weights, inputs, state)
    return known[key]


def _make(step: Step, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Found:
    if torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return _make(step, weights, inputs, state)
    try:
        traced = trace(step, weights, inputs, state)
        verify(step, traced, weights, state)
        return Runner(traced, inputs.dtype)
    except UnsupportedError as reason:
        return str(reason)
    except UncompiledError:
        return "nothing can be compiled here"


def structure(state: State) -> Any:
    """What two states share that may take each other's place, in another batch."""
    if isinstance(state, Tensor):
        return state.shape[1:], state.dtype
    return type(state), tuple(map(structure, state))


def fingerprint(module: nn.Module) -> tuple[Any, ...]:
    """What a module's step may depend on besides its tensors: its plain attributes, and those of its parts."""
    return tuple(
        (type(part), tuple((name, value) for name, value in vars(part).items() if _plain(value)))
        for part in module.modules()
    )


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str) or inspect.isroutine(value)
