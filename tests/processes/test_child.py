"""Work in a process of its own: its failures are one line each."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seriatim.core.errors import InputError, TrainingError
from seriatim.processes.child import one_line, run_module


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


CHILD = """
from seriatim.processes.signals import signals_deferred
from seriatim.processes.child import serve
from pathlib import Path
import time

def work(arguments, emit):
    with signals_deferred() as stop_signal:
        while stop_signal() is None:
            emit({"event": "step"})
            time.sleep(0.01)
    Path(arguments["saved"]).write_text(str(int(stop_signal())))

serve(work)
"""


PRINTING = """
print("a library says")
print(5)
print({})

from seriatim.processes.child import serve

serve(lambda arguments, emit: [print("more"), emit({"event": "step"}), emit({"event": "done", **arguments})])
"""


def test_what_other_code_prints_is_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "printing_child.py").write_text(PRINTING)
    monkeypatch.syspath_prepend(tmp_path)
    events: list[dict] = []
    assert run_module("printing_child", {"value": 1}, events.append, lambda: None) == {"event": "done", "value": 1}
    assert events == [{"event": "step"}, {"event": "done", "value": 1}]


def test_a_child_whose_parent_is_gone_saves_and_stops(tmp_path: Path) -> None:
    (tmp_path / "work.json").write_text(f'{{"saved": "{tmp_path / "saved"}"}}')
    command = [sys.executable, "-c", CHILD, str(tmp_path / "work.json")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b'{"event": "step"}\n'
    child.stdin.close()
    child.stdout.close()
    assert child.wait(timeout=60) == 0
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGTERM))
