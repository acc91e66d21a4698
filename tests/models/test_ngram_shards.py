"""Shards of a text, counted apart and merged, give the model of the whole text to the bit."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.models.ngrams import shard_files, shard_merging
from seriatim.models.ngrams.counts import count_ngrams
from seriatim.models.ngrams.estimation import smoothed
from seriatim.models.ngrams.levels import Level, Unigrams
from seriatim.models.ngrams.merged_counts import count_merged
from seriatim.models.ngrams.resources import ArrayAllocator
from seriatim.models.ngrams.shard_counting import count_shard
from seriatim.models.ngrams.shard_merging import merge_shards
from seriatim.models.ngrams.smoothing import Smoothing
from seriatim.models.ngrams.unseen import Record, seen_pieces, tallied
from seriatim.storage.weights import stream_tensors

pytestmark = pytest.mark.filterwarnings("ignore:too few")
V = 5
NAMES = ("kneser-ney", "absolute", "witten-bell", "add-k", "maximum-likelihood", "stupid-backoff")
TEXTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=80).map(lambda ids: np.array(ids, dtype=np.uint16))
SMOOTHINGS = st.builds(
    Smoothing,
    st.sampled_from(NAMES),
    prune=st.sampled_from([(0,), (0, 1), (0, 0, 1, 2)]),
    closed=st.booleans(),
)
MANY_FILES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[1, 2, 1 << 13], ids="blocks of {} windows".format)
def block_windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of different sizes, and ranges of few blocks."""
    monkeypatch.setattr(shard_files, "BLOCK_WINDOWS", request.param)
    monkeypatch.setattr(shard_merging, "RANGE_BLOCKS", 2)


def model(counted: Sequence[Unigrams | Level], path: Path, size: int, how: Smoothing) -> bytes:
    record: list[Record] = []
    stream_tensors(smoothed(tallied(counted, record), size, how, unknown=V - 1), path, {})
    with path.open("ab") as file:
        for _, values in seen_pieces(record):
            file.write(values.tobytes())
    return path.read_bytes()


def shards(ids: np.ndarray, cuts: Sequence[int], folder: Path, order: int, size: int = V, part: int = 7) -> list[Path]:
    """Count the parts of a text between some cuts."""
    paths = []
    for start, stop in pairwise([0, *sorted(cuts), len(ids)]):
        paths.append(folder / f"{len(paths)}.shard")
        settings = {"order": order, "vocabulary_size": size, "part_size": part}
        count_shard(ids, paths[-1], start=start, stop=stop, **settings)
    return paths


@MANY_FILES
@given(ids=TEXTS, data=st.data(), order=st.integers(1, 6), how=SMOOTHINGS, size=st.sampled_from([V, 1 << 17]))
def test_any_cuts_give_the_bytes_of_one_pass(
    ids: np.ndarray, data: st.DataObject, order: int, how: Smoothing, size: int, tmp_path: Path, block_windows: None
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=4))
    whole = model(count_ngrams(ids, order, size), tmp_path / "whole", size, how)
    paths = shards(ids, cuts, tmp_path, order, size)
    assert model(count_merged(paths), tmp_path / "merged", size, how) == whole
    assert model(count_merged(paths[::-1], arrays=ArrayAllocator(64)), tmp_path / "merged", size, how) == whole
    merge_shards(paths, tmp_path / "all.shard")
    assert model(count_merged([tmp_path / "all.shard"]), tmp_path / "merged", size, how) == whole
