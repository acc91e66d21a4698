"""Sequences of like length side by side: every one once, and never more tokens than a batch may hold."""

import numpy as np
import pytest

from seriatim.data.batches import Buckets


@pytest.mark.parametrize("most", [1, 50, 10_000])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_every_sequence_is_in_one_batch_of_bounded_size(most: int, batch_size: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 90, 200)
    buckets = Buckets(lengths, batch_size, lambda rows: rows, max_tokens=most)
    for groups in (buckets.in_order(), buckets.shuffled(1, 0)):
        assert sorted(np.concatenate(groups).tolist()) == list(range(200))
        for rows in groups:
            assert len(rows) <= batch_size
            assert len(rows) == 1 or len(rows) * lengths[rows].max() <= most


def test_a_long_document_is_a_batch_of_its_own() -> None:
    lengths = np.array([5, 200_000, 5, 5])
    assert [len(rows) for rows in Buckets(lengths, 32, lambda rows: rows).in_order()].count(1) == 4
