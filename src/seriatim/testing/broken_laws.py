"""What it means to break a law: the laws in words, the error that names one, and how values are compared."""

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.contract import MemoryLayer, RecurrentCell, SequenceLayer
from ..core.errors import first_line
from ..core.state import State, state_leaves

LAWS = {
    1: "splitting a sequence anywhere and carrying the state gives the same outputs and final state",
    2: "T steps equal one forward",
    3: "padding may hold NaN: valid outputs, state and gradients are unaffected",
    4: "a row of length 0 keeps its state",
    5: "no output depends on a later input",
    6: "the given state is never changed in place",
    7: "rows are independent: select_state commutes with step",
    8: "a state saved and loaded continues identically",
}
BATCH = 4
TOLERANCE, TOLERANCE_FLOAT32 = 1e-7, 1e-5
Part: TypeAlias = SequenceLayer | RecurrentCell


class LawError(AssertionError):
    """A layer or a cell breaks the contract. The message is one line.

    Attributes:
        law: the number of the law in `LAWS`; None for the shapes and types that the laws build on.
    """

    def __init__(self, subject: object, law: int | None, problem: str) -> None:
        rule = "the contract" if law is None else f"law {law} ({LAWS[law]})"
        super().__init__(f"{type(subject).__name__} breaks {rule}: {problem}")
        self.law = law


@contextlib.contextmanager
def one_line(part: object, law: int | None, mode: str = "") -> Iterator[None]:
    """Report whatever a layer raises as a broken law, and end the message with ``mode``."""
    try:
        yield
    except LawError as error:
        error.args = (f"{error}{mode}",)
        raise
    except (Exception, SystemExit) as error:
        reason = ": ".join(filter(None, [type(error).__name__, first_line(error)]))
        raise LawError(part, law, f"it raises {reason}{mode}") from error


def compare(part: object, law: int, what: str, values: Tensor, expected: Tensor, remedy: str = "") -> None:
    """Raise LawError where two tensors differ by more than rounding."""
    if values.shape != expected.shape:
        raise LawError(part, law, f"{what} have shape {tuple(values.shape)}, not {tuple(expected.shape)}")
    tolerance = TOLERANCE if values.dtype == torch.float64 else TOLERANCE_FLOAT32
    if torch.allclose(values, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return
    difference = (values.double() - expected.double()).abs()
    largest = "NaN" if bool(difference.isnan().any()) else f"up to {float(difference.max()):.3g}"
    raise LawError(part, law, f"{what} of shape {tuple(values.shape)} differ by {largest}{remedy}")


def require_same_bits(part: object, state: State, before: State, problem: str) -> None:
    """Raise LawError for law 6 unless a state is exactly what it was before."""
    if not all(map(torch.equal, state_leaves(state), state_leaves(before))):
        raise LawError(part, 6, problem)


def is_state(value: object) -> bool:
    """Return whether a value is a tensor or a tuple of states."""
    return isinstance(value, Tensor) or (isinstance(value, tuple) and all(map(is_state, value)))


def type_in_words(value: object) -> str:
    """Return the type of a value in words, for messages."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def shapes_of(state: State) -> str:
    """Return the shapes of all tensors of a state, for messages."""
    return ", ".join(str(tuple(leaf.shape)) for leaf in state_leaves(state)) or "none"


def initial_state(part: Part, memory: Tensor | None, memory_lengths: Tensor | None) -> State:
    """Return the initial state of ``BATCH`` rows; raise LawError for a `MemoryLayer` without a memory."""
    if not isinstance(part, MemoryLayer):
        return part.initial_state(BATCH)
    if memory is None:
        raise LawError(part, None, "it attends to a memory; give check_layer a memory (4, memory_time, memory_size)")
    return part.initial_state(BATCH, memory, memory_lengths)
