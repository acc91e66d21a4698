"""Operators of single steps that the compiler knows as a whole, because their operands grow or are integers.

While a step is traced, layers call ``torch.ops.seriatim.NAME``; only the shape of the result matters then. Otherwise
they compute the same with PyTorch's operators.

    rotate(vectors, positions, base, num_heads)
        rotary positions of the first heads of ``(batch, heads, size)``; see `seriatim.layers.positions`
    sinusoids(positions, like, base)
        sinusoidal positions ``(batch, size)``, as many features as ``like`` has
    attend_to_memory(queries, memory, lengths, scale)
        the attention of one query for each head to a `seriatim.core.key_value_cache.KeyValueMemory`
    attend_to_rows(queries, values, keys, lengths, vector, scale, before, filter)
        the attention of one query ``(batch, key_size)`` to a memory ``(batch, time, size)``: scores are scale · q·k, or
        with a vector v those of an additive score, v · tanh(q + k); contexts ``(batch, size)``. With the weights
        ``before (batch, time)`` of the step before, the filter over their neighbours is added to the scores, and the
        compiled step replaces this leaf of the state
    dropout_mask(like, shape, p)
        a mask of `seriatim.core.random_masks`, of the type and device of ``like``
    append_and_attend(queries, entry, cache, seen, biases, has_sinks, forgets, scale, window, key_heads)
        appends an entry to a `seriatim.core.key_value_cache`, and attends from one query for each head to the newest
        ``window`` entries (0: all): ``(batch, heads, size)``. The biases are ALiBi's slopes of all heads, if any, and
        then the sinks of all heads, if any. An attention that forgets has log f in the heads of the cache after those
        of keys and values
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch
from torch import Tensor

from .context_values import temporarily

_tracing = ContextVar("tracing a step", default=False)


class NotTraceableError(Exception):
    """A step cannot be traced; the message says why."""


def tracing_step() -> bool:
    """Return whether a whole step is being traced."""
    return _tracing.get()


def step_tracing() -> AbstractContextManager[bool]:
    """Trace a whole step inside the context."""
    return temporarily(_tracing, True)


OPERATORS = {
    "rotate": "(Tensor vectors, Tensor positions, float base, int num_heads) -> Tensor",
    "sinusoids": "(Tensor positions, Tensor like, float base) -> Tensor",
    "attend_to_memory": "(Tensor queries, Tensor memory, Tensor lengths, float scale) -> Tensor",
    "attend_to_rows": (
        "(Tensor queries, Tensor values, Tensor keys, Tensor lengths, Tensor? vector, float scale, Tensor? before, "
        "Tensor? filter) -> Tensor"
    ),
    "dropout_mask": "(Tensor like, int[] shape, float p) -> Tensor",
    "append_and_attend": (
        "(Tensor queries, Tensor entry, Tensor cache, Tensor seen, Tensor? biases, bool has_sinks, bool forgets, "
        "float scale, int window, int key_heads) -> Tensor"
    ),
}
"""The operators and their signatures."""


def _like(first: Tensor, *others: object) -> Tensor:
    return torch.zeros_like(first, memory_format=torch.contiguous_format)


SHAPES: dict[str, Callable[..., Tensor]] = {
    "dropout_mask": lambda like, shape, p: like.new_zeros(shape),
    "sinusoids": lambda positions, like, base: _like(like),
    "attend_to_rows": lambda queries, values, *others: queries.new_zeros(len(queries), values.shape[2]),
}

_library = torch.library.Library("seriatim", "DEF")  # type: ignore[no-untyped-call]
for _name, _signature in OPERATORS.items():
    _library.define(_name + _signature)  # type: ignore[no-untyped-call]
    _library.impl(_name, SHAPES.get(_name, _like), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
