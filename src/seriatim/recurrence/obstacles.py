"""Circumstances in which compiled code cannot run, whatever the equations of a step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ..compiler.cpp.emit import Numbers
from ..compiler.module_cache import HOOKS
from .triton_runner import missing_triton

_compiling = ContextVar("compiling", default=True)


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


def obstacles(owner: nn.Module, arguments: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[str]:
    """Yield every reason why a module cannot run in compiled code; arguments are inputs and parts of the state."""
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
    yield from _device_obstacles(tensors)
    if not compiling():
        yield "within uncompiled()"
    if torch.compiler.is_compiling():
        yield "inside torch.compile"
    if torch.is_autocast_enabled(first.device.type) and not _reduces(first):
        yield "autocast to another type than bfloat16"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        yield "inside a function transform"


def _device_obstacles(tensors: Sequence[Tensor]) -> Iterator[str]:
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
