"""Shards of a text, counted apart and merged, give the model of the whole text to the bit."""

import errno
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.counting.ngrams import counts, shard_files
from seriatim.counting.ngrams import shards as merging
from seriatim.counting.ngrams.counts import Level, Unigrams, count_ngrams
from seriatim.counting.ngrams.resources import ArrayAllocator
from seriatim.counting.ngrams.shard_files import MANY, Shard, open_shards
from seriatim.counting.ngrams.shards import count_merged, count_shard, divide_merge, merge_shards
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.unseen import Record, seen_arrays, tallied
from seriatim.storage import files, weights
from seriatim.storage.weights import stream_tensors

from ..exhaustive import parameters
from ..refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:too few")
V = 5
NAMES = ("kneser-ney", "absolute", "witten-bell", "add-k", "maximum-likelihood", "stupid-backoff")
TEXTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=80).map(lambda ids: np.array(ids, dtype=np.uint16))
SMOOTHINGS = st.builds(
    Smoothing,
    st.sampled_from(NAMES),
    k=st.floats(0.01, 10),
    prune=st.sampled_from([(0,), (0, 1), (0, 0, 1, 2)]),
    closed=st.booleans(),
)
MANY_FILES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=parameters([1, 2, 1 << 13], everyday=[2]))
def block_windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of different sizes, and ranges of few blocks."""
    monkeypatch.setattr(shard_files, "BLOCK_WINDOWS", request.param)
    monkeypatch.setattr(merging, "RANGE_BLOCKS", 2)
    monkeypatch.setattr(files, "flush", lambda path: None)  # hundreds of files need not reach the disk


def model(counted: Sequence[Unigrams | Level], path: Path, size: int, how: Smoothing) -> bytes:
    record: list[Record] = []
    stream_tensors(smoothed(tallied(counted, record), size, how, unknown=V - 1), path, {})
    with path.open("ab") as file:
        for _, values in seen_arrays(record):
            file.write(values.tobytes())
    return path.read_bytes()


def shards(ids: np.ndarray, cuts: Sequence[int], folder: Path, order: int, size: int = V, part: int = 7) -> list[Path]:
    """Count the parts of a text between some cuts."""
    paths = []
    for start, stop in pairwise([0, *sorted(cuts), len(ids)]):
        paths.append(folder / f"{len(paths)}.shard")
        settings = {"order": order, "vocabulary_size": size, "chunk_size": part}
        count_shard(ids, paths[-1], start=start, stop=stop, **settings)
    return paths


@pytest.mark.exhaustive
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
    ranges = merged_apart(paths, tmp_path, parts=data.draw(st.integers(1, 5)))
    assert model(count_merged(ranges[::-1]), tmp_path / "merged", size, how) == whole


def merged_apart(paths: Sequence[Path], folder: Path, parts: int, memory: float | None = None) -> list[Path]:
    """Merge ranges of the windows one by one, as several machines do."""
    ranges = []
    for bounds in divide_merge(paths, parts):
        ranges.append(folder / f"{len(ranges)}.merged")
        merge_shards(paths, ranges[-1], bounds=bounds, memory=memory, threads=1)
    assert len(ranges) <= parts
    return ranges


def test_ranges_of_a_divided_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow each other, have no window in common, and none may be missing."""
    monkeypatch.setattr(shard_files, "BLOCK_WINDOWS", 16)
    monkeypatch.setattr(merging, "BLOCK_WINDOWS", 16)
    monkeypatch.setattr(merging, "RANGE_BLOCKS", 2)
    ids = np.random.default_rng(1).integers(0, V, 900).astype(np.uint16)
    whole = model(count_ngrams(ids, 4, V), tmp_path / "whole", V, Smoothing())
    paths = shards(ids, range(100, 900, 100), tmp_path, 4)
    merge_shards(paths, tmp_path / "all.shard")
    alone = Shard(tmp_path / "all.shard")
    for memory in (None, 1e-9, 1.0):
        ranges = merged_apart(paths, tmp_path, 4, memory)
        assert len(ranges) == 4
        [together] = open_shards(ranges[::-1])
        assert (together.totals[0], together.tokens.tolist()) == (alone.totals[0], alone.tokens.tolist())
        assert model(count_merged(ranges), tmp_path / "merged", V, Smoothing()) == whole
    for i in range(4):
        with refused("mismatch"):
            list(count_merged(ranges[:i] + ranges[i + 1 :]))
    with refused("range", "parts"):
        divide_merge(paths, 0)


