"""Traces a step: runs it on a few rows of zeros while a recorder turns its operators into expressions."""

import functools
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from torch.func import functionalize

from ..core.errors import first_line
from ..core.state import State, map_state, state_leaves
from .operators import NotCompiledError
from .reasons import Reason, UnsupportedError, raising_line
from .recorder import Recorder, Traced

Step = Callable[[Sequence[Tensor], Tensor, State], tuple[Tensor, State]]
"""(weights, inputs (batch, input_size), state) to outputs (batch, output_size) and the next state."""

BATCH_SIZES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)
"""Numbers of rows for tracing: primes, so that a size in a shape can be recognized as the batch."""


def trace(
    step: Step,
    weights: Sequence[Tensor],
    inputs: Tensor,
    state: State,
    recorder_type: "type[Recorder] | None" = None,
    memories: Collection[int] = (),
) -> Traced:
    """Record one step as expressions.

    Only shapes and types of ``inputs`` ``(batch, input_size)`` and ``state`` matter, not their values. ``memories`` are
    the numbers of the parts of the state that a step attends to and does not change.

    Raises:
        UnsupportedError: the step cannot be expressed; the error holds every reason.
    """
    sizes = {size for tensor in (*weights, inputs, *state_leaves(state)) for size in tensor.shape[1:]}
    sizes |= {tensor.shape[0] for tensor in weights if tensor.dim()}
    first, second = [size for size in BATCH_SIZES if size not in sizes][:2]
    make = functools.partial(recorder_type or Recorder, memories=memories)
    traced, other = (_trace_batch(step, weights, inputs, state, size, make) for size in (first, second))
    if (traced.outputs, traced.states) != (other.outputs, other.states):
        raise UnsupportedError([Reason("what the step computes for a row depends on how many rows there are")])
    return traced


def _trace_batch(
    step: Step,
    weights: Sequence[Tensor],
    inputs: Tensor,
    state: State,
    batch: int,
    recorder_type: "Callable[..., Recorder]",
) -> Traced:
    with torch.no_grad():
        leaves = [leaf.new_zeros(batch, *leaf.shape[1:]) for leaf in state_leaves(state)]
        row = inputs.new_zeros(batch, *inputs.shape[1:])
        values = [weight.detach() for weight in weights]
        recorder = recorder_type(values, row, leaves)

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
