"""A loop over time that other programs can run: PyTorch's operator ``scan``, which becomes Scan in ONNX."""

from collections.abc import Callable, Sequence

from torch import Tensor


def time_scan(
    step: Callable[..., list[Tensor]], state: Sequence[Tensor], sequences: Sequence[Tensor], constants: Sequence[Tensor]
) -> list[Tensor]:
    """Run a step over sequences of at least one place, for export only: as a computation, a loop is much faster.

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