@pytest.mark.parametrize("memory", [1, 10**6, 10**9])
def test_little_memory_merges_in_several_rounds(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "BLOCK_WINDOWS", 16)
    monkeypatch.setattr(merging, "BLOCK_WINDOWS", 16)
    ids = np.random.default_rng(1).integers(0, V, 900).astype(np.uint16)
    whole = model(count_ngrams(ids, 4, V), tmp_path / "whole", V, Smoothing())
    paths, folder = shards(ids, range(100, 900, 100), tmp_path, 4), tmp_path / "merging"
    folder.mkdir()
    found = count_merged(paths, arrays=ArrayAllocator(memory), memory=memory, folder=folder)
    assert model(found, tmp_path / "merged", V, Smoothing()) == whole
    assert not list(folder.iterdir())
    merge_shards(paths, folder / "all.shard", memory=memory / 1e9)
    assert model(count_merged([folder / "all.shard"]), tmp_path / "merged", V, Smoothing()) == whole
    assert len(list(folder.iterdir())) == 1


def test_texts_of_their_own_are_counted_as_one_text(tmp_path: Path) -> None:
    """Each ends with a boundary, as the lines of a file do."""
    lines = [np.append(np.random.default_rng(i).integers(1, V, 9 * i), 0).astype(np.uint16) for i in range(4)]
    whole = model(count_ngrams(np.concatenate(lines), 3, V), tmp_path / "whole", V, Smoothing())
    paths = [tmp_path / f"{i}.shard" for i in range(4)]
    for path, line in zip(paths, lines, strict=True):
        count_shard(line, path, order=3, vocabulary_size=V)
    assert model(count_merged(paths), tmp_path / "merged", V, Smoothing()) == whole


def test_counts_beyond_a_byte_and_threads(tmp_path: Path) -> None:
    ids = np.tile([1, 2, 1, 3, 0], 500).astype(np.uint32)
    whole = model(count_ngrams(ids, 5, V), tmp_path / "whole", V, Smoothing())
    paths = shards(ids, [1600], tmp_path, 5, part=1 << 19)
    assert max(Shard(paths[0]).read(0).counts) > MANY
    assert model(count_merged(paths), tmp_path / "merged", V, Smoothing()) == whole
    count_shard(ids, tmp_path / "two.shard", order=5, vocabulary_size=V, threads=2, chunk_size=100)
    assert model(count_merged([tmp_path / "two.shard"]), tmp_path / "merged", V, Smoothing()) == whole


def test_large_numbers_are_stored_in_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a text of 2³¹ tokens began at 100."""
    ids = np.random.default_rng(2).integers(0, V, 400).astype(np.uint16)
    whole = model(count_ngrams(ids, 4, V), tmp_path / "whole", V, Smoothing(prune=(0, 0, 1)))
    paths = shards(ids, [90, 180, 270, 360], tmp_path, 4)
    monkeypatch.setattr(counts, "SMALL", 100)
    counted = list(count_merged(paths))
    assert {level.count_type for level in counted} == {np.int64}
    assert counted[-1].suffix.dtype == np.int64
    assert model(count_merged(paths), tmp_path / "merged", V, Smoothing(prune=(0, 0, 1))) == whole


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two shards of a text."""
    return shards(np.random.default_rng(3).integers(0, V, 300).astype(np.uint16), [150], tmp_path, 3)


def refusal_of(paths: Sequence[Path]) -> str:
    with pytest.raises(InputError) as caught:
        list(count_merged(paths))
    return str(caught.value)


