"""Measure the counting of n-grams on one machine, for `docs/scaling.md`: one text, through the path of a cluster.

The text is made on the spot: words of six digits that are drawn independently from Zipf's law, in lines of 19. It is
encoded, counted in shards, merged in ranges, and smoothed from the merged ranges, each with one thread and with two in
turn, of which the least seconds of three count.
Indices have 64 bits, as they have for 2³¹ n-grams or more.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import machine
import numpy as np
import numpy.typing as npt
import torch

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.encoding import write_encoded
from seriatim.data.readers import find_sources, read_pieces
from seriatim.data.source_content import content_of
from seriatim.data.tokenizer_factory import fit_tokenizer
from seriatim.models.ngrams import levels
from seriatim.models.ngrams.estimation import smoothed
from seriatim.models.ngrams.merged_counts import count_merged
from seriatim.models.ngrams.resources import ArrayAllocator
from seriatim.models.ngrams.shard_counting import count_shard
from seriatim.models.ngrams.shard_files import Shard
from seriatim.models.ngrams.shard_merging import divide_merge, merge_shards
from seriatim.models.ngrams.smoothing import Smoothing
from seriatim.storage.weights import stream_tensors

WORDS, EXPONENT, LINE = 1_000_000, 1.2, 19
ORDER, PARTS, REPEATS = 5, 2, 3


class MeasuredArrays(ArrayAllocator):
    """Allocates arrays in memory, and remembers their bytes at most, and in all."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.total = 0

    def empty(self, size: int, dtype: npt.DTypeLike) -> np.ndarray:
        array = super().empty(size, dtype)
        self.largest, self.total = max(self.largest, self.allocated), self.total + array.nbytes
        return array


def make_text(path: Path, words: int) -> None:
    """Write a text of about so many words."""
    drawn = np.minimum(np.random.default_rng(1).zipf(EXPONENT, words // LINE * LINE), WORDS - 1)
    path.write_text("".join(" ".join(f"{word:06}" for word in line) + "\n" for line in drawn.reshape(-1, LINE)))


def parallel_share(one: float, two: float) -> float:
    """Return the share of work that two threads divide, by Amdahl's law, from the seconds with one and two threads."""
    return min(1.0, max(0.0, 2 * (1 - two / one)))


def measure_counting(words: int = 8_000_000) -> dict[str, float]:
    """Return what a thread does in a second, the parallel share of each step, and sizes for each token and n-gram."""
    with tempfile.TemporaryDirectory() as name, mock.patch.object(levels, "SMALL", 1):
        return _measure(Path(name), words)


def _measure(folder: Path, words: int) -> dict[str, float]:
    path = folder / "text.txt"
    make_text(path, words)
    sources = find_sources(str(path))
    tokenizer = fit_tokenizer(
        TokenizerConfig(kind="word", vocabulary_size=2 * WORDS), (piece.text for piece in read_pieces(sources))
    )
    content = content_of(sources)

    def encode(threads: int) -> None:  # if the content is known, in as many processes as there are processors
        out = folder / f"encoded-{threads}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        write_encoded(out, sources, tokenizer, unit="line", content=content if threads > 1 else None)

    seconds = {"encoded": _with_threads(encode)}
    kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
    ids, size = np.fromfile(folder / "encoded-1" / "ids.bin", dtype=kind), tokenizer.vocabulary_size
    tokens = len(ids)
    shards = [folder / f"{i}.shard" for i in range(PARTS)]
    cuts = [tokens * i // PARTS for i in range(PARTS + 1)]

    def count(threads: int) -> None:
        for i, shard in enumerate(shards):
            place = {"start": cuts[i], "stop": cuts[i + 1], "threads": threads}
            count_shard(ids, shard, order=ORDER, vocabulary_size=size, **place)

    seconds["counted"] = _with_threads(count)
    ranges = [folder / f"{i}.merged" for i in range(PARTS)]

    def merge(threads: int) -> None:
        for merged, bounds in zip(ranges, divide_merge(shards, PARTS), strict=True):
            merge_shards(shards, merged, bounds=bounds, threads=threads)

    seconds["merged"] = _with_threads(merge)
    arrays, model, grams = MeasuredArrays(), folder / "model.safetensors", 0

    def smooth(threads: int) -> None:
        nonlocal arrays, grams
        arrays, grams = MeasuredArrays(), 0
        pieces = smoothed(count_merged(ranges, arrays=arrays), size, Smoothing(), arrays=arrays)

        def counted_pieces():
            nonlocal grams
            for name, values in pieces:
                grams += len(values) if name.startswith("probabilities") else 0
                yield name, values

        stream_tensors(counted_pieces(), model, {})

    seconds["smoothed"] = _with_threads(smooth)
    before = sum(Shard(shard).totals[0] for shard in shards)
    after = sum(Shard(merged).totals[0] for merged in ranges)
    work = {"encoded": tokens, "counted": tokens, "merged": before, "smoothed": grams}
    found = {f"{step}_per_second": float(work[step] / one) for step, (one, _) in seconds.items()}
    found |= {f"{step}_parallel": parallel_share(*times) for step, times in seconds.items()}
    return found | {
        "counted_tokens": tokens,
        "counted_bytes": path.stat().st_size / tokens,
        "shard_windows": float(before / tokens),
        "windows": float(after / tokens),
        "ngrams": grams / tokens,
        "shard_window_bytes": float(sum(shard.stat().st_size for shard in shards) / before),
        "window_bytes": float(sum(merged.stat().st_size for merged in ranges) / after),
        "model_bytes": model.stat().st_size / grams,
        "array_bytes": arrays.largest / grams,
        "all_array_bytes": arrays.total / grams,
    }


def _with_threads(work: Callable[[int], None]) -> tuple[float, float]:
    """Return the least seconds of work with one thread and with two, which take turns."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for threads, found in seconds.items():
            torch.set_num_threads(threads)
            found.append(machine.seconds(lambda threads=threads: work(threads)))
    torch.set_num_threads(1)
    return min(seconds[1]), min(seconds[2])
