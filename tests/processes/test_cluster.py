"""Executors of clusters: clusters that are lost, addresses, versions."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future

import pytest

from seriatim.core.errors import TrainingError
from seriatim.processes import cluster
from seriatim.processes.cluster import ClusterExecutor, is_address, open_cluster

from ..refusals import refused
from ..tasks.test_counting_cluster import cluster_of


class Never(Executor):
    """Does no job, and says so at once if it is ``lost``."""

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost

    def submit(self, *_: object) -> Future:
        future: Future = Future()
        if self.lost:
            future.cancel()
            future.set_running_or_notify_cancel()
        return future


class Client:
    """A connection as Dask has it."""

    def __init__(self, executor: Executor) -> None:
        self.status, self.workers, self.executor = "running", {"a": 1}, executor

    def nthreads(self) -> dict:
        return self.workers

    def get_executor(self, *, pure: bool) -> Executor:
        return self.executor


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 0.1)


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_connection_ends_the_wait(impatient: None, lost: bool) -> None:
    client = Client(Never(lost=lost))
    client.status = "closed"
    with pytest.raises(TrainingError, match=r"the connection to the cluster at tcp://a:1 was lost; start"):
        ClusterExecutor(client, "tcp://a:1").run_all(abs, [1])


def test_a_cluster_without_workers_ends_the_wait(impatient: None) -> None:
    client = Client(Never())
    executor = ClusterExecutor(client, "tcp://a:1")
    assert (executor.worker_count, executor.lost) == (1, None)
    client.workers = {}
    with pytest.raises(TrainingError, match=r"tcp://a:1 has no workers any more; start some: dask worker tcp://a:1"):
        executor.run_all(abs, [1])
    assert (executor.worker_count, str(executor.lost)[:11]) == (0, "the cluster")


def test_workers_that_start_again_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CHECK_SECONDS", 0.01)
    client = Client(Never())
    executor = ClusterExecutor(client, "tcp://a:1")
    for workers in ({}, {"b": 1, "c": 1}):
        client.workers = workers
        while executor.worker_count != len(workers):
            assert executor.lost is None
    executor.shutdown()


@pytest.mark.parametrize("address", ["tcp://host:8786", "host:1", "127.0.0.1:65535", "tcp://[::1]:8786"])
def test_addresses(address: str) -> None:
    assert is_address(address)


@pytest.mark.parametrize("address", ["", "host", "http://host:8786", "tls://host:1", "host:0", "host:65536", "a b:1"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    assert not is_address(address)
    with refused("malformed", "--cluster"), open_cluster(address):
        pass


@pytest.fixture(scope="module")
def one_worker() -> Iterator[str]:
    yield from cluster_of(1)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning", "ignore:Port 8787:UserWarning")
def test_workers_of_another_version_are_refused(one_worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cluster(one_worker) as executor:
        assert executor.worker_count == 1
    monkeypatch.setattr(cluster, "__version__", "99")
    with refused("mismatch", "--cluster", "99"), open_cluster(one_worker):
        pass
