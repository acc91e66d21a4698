"""Where compiled code may run at all, whatever the equations of a step are; and a step as a function of its weights.

The files of the compiler are imported when the first step is compiled: nothing here imports them.
"""

import copy
import functools
import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from ..compiler.buffers import Numbers
from ..compiler.fallback_reasons import Reason
from ..compiler.module_cache import HOOKS
from ..core.context_values import temporarily
from ..core.errors import first_line
from ..core.exporting import exporting
from ..core.state import FunctionalStep, State, map_state

_compiling = ContextVar("compiling", default=True)
_tracing = ContextVar("tracing", default=False)


def uncompiled() -> AbstractContextManager[bool]:
    """Run without compiled code inside the context: for gradients of gradients, or to compare."""
    return temporarily(_compiling, False)


def compiling() -> bool:
    """Return whether compiled code is allowed, which is not the case within `uncompiled`."""
    return _compiling.get()


def circumstances(owner: nn.Module, arguments: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[Reason]:
    """Yield every reason outside the equations of a step why a module cannot run in compiled code.

    The arguments are inputs and leaves of the state.
    """
    return (Reason(problem, about_step=False) for problem in _circumstances(owner, arguments, weights))


def _circumstances(owner: nn.Module, arguments: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[str]:
    first, tensors = arguments[0], [*arguments, *weights]
    if any(getattr(module, name) for module in owner.modules() for name in HOOKS):
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
    if inside_transform():
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


@functools.cache
def missing_triton(device: torch.device) -> str | None:
    """Return why Triton cannot run on a device, by running a minimal kernel; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    try:  # there may be no C compiler, or the GPU may be too old
        from ..compiler.triton.kernel_functions import probe

        like = torch.zeros(1, device=device)
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            probe[1,](like)
        return None if like.item() == 1 else "Triton computes wrong results"
    except Exception as error:
        return f"Triton fails: {first_line(error) or type(error).__name__}"


def functional_step(
    module: nn.Module, weights: Mapping[str, Tensor] | None = None
) -> tuple[FunctionalStep, list[Tensor]]:
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


def inside_transform() -> bool:
    """Return whether a function transform of `torch.func` or forward-mode differentiation is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


@contextmanager
def tracing_on_cpu(
    weights: Sequence[Tensor], inputs: Tensor, state: State
) -> Iterator[tuple[Sequence[Tensor], Tensor, State]]:
    """Trace inside the context, where layers within the step run as they are written; give the arguments on the CPU."""
    with (
        temporarily(_tracing, True),
        uncompiled(),
        torch.autocast("cpu", enabled=False),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield [weight.cpu() for weight in weights], inputs.cpu(), map_state(Tensor.cpu, state)
