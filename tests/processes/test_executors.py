"""Functions in other processes of this machine: results in order, failures, and what is said when a process ends."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from seriatim.processes import executors
from seriatim.processes.executors import (
    MAX_PROCESSES,
    SERVER,
    InlineExecutor,
    LocalExecutor,
    ProcessEndedError,
    WorkExecutor,
    machine_memory,
    worker_count,
)


@pytest.fixture(scope="module")
def two() -> Iterator[LocalExecutor]:
    with LocalExecutor(2) as executor:
        yield executor


@pytest.fixture(params=["here", "in processes"])
def executor(request: pytest.FixtureRequest) -> WorkExecutor:
    return InlineExecutor() if request.param == "here" else request.getfixturevalue("two")


def test_results_are_in_order_and_errors_are_raised(executor: WorkExecutor) -> None:
    assert list(executor.map_in_order(abs, range(-20, 0))) == list(range(20, 0, -1))
    assert executor.run_all(abs, range(-20, 0)) == list(range(20, 0, -1))
    with pytest.raises(ValueError, match="invalid literal"):
        list(executor.map_in_order(int, ["1", "x"]))


def test_a_process_gets_a_function_once_however_many_arguments_it_gets(two: LocalExecutor) -> None:
    assert two.run_all(partial(int, base=2), ["1", "10", "11", "100"]) == [1, 2, 3, 4]
    assert two.submit(int, "11", base=3).result() == 4
    assert two.submit(abs, -1).result() == 1


def test_a_failed_job_cancels_those_that_wait() -> None:
    with LocalExecutor(1) as executor:
        before = time.monotonic()
        with pytest.raises(ValueError, match="sleep length must be non-negative"):
            executor.run_all(time.sleep, [-1.0, 0.5, 60.0, 60.0])  # the second has begun
        assert executor.run_all(int, ["7", "8"]) == [7, 8]
        assert time.monotonic() - before < 50


def test_a_process_that_ends_is_reported_in_one_line() -> None:
    with LocalExecutor(2) as executor:
        with pytest.raises(ProcessEndedError, match="ended before its job was done") as error:
            list(executor.map_in_order(os._exit, [3, 3, 3]))
        assert error.value.how == "ended early (exit code 3)"


@pytest.mark.parametrize(("number", "advice"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_a_signal_is_named_and_memory_only_where_it_may_be_the_reason(number: signal.Signals, advice: bool) -> None:
    error = ProcessEndedError(-number)
    assert error.how == f"was ended by {number.name}"
    assert error.was_killed == advice


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "content", [b"", pickle.dumps((abs, ("a",), {}))[:-3], pickle.dumps((len, ("a" * 70_000,), {}))[:9000]]
)
def test_a_process_whose_input_ends_anywhere_is_silent(content: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], input=content, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("limit", "count"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8), ("?", 8)]
)
def test_the_limit_of_a_container_is_respected(tmp_path: Path, limit: str, count: int, monkeypatch) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(executors, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    assert worker_count() == count
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(200))
    assert worker_count() == (MAX_PROCESSES if count == 8 else count)


def test_the_memory_of_a_container_counts_where_it_is_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(executors, "CONTROL_GROUPS", ())
    whole = machine_memory()
    limit, used = tmp_path / "limit", tmp_path / "used"
    monkeypatch.setattr(executors, "CONTROL_GROUPS", ((limit, used), (tmp_path / "absent", used)))
    assert machine_memory() == whole
    limit.write_text("max\n")
    used.write_text("300\n")
    assert machine_memory() == whole
    limit.write_text("1000\n")
    assert machine_memory() == 1000
    assert machine_memory(free=True) == 700


def test_few_items_are_read_ahead(executor: WorkExecutor) -> None:
    read = []

    def items() -> Iterator[int]:
        for i in range(30):
            read.append(i)
            yield i

    for done, _ in enumerate(executor.map_in_order(abs, items())):
        assert len(read) <= done + 1 + executor.ahead
    assert len(read) == 30
    assert executor.ahead <= 3


SLEEPER = """
import time
from seriatim.processes.executors import LocalExecutor

with LocalExecutor(2) as executor:
    print(*(process._process.pid for process in executor._processes), flush=True)
    executor.run_all(time.sleep, [60, 60])
"""


def is_running(process: int) -> bool:
    """Whether a process has not ended."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return bool(listed.stdout.strip()) and not listed.stdout.startswith("Z")


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
@pytest.mark.parametrize("seconds", [0.1, 0.5, 3.0])
def test_ctrl_c_ends_the_processes_in_silence(tmp_path: Path, seconds: float) -> None:
    """A terminal sends it to all processes of the group. The script needs no guard against being imported."""
    (tmp_path / "script.py").write_text(SLEEPER)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    others = [int(number) for number in process.stdout.readline().split()]
    assert len(others) == 2
    time.sleep(seconds)
    assert all(map(is_running, others))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.count("Traceback") == 1, errors  # of the script itself
    assert errors.endswith("KeyboardInterrupt\n")
    assert not any(map(is_running, others))


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPER.replace("60, 60", "0.5, 60"))
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    others = [int(number) for number in process.stdout.readline().split()]
    process.kill()
    process.communicate()
    for _ in range(100):  # at most 10 seconds
        if sum(map(is_running, others)) <= 1:  # the other one sleeps
            break
        time.sleep(0.1)
    left = list(filter(is_running, others))
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert len(left) <= 1