def test_a_damaged_shard_is_refused(two: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = two[1].read_bytes()
    two[1].write_bytes(whole[:-100])
    assert f"{two[1]}: damaged" in refusal_of(two)
    two[1].write_bytes(b"something else")
    assert f"{two[1]}: damaged" in refusal_of(two)
    two[1].unlink()
    assert f"{two[1]}: missing" in refusal_of(two)
    stream_tensors([("a", np.zeros(3))], two[1], {})
    assert f"{two[1]}: not a shard of n-gram counts" in refusal_of(two)
    monkeypatch.setattr(weights, "MAX_CHECKED_BYTES", 0)  # as in a large file, whose digest is not checked
    for place, problem in ((1 << 16, "block 0 has changed"), (len(whole) - 1, "its counts have changed")):
        changed = bytearray(whole)
        changed[place] ^= 255
        two[1].write_bytes(changed)
        assert f"{two[1]}: damaged ({problem}); count this shard again" in refusal_of(two)


def test_a_changed_index_is_noticed(two: list[Path]) -> None:
    shard = Shard(two[0])
    shard.first = np.full_like(shard.first, 4)
    with refused("damaged", "0.shard"):
        shard.read(0)


def test_shards_that_do_not_fit_together_are_refused(two: list[Path], tmp_path: Path) -> None:
    ids = np.array([1, 2, 0], dtype=np.uint16)
    count_shard(ids, tmp_path / "short.shard", order=2, vocabulary_size=V)
    count_shard(ids, tmp_path / "large.shard", order=3, vocabulary_size=9)
    assert f"short.shard: order is 2, but 3 in {two[0]}" in refusal_of([*two, tmp_path / "short.shard"])
    assert f"large.shard: vocabulary_size is 9, but 5 in {two[0]}" in refusal_of([*two, tmp_path / "large.shard"])
    assert "given twice" in refusal_of([two[0], two[1], two[0]])
    assert "no shards to merge" in refusal_of([])


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    ids = np.arange(1, 41, dtype=np.uint16)
    paths = shards(ids, [20], tmp_path, 4, size=50)
    assert "the shards are not those of a whole text; give all of them" in refusal_of(paths[:1])


@pytest.mark.parametrize(
    ("settings", "kind", "place"),
    [
        ({"start": 2, "stop": 1}, "range", "start, stop"),
        ({"stop": 4}, "range", "start, stop"),
        ({"vocabulary_size": 2}, "range", "ids"),
    ],
)
def test_bad_parts_are_refused(settings: dict[str, int], kind: str, place: str, tmp_path: Path) -> None:
    given = {"order": 3, "vocabulary_size": V, **settings}
    with refused(kind, place):
        count_shard(np.array([1, 2, 0], dtype=np.uint16), tmp_path / "a.shard", **given)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", fail)
    with pytest.raises(OSError, match=r"No space left on device.*a\.shard"):
        count_shard(np.array([1, 2, 0], dtype=np.uint16), tmp_path / "a.shard", order=3, vocabulary_size=V)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs the reservation of disk space")
@pytest.mark.parametrize("space", [0, 100, 3000])
def test_a_full_disk_of_temporary_files_is_an_error(
    space: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a mapped file whose space was not reserved would end the process."""
    reserved = [0]

    def reserve(file: int, begin: int, size: int) -> None:
        reserved[0] += size
        if reserved[0] > space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ids = np.random.default_rng(1).integers(0, V, 900).astype(np.uint16)
    paths = shards(ids, [300], tmp_path, 4)
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    for counted in (count_merged(paths, arrays=ArrayAllocator(0)), count_ngrams(ids, 4, V, arrays=ArrayAllocator(0))):
        with pytest.raises(OSError, match=r"No space left on device: '.* \(TMPDIR\)'"):
            model(counted, tmp_path / "model", V, Smoothing())


@pytest.mark.parametrize(
    ("arguments", "kind", "place"),
    [
        ({"order": 0}, "range", "order"),
        ({"order": 101}, "range", "order"),
        (
            {"vocabulary_size": 1 << 31},
            "range",
            "vocabulary_size",
        ),
        ({"vocabulary_size": 3}, "range", "ids"),
        ({"chunk_size": -1}, "range", "chunk_size"),
        ({"start": 3, "stop": 9}, "range", "start, stop"),
        ({"ids": [1, 2, 0]}, "range", "ids"),
        ({"ids": np.array([1.0, 0.0])}, "range", "ids"),
        ({"ids": np.array([[1, 0]])}, "range", "ids"),
        ({"ids": np.array([1, -2, 0])}, "range", "ids"),
    ],
)
def test_arguments_out_of_range(arguments: dict, kind: str, place: str, tmp_path: Path) -> None:
    given = {"ids": np.array([1, 2, 3, 4, 0]), "order": 3, "vocabulary_size": V, **arguments}
    with refused(kind, place):
        count_shard(path=tmp_path / "a.shard", **given)
    assert not list(tmp_path.iterdir())


def test_merges_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.shard"
    count_shard(np.array([1, 2, 0]), path, order=3, vocabulary_size=V)
    before = path.read_bytes()
    for memory in (0.0, -1.0, float("nan"), float("inf")):
        with refused("range", "memory"):
            merge_shards([path], tmp_path / "all.shard", memory=memory)
    with refused("exists", "a.shard"):
        merge_shards([path], str(path))
    with refused("duplicate", "a.shard"):
        merge_shards([path, str(tmp_path / "." / "a.shard")], tmp_path / "all.shard")
    with refused("range", "a.shard"):
        list(count_merged(str(path)))
    (tmp_path / "cut.shard").write_bytes(before[:-9])
    for name in ("cut.shard", "missing.shard"):
        with refused("damaged", name):
            list(count_merged([tmp_path / name]))
    assert path.read_bytes() == before
    assert not (tmp_path / "all.shard").exists()
