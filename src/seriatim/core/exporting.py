"""Whether the model is being exported (ONNX), and the loop over time that an exported model has.

While it is exported, Python code runs once, with tensors whose sizes and values are not known, so that nothing may
depend on them. A loop over time is PyTorch's operator ``scan`` then, which becomes Scan in ONNX.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar

from torch import Tensor

from .context_values import temporarily

_exporting = ContextVar("exporting", default=False)


def exporting() -> bool:
    """Return whether a model is being exported."""
    return _exporting.get()


def as_export() -> AbstractContextManager[bool]:
    """Run what is inside the context for an export."""
    return temporarily(_exporting, True)


def time_scan(
    step: Callable[..., list[Tensor]], state: Sequence[Tensor], sequences: Sequence[Tensor], constants: Sequence[Tensor]
) -> list[Tensor]:
    """Run a step over sequences of at least one position, for export only: as a computation, a loop is much faster.

    Args:
        step: from the tensors of the state, one of each sequence and the constants to the next state and outputs, none
            of which may share memory with another.
        state: before the first step.
        sequences: ``(time, ...)``.
        constants: what every step reads; a step must read no other tensors.

    Returns:
        The state after the last step, then the outputs ``(time, ...)``.
    """
    from torch._higher_order_ops.scan import scan_op  # its function `scan` compiles the step, which may be any code

    return list(scan_op(step, list(state), list(sequences), tuple(constants)))
