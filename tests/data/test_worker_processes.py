"""Processes that encode: results in order, and what is said when one ends."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim.core.errors import TrainingError
from seriatim.data import worker_processes
from seriatim.data.worker_processes import MAX_WORKERS, START, ended_early, map_in_processes, worker_count


def test_a_process_that_ends_is_reported_in_one_line() -> None:
    with pytest.raises(TrainingError, match=r"ended early \(exit code 3\)"):
        list(map_in_processes(os._exit, [3, 3, 3], 2))


@pytest.mark.parametrize(("number", "advice"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_a_signal_is_named_and_memory_only_where_it_may_be_the_reason(number: signal.Signals, advice: bool) -> None:
    message = ended_early(-number)
    assert f"was ended by {number.name}; run again to continue" in message
    assert ("memory" in message) == advice


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "content", [b"", pickle.dumps(abs)[:-3], pickle.dumps(abs) + pickle.dumps("a" * 70_000)[:9000]]
)
def test_a_process_whose_input_ends_anywhere_is_silent(content: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", START], input=content, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("limit", "count"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8), ("?", 8)]
)
def test_the_limit_of_a_container_is_respected(tmp_path: Path, limit: str, count: int, monkeypatch) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(worker_processes, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    assert worker_count() == count
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(200))
    assert worker_count() == (MAX_WORKERS if count == 8 else count)


def test_results_are_in_order_and_errors_are_raised() -> None:
    assert list(map_in_processes(abs, range(-20, 0), 2)) == list(range(20, 0, -1))
    with pytest.raises(ValueError, match="invalid literal"):
        list(map_in_processes(int, ["1", "x"], 2))


def test_few_items_are_read_ahead() -> None:
    read = []

    def items() -> Iterator[int]:
        for i in range(30):
            read.append(i)
            yield i

    for done, _ in enumerate(map_in_processes(abs, items(), 2)):
        assert len(read) <= done + 5
    assert len(read) == 30
