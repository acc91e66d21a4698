"""Measure the counting of n-grams on one machine, for `docs/scaling.md`: one text, through the path of a cluster.

The text is made on the spot: words of six digits that are drawn independently from Zipf's law, in lines of 19. It is
encoded, counted in shards, merged in ranges, and smoothed from the merged ranges, each with one thread and with two in
turn. Indices have 64 bits, as they have for 2³¹ n-grams or more.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

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
ORDER, PARTS, REPEATS = 5, 2, 2


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


def measure_counting(words: int = 5_000_000) -> dict[str, float]:
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

    measured = {"encoded": measured_work(encode)}
    kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
    ids, size = np.fromfile(folder / "encoded-1" / "ids.bin", dtype=kind), tokenizer.vocabulary_size
    tokens = len(ids)
    shards = [folder / f"{i}.shard" for i in range(PARTS)]
    cuts = [tokens * i // PARTS for i in range(PARTS + 1)]

    def count(threads: int) -> None:
        for i, shard in enumerate(shards):
            place = {"start": cuts[i], "stop": cuts[i + 1], "threads": threads}
            count_shard(ids, shard, order=ORDER, vocabulary_size=size, **place)

    measured["counted"] = measured_work(count)
    ranges = [folder / f"{i}.merged" for i in range(PARTS)]

    def merge(threads: int) -> None:
        for merged, bounds in zip(ranges, divide_merge(shards, PARTS), strict=True):
            merge_shards(shards, merged, bounds=bounds, threads=threads)

    measured["merged"] = measured_work(merge)
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

    measured["smoothed"] = measured_work(smooth)
    before = sum(Shard(shard).totals[0] for shard in shards)
    after = sum(Shard(merged).totals[0] for merged in ranges)
    work = {"encoded": tokens, "counted": tokens, "merged": before, "smoothed": grams}
    found = {f"{step}_per_second": float(work[step] / one) for step, (one, _) in measured.items()}
    found |= {f"{step}_parallel": float(share) for step, (_, share) in measured.items()}
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


def measured_work(work: Callable[[int], None]) -> tuple[float, float]:
    """Return the seconds of the processor with one thread, and the share of those with two that the threads divide.

    The calling thread does the rest, and processes that are started divide their part as well. Seconds of the processor
    hardly depend on other work of the machine; that threads wait for each other is not in them.
    """
    seconds: list[float] = []
    shares: list[float] = []
    for _ in range(REPEATS):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            before, own = sum(os.times()[:4]), time.thread_time()
            work(threads)
            total, rest = sum(os.times()[:4]) - before, time.thread_time() - own
            if threads == 1:
                seconds.append(total)
            else:
                shares.append(1 - rest / total)
    torch.set_num_threads(1)
    return min(seconds), statistics.median(shares)
