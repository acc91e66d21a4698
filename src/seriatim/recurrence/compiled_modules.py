"""Compiles the loops and the single steps of modules: traces them, plans them and compares them with what is written.

Packing the weights of a single step takes longer than a step. So only modules in evaluation mode and without gradients
use compiled steps.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..compiler.fallback_reasons import FallbackReasons, Reason, UnsupportedError
from ..compiler.recorder import Traced
from ..compiler.step_program import KINDS
from ..compiler.trace import are_close, trace, trace_loop
from ..core.contract import MemoryLayer
from ..core.key_value_cache import memories_of
from ..core.state import FunctionalStep, OutputsAndState, State, map_state, state_leaves, with_leaves
from .compiled_loop import CompiledLoop, UncompiledError
from .compiled_step import CompiledStep, leaves_and_caches, time_dimension
from .conditions import circumstances, functional_step, numbers_of, on_gpu, tracing_on_cpu, uncompiled
from .head_loop import HeadLoop
from .packing import pack
from .triton_runner import TritonLoop
from .weight_formats import FORMATS

Arguments = ParamSpec("Arguments")
Compiled = TypeVar("Compiled")
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-7}
"""The largest difference from the step as it is written, relative to the largest value."""
REDUCED_TOLERANCE = 0.1
"""The same for weights in bfloat16 or in 4 bits."""
VERIFIED_ROWS = 3
"""Rows with which a loop of heads is verified."""
VERIFIED_ENTRIES = 3
"""Entries in the caches with which a step is verified."""


def or_reasons(compiled: Callable[Arguments, Compiled]) -> Callable[Arguments, Compiled | FallbackReasons]:
    """Let a function return the reasons why it cannot compile something, where it raises them."""

    @functools.wraps(compiled)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Compiled | FallbackReasons:
        try:
            return compiled(*args, **kwargs)
        except UnsupportedError as error:
            return error.reasons
        except UncompiledError:
            return (Reason("there is no working C++ compiler", about_step=False),)
        except RecursionError:
            return (Reason("its expressions are too deep"),)

    return wrapped


@or_reasons
def compile_loop(
    step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State
) -> CompiledLoop | HeadLoop:
    """Return the loop of a step for inputs of one step ``(batch, input_size)``."""
    leaves = state_leaves(state)
    memories = {i: leaves[i].shape[2] if leaves[i].dim() > 2 else 1 for i in memories_of(state)}
    numbers = numbers_of(inputs)
    with tracing_on_cpu(weights, inputs, state) as example:
        traced, heads = trace_loop(step, *example, memories)
        if heads is not None:
            if on_gpu(inputs):
                raise UnsupportedError([Reason("a state that holds matrices is compiled for CPUs only")])
            loop = HeadLoop(traced, heads, numbers)
            _verify_heads(loop, step, *example)
            return loop
    return (TritonLoop if on_gpu(inputs) else CompiledLoop)(traced, numbers)


def _verify_heads(
    loop: HeadLoop, step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State
) -> None:
    """Raise UnsupportedError if one step of a loop differs from the step as it is written, in values or gradients."""
    generator = torch.Generator().manual_seed(1)

    def random(shape: Sequence[int]) -> Tensor:
        return torch.randn(VERIFIED_ROWS, *shape, dtype=loop.dtype, generator=generator).requires_grad_()

    with torch.enable_grad():
        values = [weight.detach().clone() for weight in weights]
        trained = [value.requires_grad_() for value in values if value.is_floating_point()]
        rows = random(inputs.shape[1:])
        start = map_state(lambda leaf: random(leaf.shape[1:]), state)
        sources = [rows, *state_leaves(start), *trained]
        results = []
        for is_compiled in (True, False):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                if is_compiled:
                    outputs, after = loop.run(values, rows, state_leaves(start), pack(VERIFIED_ROWS, 1, None))
                else:
                    outputs, end = step(values, rows, start)
                    after = state_leaves(end)
            found = [outputs, *after]
            cotangents = torch.Generator().manual_seed(2)
            weighted = [(x * torch.randn(x.shape, dtype=x.dtype, generator=cotangents)).sum() for x in found]
            total = torch.stack(weighted).sum()
            results.append(found + list(torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)))
    found, expected = results
    if not are_close(found, expected, TOLERANCE[loop.dtype]):
        raise UnsupportedError([Reason("the compiled loop differs from its step", about_step=False)])


def trace_step(layer: nn.Module) -> tuple[Traced, list[Tensor]]:
    """Return the step of a layer or a language model as expressions, and the weights that it depends on.

    Raises:
        UnsupportedError: it cannot be traced; the error holds the reasons.
    """
    step, weights = functional_step(_WrittenStep(layer))
    return _traced(step, weights, *example(layer, 1)), weights


def example(layer: nn.Module, batch_size: int) -> tuple[Tensor, State]:
    """Return inputs and a state for a step; those of a memory have one entry."""
    state = layer.example_state(batch_size, 1) if isinstance(layer, MemoryLayer) else None
    if state is None:
        state = layer.initial_state(batch_size)  # type: ignore[operator]
    like = next(
        (leaf for leaf in [*layer.parameters(), *state_leaves(state)] if leaf.is_floating_point()), torch.zeros(())
    )
    size = getattr(layer, "input_size", None)
    return torch.zeros(batch_size, dtype=torch.long) if size is None else like.new_zeros(batch_size, size), state


class _WrittenStep(nn.Module):
    """The step of a module as it is written, as a module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor, state: State) -> OutputsAndState:
        output: OutputsAndState = self.layer.step(inputs, state)  # type: ignore[operator]
        return output


