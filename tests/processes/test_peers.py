"""Ranks find out which of them stopped, died or hangs, and agree on one that reports it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from seriatim.core.errors import InputError, TrainingError
from seriatim.processes import peers
from seriatim.processes.peers import Peers, RankError, rendezvous
from seriatim.processes.ranks import is_lost_connection


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
    assert reason.kind is not None
    assert str(reason) == "rank 1: data.train: no such file"


def test_a_rank_without_signs_of_life_is_named(pair: tuple[Peers, Peers]) -> None:
    leader, other = pair
    leader.explain(RuntimeError("the rank has been seen alive"))
    other.close()
    assert "rank 1 died or was suspended" in str(leader.explain(RuntimeError("Connection closed by peer")))


def test_a_rank_that_waits_for_no_exchange_is_named(pair: tuple[Peers, Peers]) -> None:
    assert str(pair[0].explain(RuntimeError("Timed out"))) == (
        "rank 1 did not answer within 5 seconds (training.rank_timeout)"
    )


def test_if_all_ranks_wait_the_connection_was_lost(pair: tuple[Peers, Peers]) -> None:
    pair[1].store.set("noticed/1", "yes")
    assert "the connection between the ranks was lost (Timed out)" in str(pair[0].explain(RuntimeError("Timed out")))


def test_an_error_of_this_rank_is_no_error_of_an_exchange() -> None:
    assert not is_lost_connection(RuntimeError("[enforce fail] not enough memory: you tried to allocate 8 bytes"))
    assert not is_lost_connection(TrainingError("step 3: the loss is nan"))
    assert not is_lost_connection(LookupError("Connection closed"))
    assert is_lost_connection(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert is_lost_connection(RuntimeError("Application timeout caused pair closure"))


def test_ranks_meet_whatever_earlier_starts_have_left(pair: tuple[Peers, Peers]) -> None:
    store = pair[0].store
    store.set("hello/1", "of an earlier start")
    names = set()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            first, second = pool.map(lambda one: rendezvous(one.store, one.index, 2, 5.0), pair)
            assert first == second
            names.add(first)
    assert len(names) == 2


def test_a_rank_that_does_not_come_is_named(pair: tuple[Peers, Peers]) -> None:
    with pytest.raises(RankError, match=r"ranks 1, 2 did not join within 0\.1 seconds"):
        rendezvous(pair[0].store, 0, 3, 0.1)
    with pytest.raises(RankError, match=r"rank 0 did not join within 0\.1 seconds"):
        rendezvous(pair[1].store, 1, 3, 0.1)


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
