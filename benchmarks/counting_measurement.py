"""Measure the counting of n-grams on one machine, for `docs/scaling.md`: one text, through the path of a cluster.

The text is made on the spot: words of six digits that are drawn independently from Zipf's law, in lines of 19. It is
encoded, counted in shards, merged in ranges, and smoothed from the merged ranges. Each step is timed on one core and on
two in turn: two processes, as on a cluster, or for smoothing two threads. Indices have 64 bits, as they have for 2³¹
n-grams or more.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.counting.ngrams import counts as ngram_counts
from seriatim.counting.ngrams.counting_jobs import IdsFile, MergeJob, ShardJob, count_job, merge_job
from seriatim.counting.ngrams.resources import ArrayAllocator
from seriatim.counting.ngrams.shard_files import Shard
from seriatim.counting.ngrams.shards import count_merged, divide_merge
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.windows import CHUNK_SIZE
from seriatim.data.encoding import write_encoded
from seriatim.data.source_content import content_of
from seriatim.data.sources import find_sources
from seriatim.data.text import read_chunks
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.processes.executors import LocalExecutor, WorkExecutor
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


def measure_counting(words: int = 20_000_000) -> dict[str, float]:
    """Return what a core does in a second, the parallel share of each step, and sizes for each token and n-gram."""
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(ngram_counts, "SMALL", 1),
        LocalExecutor(PARTS) as pool,
    ):
        pool.run_all(time.sleep, [1.0] * PARTS)  # both processes have started
        return _measure(Path(name), words, pool)


def _measure(folder: Path, words: int, pool: WorkExecutor) -> dict[str, float]:
    path = folder / "text.txt"
    make_text(path, words)
    sources = find_sources(str(path))
    tokenizer = fit_tokenizer(
        TokenizerConfig(kind="word", vocabulary_size=2 * WORDS), (chunk.text for chunk in read_chunks(sources))
    )
    content = content_of(sources)

    def encode(cores: int) -> None:  # if the content is known, in as many processes as there are processors
        out = folder / f"encoded-{cores}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        write_encoded(out, sources, tokenizer, unit="line", content=content if cores > 1 else None)

    measured = {"encoded": measured_work(encode)}
    kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
    path_of_ids, size = folder / "encoded-1" / "ids.bin", tokenizer.vocabulary_size
    tokens = path_of_ids.stat().st_size // np.dtype(kind).itemsize
    ids = IdsFile(str(path_of_ids), np.dtype(kind).str, 0, tokens)
    shards, ranges = ([folder / f"{i}.{name}" for i in range(PARTS)] for name in ("shard", "merged"))
    cuts = [tokens * i // PARTS for i in range(PARTS + 1)]
    counts = [
        ShardJob(ids, start, stop, str(shard), ORDER, size, CHUNK_SIZE, threads=1)
        for (start, stop), shard in zip(pairwise(cuts), shards, strict=True)
    ]

    def do(function: Callable, jobs: list, cores: int) -> None:
        if cores > 1:
            pool.run_all(function, jobs)
        else:
            for job in jobs:
                function(job)

    measured["counted"] = measured_work(lambda cores: do(count_job, counts, cores))
    names = [shard.name for shard in shards]
    merges = [
        MergeJob(str(folder), names, str(merged), bounds, memory=None)
        for merged, bounds in zip(ranges, divide_merge(shards, PARTS), strict=True)
    ]
    measured["merged"] = measured_work(lambda cores: do(merge_job, merges, cores))
    arrays, model, grams = MeasuredArrays(), folder / "model.safetensors", 0

    def smooth(_: int) -> None:
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
    """Return the seconds on one core, and the share of them that two cores divide (Amdahl's law)."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for cores, found in seconds.items():
            torch.set_num_threads(cores)
            started = time.perf_counter()
            work(cores)
            found.append(time.perf_counter() - started)
    torch.set_num_threads(1)
    one, two = (statistics.median(found) for found in seconds.values())
    return one, min(1.0, max(0.0, 2 * (1 - two / one)))
