"""Shuffled groups that are computed when they are read are those of a list that is computed at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seriatim.data.batches import POOL, Batches, ShuffledGroups
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics


def all_at_once(lengths: np.ndarray, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The definition."""
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    groups = []
    for start in range(0, len(order), size * POOL):
        rows = order[start : start + size * POOL]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        groups += [rows[i : i + size] for i in range(0, len(rows), size)]
    return [groups[i] for i in generator.permutation(len(groups))]


@given(st.lists(st.integers(1, 9), max_size=200), st.integers(1, 7), st.integers(0, 99), st.integers(0, 3))
def test_groups_are_those_of_the_definition(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    found = ShuffledGroups(np.array(lengths, dtype=np.int32), size, seed, epoch)
    expected = all_at_once(np.array(lengths, dtype=np.int64), size, seed, epoch)
    assert [group.tolist() for group in found] == [group.tolist() for group in expected]
    assert [group.tolist() for group in found[1:]] == [group.tolist() for group in expected[1:]]
    longest = [max(lengths[row] for row in group) for group in expected]
    assert sorted(np.concatenate([np.zeros(0), *found.longest()]).tolist()) == sorted(longest)


@given(st.lists(st.integers(1, 99), max_size=200), st.integers(1, 7), st.integers(0, 99))
def test_groups_by_tokens_have_every_row_once(lengths: list[int], size: int, seed: int) -> None:
    groups = list(ShuffledGroups(np.array(lengths, dtype=np.int32), size, seed, 0, by_tokens=True))
    found = ShuffledGroups(np.array(lengths, dtype=np.int32), size, seed, 0, by_tokens=True)
    assert len(groups) == -(-len(lengths) // size)
    assert all(len(group) for group in groups)
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(lengths)))
    longest = [max(lengths[row] for row in group) for group in groups]
    assert sorted(np.concatenate([np.zeros(0), *found.longest()]).tolist()) == sorted(longest)


def test_groups_by_tokens_are_as_large_as_their_longest_row_allows() -> None:
    """Those of one pool differ by less than one row."""
    lengths = np.random.default_rng(1).integers(1, 60, POOL * 16)
    tokens = [int(lengths[group].sum()) for group in ShuffledGroups(lengths, 16, 1, 0, by_tokens=True)]
    assert len(tokens) == POOL
    assert max(tokens) - min(tokens) < 2 * lengths.max()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 7))
def test_lengths_and_starts_are_those_of_the_spans(sizes: list[int], rows: int) -> None:
    ends = np.cumsum(sizes)
    for corpus in (Corpus(np.zeros(ends[-1]), ends, Statistics()), Corpus(np.zeros(ends[-1]), None, Statistics())):
        starts, stops = corpus.spans(rows)
        assert corpus.lengths(rows).tolist() == (stops - starts).tolist()
        assert Batches(corpus, rows, 4).starts_of(np.arange(len(starts))).tolist() == starts.tolist()


def test_a_line_may_be_longer_than_32_bits_can_count() -> None:
    ends = np.array([3, 3 + (1 << 31), 7 + (1 << 31)])
    assert Corpus(np.zeros(0), ends, Statistics()).lengths(1).tolist() == [3, 1 << 31, 4]