@or_reasons
def compile_step(layer: nn.Module, inputs: Tensor, state: State) -> CompiledStep:
    """Return the compiled step of a layer or a language model."""
    step, weights = functional_step(_WrittenStep(layer))
    floats = [value for value in (inputs, *state_leaves(state), *weights) if value.is_floating_point()]
    if not floats:
        raise UnsupportedError([Reason("it has no weights")])
    for value, cache in zip([inputs, *state_leaves(state)], [None, *leaves_and_caches(state)[1]], strict=True):
        is_count = value.dtype == torch.int64 and value.dim() == 1
        is_row = value.dtype == floats[0].dtype and value.dim() > 1 and 0 not in value.shape[1:]
        if not is_count and not is_row and cache is None:
            problem = f"its inputs or a part of its state are {tuple(value.shape)} {value.dtype}"
            raise UnsupportedError([Reason(problem)])
    for circumstance in circumstances(layer, floats, [value for value in weights if value.is_floating_point()]):
        raise UnsupportedError([circumstance])  # the first one is enough: the others take longer to find

    # a whole model has one step, so that all of its weights are packed into memory that every call uses
    traced = _traced(step, weights, inputs, state)
    with torch.inference_mode(False), torch.no_grad():
        compiled = CompiledStep(traced, weights, inputs, state, numbers_of(floats[0]))
        _verify(compiled, layer, inputs, state)
    return compiled


def _traced(step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Return a single step as expressions; caches and memories are traced without entries."""
    leaves, caches = leaves_and_caches(state)
    kept = [
        leaf if cache is None else leaf.narrow(time_dimension(leaf), 0, 0)
        for leaf, cache in zip(leaves, caches, strict=True)
    ]
    with tracing_on_cpu(weights, inputs, with_leaves(state, kept)) as arguments:
        return trace(step, *arguments)


def _verify(step: CompiledStep, layer: nn.Module, inputs: Tensor, state: State) -> None:
    """Raise UnsupportedError if results differ from those of the step as it is written, on random numbers."""
    generator = torch.Generator().manual_seed(0)

    def random(leaf: Tensor, count: int | None) -> Tensor:
        shape = list(leaf.shape)
        if count is not None:
            shape[time_dimension(leaf)] = count
        if leaf.is_floating_point():
            return torch.randn(shape, dtype=leaf.dtype, generator=generator)
        return 1 + torch.arange(len(leaf)) % VERIFIED_ENTRIES

    # caches hold a few entries, fewer than a window, and token ids lie within the smallest table
    leaves, _ = leaves_and_caches(state)
    counts: list[int | None] = [None] * len(leaves)
    for cache in step.caches:
        counts[cache.leaf_index] = min(VERIFIED_ENTRIES, cache.window - 1) if cache.window else VERIFIED_ENTRIES
    start = with_leaves(state, map(random, leaves, counts))
    smallest = min((i.extra[0] for i in step.instructions if i.kind == KINDS.index("gather")), default=1)
    inputs = random(inputs, None) if inputs.is_floating_point() else (torch.arange(len(inputs)) + 1) % smallest

    result = step(inputs, start)
    with uncompiled(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
        expected = layer.step(inputs, start)  # type: ignore[operator]
    if result is None:
        raise UnsupportedError([Reason("its step fails in compiled code")])
    rounds_rows = FORMATS.index("int4") in step.formats.values()  # to 16 bits, in products with weights of 4 bits
    tolerance = REDUCED_TOLERANCE if step.reduced or rounds_rows else TOLERANCE[step.dtype]
    if not are_close([result[0], *state_leaves(result[1])], [expected[0], *state_leaves(expected[1])], tolerance):
        raise UnsupportedError([Reason("its values differ from those of its operations")])
