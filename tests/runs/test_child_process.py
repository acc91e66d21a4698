"""Work in a process of its own: its failures are one line each."""

import pytest

from seriatim.core.errors import InputError, TrainingError
from seriatim.runs.child_process import one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("data.train: no such file"), "data.train: no such file"),
        (TrainingError("the loss is NaN"), "the loss is NaN"),
        (MemoryError(), "out of memory; lower training.batch_size, training.sequence_length or the sizes"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore"),
            "out of memory; lower training.batch_size, training.sequence_length or the sizes",
        ),
        (
            OSError(28, "No space left on device", "runs/a"),
            "runs/a: No space left on device; check space and permissions",
        ),
        (ZeroDivisionError("division by zero"), "the training process failed (ZeroDivisionError: division by zero)"),
    ],
)
def test_what_ends_a_process_is_one_plain_line(error: Exception, line: str) -> None:
    assert one_line(error) == line
