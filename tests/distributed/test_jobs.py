"""Jobs: results in order, failures, interrupts, and clusters that are lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from seriatim.core.errors import InputError, TrainingError
from seriatim.distributed import clusters, jobs
from seriatim.distributed.clusters import Cluster, is_address, open_cluster
from seriatim.distributed.jobs import Jobs, open_jobs

from ..tasks.test_counting_cluster import cluster_of


def test_a_failed_job_cancels_those_that_wait() -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match="invalid literal"):
            Jobs(pool).run(int, ["x", "1", "1", "1"])
        assert Jobs(pool).run(int, ["7", "8"]) == [7, 8]


class Client:
    """A connection as Dask has it."""

    def __init__(self) -> None:
        self.status, self.workers = "running", {"a": {}}

    def scheduler_info(self) -> dict:
        return {"workers": self.workers}


class Never(Executor):
    """Does no job, and says so after a while if it is ``lost``."""

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost

    def submit(self, *_: object) -> Future:
        future: Future = Future()
        if self.lost:
            future.cancel()
            future.set_running_or_notify_cancel()
        return future


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(clusters, "ALONE_SECONDS", 0.1)


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_connection_ends_the_wait(impatient: None, lost: bool) -> None:
    client, executor = Client(), Never(lost=lost)
    client.status = "closed"
    with pytest.raises(TrainingError, match=r"the connection to the cluster at tcp://a:1 was lost; start"):
        Jobs(executor, Cluster(client, executor, "tcp://a:1")).run(abs, [1])


def test_a_cluster_without_workers_ends_the_wait(impatient: None) -> None:
    client, executor = Client(), Never()
    cluster = Cluster(client, executor, "tcp://a:1")
    assert cluster.problem() is None
    client.workers = {}
    assert cluster.problem() is None  # they may be starting again
    with pytest.raises(TrainingError, match=r"tcp://a:1 has no workers any more; start some: dask worker tcp://a:1"):
        Jobs(executor, cluster).run(abs, [1])


@pytest.mark.parametrize("address", ["tcp://host:8786", "host:1", "127.0.0.1:65535", "tcp://[::1]:8786"])
def test_addresses(address: str) -> None:
    assert is_address(address)


@pytest.mark.parametrize("address", ["", "host", "http://host:8786", "tls://host:1", "host:0", "host:65536", "a b:1"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    assert not is_address(address)
    refused = pytest.raises(InputError, match="is not the address of a scheduler; write for instance tcp://host:8786")
    with refused, open_cluster(address):
        pass


@pytest.fixture(scope="module")
def one_worker() -> Iterator[str]:
    yield from cluster_of(1)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning", "ignore:Port 8787:UserWarning")
def test_workers_of_another_version_are_refused(one_worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cluster(one_worker) as cluster:
        assert cluster.count_workers() == 1
    monkeypatch.setattr(clusters, "__version__", "99")
    refused = pytest.raises(InputError, match=r"has version [0-9.]+ of seriatim, not 99; install the same")
    with refused, open_cluster(one_worker):
        pass


SLEEPER = """
import time
from seriatim.distributed.jobs import open_jobs

if GUARD:
    with open_jobs(2) as pool:
        print("begun", flush=True)
        pool.run(time.sleep, [60, 60])
"""


def run_sleeper(folder: Path, guard: str) -> subprocess.Popen:
    script = folder / "script.py"
    script.write_text(SLEEPER.replace("GUARD", guard))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
@pytest.mark.parametrize("seconds", [0.1, 0.5, 3.0])
def test_ctrl_c_ends_the_processes_in_silence(tmp_path: Path, seconds: float) -> None:
    """A terminal sends it to all processes of the group; only the one that waits for the others hears it."""
    process = run_sleeper(tmp_path, "__name__ == '__main__'")
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.count("Traceback") == 1, errors  # of the script itself
    assert errors.endswith("KeyboardInterrupt\n")
    for _ in range(100):  # at most 10 seconds
        if not (left := running_in_group(process.pid)):
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {left}")


def running_in_group(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [row[2] for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


@pytest.mark.exhaustive
def test_a_script_without_guard_is_told_so(tmp_path: Path) -> None:
    process = run_sleeper(tmp_path, "True")
    _, errors = process.communicate(timeout=60)
    remedy = 'the script lacks `if __name__ == "__main__":` before it trains'
    assert any(line.endswith(remedy) for line in errors.splitlines()), errors  # children may write after it


def test_processes_do_jobs(tmp_path: Path) -> None:
    with open_jobs(1) as pool:
        assert pool.run(abs, [-1, 2]) == [1, 2]
