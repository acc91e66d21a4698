"""Traces a step: runs it on a few rows of zeros while a recorder turns its operators into expressions.

Tracing does not see `torch.no_grad`, hand-written gradients or hooks, which change gradients. So the expressions of a
loop are compared with the step itself once (`verify`): values and gradients, on a few random rows, in double precision
unless its weights are large.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functionalize

from ..core.errors import first_line
from ..core.state import FunctionalStep, State, map_state, state_leaves, with_leaves
from ..core.step_operators import step_tracing
from .expressions import Node, node, operands_of, walk
from .fallback_reasons import Reason, UnsupportedError, raising_line
from .heads import HeadStep, lower_heads
from .lower import as_rows
from .operators import EPSILON, NotCompiledError, evaluate
from .recorder import Recorder, Traced

BATCH_SIZES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)
"""Numbers of rows for tracing: primes, so that a size in a shape can be recognized as the batch."""
ROWS = 3
"""Numbers of rows for verification."""
ENTRIES = 4
"""Entries of a memory, of which the rows have 0, 1, 2 …"""
LARGE = 1 << 20
"""From this number of values on, the weights are compared in their own type, which saves the memory for copies."""


def trace(step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State) -> Traced:
    """Record one step as expressions.

    Only shapes and types of ``inputs`` ``(batch, ...)`` and ``state`` matter, not their values.

    Raises:
        UnsupportedError: the step cannot be expressed; the error holds every reason.
    """
    sizes = {size for tensor in (*weights, inputs, *state_leaves(state)) for size in tensor.shape[1:]}
    sizes |= {tensor.shape[0] for tensor in weights if tensor.dim()}
    first, second = [size for size in BATCH_SIZES if size not in sizes][:2]
    with step_tracing():
        traced, other = (_trace_batch(step, weights, inputs, state, size) for size in (first, second))
    if (traced.outputs, traced.states) != (other.outputs, other.states):
        raise UnsupportedError([Reason("what the step computes for a row depends on how many rows there are")])
    return traced


def trace_loop(
    step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State, memories: Mapping[int, int]
) -> tuple[Traced, HeadStep | None]:
    """Record the step of a loop as expressions of rows of features, or else of heads, and verify them.

    ``memories`` are the leaves of the state that the step attends to and does not change, with the size of an entry.

    Raises:
        UnsupportedError: the step cannot be expressed; the error holds every reason.
    """
    traced, heads = trace(step, weights, inputs, state), None
    shapes = [tuple(leaf.shape[1:]) for leaf in state_leaves(state)]
    try:
        traced = as_rows(traced, memories)
    except UnsupportedError:
        if memories or max(map(len, shapes), default=1) == 1 or any(0 in shape for shape in shapes):
            raise
        heads = lower_heads(traced, shapes)
    verify(step, traced, weights, state)
    return traced, heads


def _trace_batch(step: FunctionalStep, weights: Sequence[Tensor], inputs: Tensor, state: State, batch: int) -> Traced:
    with torch.no_grad():
        leaves = [leaf.new_zeros(batch, *leaf.shape[1:]) for leaf in state_leaves(state)]
        row = inputs.new_zeros(batch, *inputs.shape[1:])
        values = [weight.detach() for weight in weights]
        recorder = Recorder(values, row, leaves)

        # a function of lists of tensors, as `functionalize` needs: it turns changes in place into operators
        def flat(weights: Sequence[Tensor], inputs: Tensor, leaves: list[Tensor]) -> list[Tensor]:
            remaining = iter(leaves)
            recorder.calls_in_step.arguments = set(map(id, (*weights, inputs, *leaves)))
            with recorder.calls_in_step:
                returned: object = step(weights, inputs, map_state(lambda _: next(remaining), state))
            if not isinstance(returned, tuple | list) or len(returned) != 2:
                kind = type(returned).__name__
                raise NotCompiledError(f"the step must return a pair (outputs, state); it returns {kind}")
            outputs, new = returned
            try:
                map_state(lambda old, new: old, state, new)
            except (TypeError, ValueError, AttributeError):
                problem = "the step returns a state of another structure than the one it is given"
                raise NotCompiledError(problem) from None
            return [outputs, *state_leaves(new)]

        try:
            with torch.random.fork_rng(devices=[]), recorder:
                results = functionalize(flat)(values, row, leaves)
            if not recorder.reasons:
                return recorder.finish(results, leaves)
        except NotCompiledError as error:  # about what the step returns
            recorder.reasons.append(Reason(str(error)))
        except Exception as error:  # the reference loop raises the user's exceptions again
            problem = f"it cannot be traced: {first_line(error) or type(error).__name__}"
            recorder.reasons.append(Reason(problem, raising_line(error)))
        raise UnsupportedError(recorder.reasons)


def verify(step: FunctionalStep, traced: Traced, weights: Sequence[Tensor], state: State) -> None:
    """Raise UnsupportedError if the values or gradients differ."""
    generator = torch.Generator().manual_seed(0)
    is_large = sum(weight.numel() for weight in weights) > LARGE
    has_epsilon = any(value.is_number(EPSILON) for value in walk([traced.outputs, *traced.states]))
    in_own_type = (is_large or has_epsilon) and state_leaves(state)
    dtype = state_leaves(state)[0].dtype if in_own_type else torch.float64
    tolerance = 1e-7 if dtype == torch.float64 else 1e-3

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()

    def example(leaf: Tensor, value: Node) -> Tensor:
        if value.op == "memory":
            sizes = (ENTRIES, *leaf.shape[2:])
            return random(ROWS, *sizes) if leaf.is_floating_point() else torch.arange(ROWS) % (ENTRIES + 1)
        return random(ROWS, *leaf.shape[1:])

    def perturb(weight: Tensor) -> Tensor:
        """Add small positive numbers: a weight of zero could hide a difference, a positive one must stay positive."""
        added = 0.1 * torch.rand(weight.shape, dtype=dtype, generator=generator)
        return (weight.detach().to(dtype) + added).requires_grad_()

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        perturbed = [perturb(weight) if weight.is_floating_point() else weight for weight in weights]
        inputs = random(ROWS, traced.leaves[0].width)
        start = with_leaves(state, map(example, state_leaves(state), traced.leaves[1:]))
        leaves = state_leaves(start)

        # both draw the same random numbers, because expressions record draws in the order of the step
        torch.manual_seed(0)
        try:
            outputs, after = step(perturbed, inputs, start)
        except Exception as error:
            problem = f"it does not run in double precision: {first_line(error) or type(error).__name__}"
            raise UnsupportedError([Reason(problem, raising_line(error))]) from None
        torch.manual_seed(0)
        values = {value: value.attribute.draw(ROWS, value.width, inputs) for value in traced.noise}
        for value, tensor in zip(traced.leaves, (inputs, *leaves), strict=True):
            values[value] = tensor if value.op == "memory" else tensor.reshape(ROWS, -1)
        constants: list[Tensor] = [value.to(dtype) for value in traced.constants(perturbed)]

        # what the step returns must be what its expressions give
        pairs = [(traced.outputs, outputs), *_states(traced, state_leaves(after))]
        expected = [value.reshape(ROWS, -1) for _, value in pairs]
        results = evaluate([value for value, _ in pairs], values, constants, inputs)
        results = [value.expand_as(other) for value, other in zip(results, expected, strict=True)]
        if not are_close(results, expected, tolerance):
            raise UnsupportedError([Reason("its values differ from those of its operations")])

        # and so must the gradients, in one random direction, by everything that can have one
        leaves = [leaf for leaf in leaves if leaf.requires_grad]
        sources = [inputs, *leaves, *(weight for weight in perturbed if weight.requires_grad)]
        cotangents = [random(*value.shape).detach() for value in expected]
        gradients, expected_gradients = (_gradients(values, sources, cotangents) for values in (results, expected))
        if not are_close(gradients, expected_gradients, tolerance):
            problem = "its gradients differ from those of its operations (a hand-written gradient or a hook)"
            raise UnsupportedError(traced.untraced or [Reason(problem)])


def _states(traced: Traced, leaves: Sequence[Tensor]) -> list[tuple[Node, Tensor]]:
    """Return every leaf of the state that a step computes, and its value."""
    attentions = [value for value in walk([traced.outputs, *traced.states]) if value.op == "attend"]
    weights = {operands_of(value).before: node("attended", value) for value in attentions}
    states = iter(traced.states)
    pairs = []
    for before, leaf in zip(traced.leaves[1:], leaves, strict=True):
        if before.op == "state":
            pairs.append((next(states), leaf))
        elif before in weights:
            pairs.append((weights[before], leaf))
    return pairs


def _gradients(values: list[Tensor], sources: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
    # one number, because PyTorch imports its symbolic algebra to differentiate several
    total = torch.stack([(value * other).sum() for value, other in zip(values, cotangents, strict=True)]).sum()
    if not total.requires_grad:
        return [torch.zeros_like(tensor) for tensor in sources]
    return list(torch.autograd.grad(total, sources, retain_graph=True, allow_unused=True, materialize_grads=True))


def are_close(results: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> bool:
    """Return whether values agree, relative to the largest one of each tensor."""
    for a, b in zip(results, expected, strict=True):
        largest = b.detach().abs().nan_to_num().max().item() if b.numel() else 0.0
        if not torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance * (largest + 1e-2), equal_nan=True):
            return False
    return True
