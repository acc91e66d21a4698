"""Ranks find out which of them stopped, died or hangs, and agree on one that reports it."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from seriatim.core.errors import InputError
from seriatim.distributed import peers
from seriatim.distributed.peers import Peers, RankError


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Peers, Peers]]:
    """Two ranks with short times, in one process."""
    for name, seconds in {"BEAT_SECONDS": 0.05, "SILENT_SECONDS": 0.4, "NAMING_SECONDS": 1.0}.items():
        monkeypatch.setattr(peers, name, seconds)
    monkeypatch.setattr(peers, "WAITING_SILENT_SECONDS", 0.4)
    monkeypatch.setattr(peers, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(peers, "POLL_SECONDS", 0.01)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    address = "127.0.0.1", store.port
    both = Peers(0, 2, address, "test", 5.0), Peers(1, 2, address, "test", 5.0)
    yield both
    for each in both:
        each.close()


def test_an_error_reaches_the_others(pair: tuple[Peers, Peers]) -> None:
    leader, other = pair
    other.post(InputError("data.train: no such file"))
    reason = leader.explain(RuntimeError("Connection closed by peer"))
    assert isinstance(reason, RankError)
    assert reason.is_bad_input
    assert str(reason) == "rank 1: data.train: no such file"


def test_a_rank_without_signs_of_life_is_named(pair: tuple[Peers, Peers]) -> None:
    leader, other = pair
    leader.explain(RuntimeError("the rank has been seen alive"))
    other.close()
    assert "rank 1 died or was suspended" in str(leader.explain(RuntimeError("Connection closed by peer")))


def test_a_rank_that_is_late_is_named(pair: tuple[Peers, Peers]) -> None:
    leader, _ = pair
    leader.exchanges = 3
    assert str(leader.explain(RuntimeError("Timed out"))) == (
        "rank 1 did not answer within 5 seconds (training.rank_timeout)"
    )


def test_an_error_of_this_rank_is_no_error_of_another(pair: tuple[Peers, Peers]) -> None:
    error = RuntimeError("out of memory")
    assert pair[0].explain(error) is error


def test_one_rank_reports(pair: tuple[Peers, Peers]) -> None:
    reports: dict[int, bool] = {}
    threads = [threading.Thread(target=lambda one=one: reports.update({one.index: one.reports()})) for one in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports == {0: True, 1: False}
    assert not pair[1].reports()


def test_without_the_leader_another_rank_reports(pair: tuple[Peers, Peers]) -> None:
    assert pair[1].reports()


def test_waiting_ends_when_the_other_rank_writes_or_dies(pair: tuple[Peers, Peers]) -> None:
    leader, other = pair
    threading.Timer(0.2, lambda: leader.store.set("result/1", "7")).start()
    assert other.wait("result/1", writer=0) == b"7"
    leader.close()
    with pytest.raises(RankError, match="rank 0 died or was suspended"):
        other.wait("result/2", writer=0)
