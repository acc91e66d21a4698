"""Shards divide every batch: all rows, each once, and equally many batches for every rank."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.state import join_states
from seriatim.data.batches import Batches, Buckets, IdleBatch
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.processes.ranks import RankShard, join_ranks, refuse_ranks
from seriatim.training.checkpoints import split_carried

from ..refusals import refused


@given(st.integers(0, 40), st.integers(1, 9))
def test_every_row_is_in_one_shard(size: int, count: int) -> None:
    rows = np.arange(size) * 7
    parts = [rows[RankShard(index, count).slice(size)] for index in range(count)]
    assert np.concatenate(parts).tolist() == rows.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for index, part in enumerate(parts):
        shard = RankShard(index, count)
        assert shard.is_idle(rows) == (len(part) == 0)
        if size:
            assert shard.of(rows).tolist() == (part.tolist() or rows[:1].tolist())


def corpus(sizes: list[int]) -> Corpus:
    ids = np.arange(1, sum(sizes) + 1, dtype=np.uint16)
    return Corpus(ids, np.cumsum(sizes, dtype=np.int64), Statistics(tokens=len(ids)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 5))
def test_the_shards_of_lines_are_the_lines(sizes: list[int], count: int, batch_size: int) -> None:
    """Each token is a target once, whatever rank reads it; all ranks read equally many windows."""
    batches = Batches(corpus(sizes), batch_size, 4)
    groups = batches.shuffled(1, 0)
    read = [list(batches.read_shard(groups, RankShard(i, count), skip=0)) for i in range(count)]
    assert {len(windows) for windows in read} == {batches.windows(groups)}
    targets = [
        target
        for batch in (batch for windows in read for batch in windows if not isinstance(batch, IdleBatch))
        for row, length in zip(batch.targets, _lengths(batch), strict=True)
        for target in row[:length].tolist()
    ]
    assert sorted(targets) == list(range(1, sum(sizes) + 1))
    assert sum(batch.tokens for windows in read for batch in windows) == sum(sizes)
    later = [list(batches.read_shard(groups, RankShard(i, count), skip=2)) for i in range(count)]
    for windows, rest in zip(read, later, strict=True):
        assert [type(batch) for batch in windows[2:]] == [type(batch) for batch in rest]


def _lengths(batch) -> list[int]:
    return [batch.targets.shape[1]] * len(batch.targets) if batch.lengths is None else batch.lengths.tolist()


def test_the_shards_of_a_stream_are_its_rows() -> None:
    stream = Corpus(np.arange(1, 24, dtype=np.uint16), None, Statistics(tokens=23))
    batches = Batches(stream, 5, 2)
    groups = batches.shuffled(1, 0)
    whole = list(batches.read(groups))
    parts = [list(batches.read_shard(groups, RankShard(i, 3), skip=0)) for i in range(3)]
    for i, batch in enumerate(whole):
        assert np.concatenate([part[i].rows for part in parts]).tolist() == batch.rows.tolist()
        assert sum(part[i].tokens for part in parts) == batch.tokens


def test_buckets_leave_idle_ranks_a_sequence_that_does_not_count() -> None:
    buckets = Buckets(np.array([3, 1, 2]), 2, lambda rows: corpus_batch(rows))
    groups = buckets.in_order()
    idle = [batch for batch in buckets.read_shard(groups, RankShard(1, 2), skip=0) if isinstance(batch, IdleBatch)]
    assert [batch.rows.tolist() for batch in idle] == [[0]]
    assert (idle[0].tokens, idle[0].terms, idle[0].fresh) == (0, 0, True)


def corpus_batch(rows: np.ndarray):
    return next(iter(Batches(corpus([3, 1, 2]), 3, 9).read([rows])))


@given(st.integers(1, 9), st.integers(1, 5))
def test_carried_rows_are_divided_and_joined(rows: int, count: int) -> None:
    state = (torch.arange(rows * 2.0).view(rows, 2), torch.arange(rows))
    parts = [split_carried(state, RankShard(index, count)) for index in range(count)]
    joined = join_states([part for part, has_rows in parts if has_rows])
    assert all(map(torch.equal, joined, state))


def test_the_environment_of_torchrun_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join_ranks("cpu", 1.0).count == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("required"):
        join_ranks("cpu", 1.0)
    with refused("unsupported"):
        refuse_ranks("a comparison", "--workers or --cluster")
