"""Comparisons on a Dask cluster of two processes of this machine: the same rows, also where a worker is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.comparison.comparing import ComparisonProgress, ComparisonReporter, PresentTraining
from seriatim.processes.cluster import open_cluster

from ..refusals import refused
from .comparisons import SMALL, small

distributed = pytest.importorskip("distributed")
FIXED = {"training": {**SMALL["training"], "evaluate_every": 100}}


@pytest.fixture(scope="module")
def cluster() -> Iterator["distributed.LocalCluster"]:
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as started:
        yield started


class Heard(ComparisonReporter):
    """Keeps the events; kills a worker of the cluster at the first step of a layer."""

    def __init__(self, process: int | None = None) -> None:
        self.process, self.events = process, list[tuple[str, str]]()

    def hear(self, progress: ComparisonProgress, training: PresentTraining, event: dict) -> None:
        self.events.append((training.layer, event["event"]))
        if self.process is not None:
            os.kill(self.process, signal.SIGKILL)
            self.process = None


@pytest.mark.exhaustive
def test_rows_are_the_same_on_a_cluster_also_where_a_worker_is_killed(cluster, texts, tmp_path: Path) -> None:
    here = seriatim.compare({**small(texts, tmp_path / "here"), **FIXED}, layers=["gru", "rnn"], steps=300)
    killed = next(iter(cluster.workers.values())).pid
    for name, process in (("there", None), ("killed", killed)):
        reporter = Heard(process)
        there = seriatim.compare(
            {**small(texts, tmp_path / name), **FIXED},
            layers=["gru", "rnn"],
            steps=300,
            cluster=cluster.scheduler_address,
            reporter=reporter,
        )
        assert not there.failures
        assert [row["metrics"] for row in there.results["rows"]] == [row["metrics"] for row in here.results["rows"]]
        assert {layer for layer, _ in reporter.events} == {"gru", "rnn"}
        assert {"begin", "validation", "measuring"} <= {event for _, event in reporter.events}
    assert next(iter(cluster.workers.values())).pid != killed


@pytest.mark.exhaustive
def test_a_restarted_worker_trains_beside_one_with_a_free_thread(texts, tmp_path: Path) -> None:
    """The row of the killed worker does not wait for that of the other one, whose second thread seems to be free."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        found = seriatim.compare(
            small(texts, tmp_path / "out"),
            layers=["gru", "rnn"],
            minutes=0.3,
            cluster=cluster.scheduler_address,
            reporter=Heard(next(iter(cluster.workers.values())).pid),
        )
    assert not found.failures
    assert [run["at_once"] for row in found.rows for run in row["runs"]] == [2, 2]


def test_jobs_on_a_cluster(cluster) -> None:
    with open_cluster(cluster.scheduler_address) as connected:
        assert connected.run_all(abs, [-1, 2]) == [1, 2]
        assert connected.worker_count == 2
        assert connected.run_on_every_worker(abs, -3) == [3, 3]


def test_a_cluster_without_workers_is_refused() -> None:
    with (
        distributed.LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as empty,
        refused("unavailable", "--cluster"),
        open_cluster(empty.scheduler_address),
    ):
        pass
