"""N-grams that a Dask cluster on this machine counts, and clusters that cannot be used."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.counting.ngrams import counting_jobs
from seriatim.processes import cluster as clusters

from ..refusals import refused
from .test_counting_jobs import config, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:too few"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # of the probe for the machine's address
    pytest.mark.filterwarnings("ignore:Port 8787 is already in use:UserWarning"),  # even without a dashboard
]


def cluster_of(workers: int) -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=workers,
        processes=True,
        threads_per_worker=1,
        dashboard_address=None,
        host="127.0.0.1",
        silence_logs=50,
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def two_workers() -> Iterator[str]:
    yield from cluster_of(2)


@pytest.fixture
def no_workers() -> Iterator[str]:
    yield from cluster_of(0)


def line_of_failure(texts: dict[str, str], folder: Path, cluster: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Count on a cluster that cannot be used; nothing is left behind."""
    command = ["train", "lm", "--data", texts["train"], "--layer", "ngram", "--out", str(folder / "run"), "--quiet"]
    assert main([*command, "--model.options.cluster", cluster]) in (1, 2)
    assert not list((folder / "run").glob("*partial*"))
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.exhaustive
def test_a_cluster_writes_the_same_file(
    texts: dict[str, str], two_workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(texts, tmp_path / "whole", word_dropout=0.5)
    monkeypatch.setattr(counting_jobs, "SMALLEST", 500)  # several shards
    assert weights(texts, tmp_path / "cluster", word_dropout=0.5, cluster=two_workers) == whole


@pytest.mark.exhaustive
def test_a_killed_worker_of_a_cluster_is_one_line(
    texts: dict[str, str], two_workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(counting_jobs, "count_job", lambda job: os._exit(1))
    assert "ended before its job was done" in line_of_failure(texts, tmp_path, two_workers, capsys)


def test_a_cluster_without_workers_is_refused(texts: dict[str, str], no_workers: str, tmp_path: Path, capsys) -> None:
    line = line_of_failure(texts, tmp_path, no_workers, capsys)
    assert f"model.options.cluster: the scheduler at {no_workers} has no workers; start some" in line


def test_a_scheduler_that_does_not_answer_is_refused(
    texts: dict[str, str], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 0.2)
    line = line_of_failure(texts, tmp_path, "tcp://127.0.0.1:1", capsys)
    assert "model.options.cluster: no Dask scheduler answers at tcp://127.0.0.1:1" in line


def test_dask_is_asked_for_if_it_is_missing(
    texts: dict[str, str], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    line = line_of_failure(texts, tmp_path, "tcp://127.0.0.1:1", capsys)
    assert "model.options.cluster: needs the package distributed; install it" in line


def test_an_empty_address_is_refused(texts: dict[str, str], tmp_path: Path) -> None:
    with refused("range", "model.options.cluster"):
        seriatim.train(config(texts, tmp_path / "run", cluster=""))
