"""Counting n-grams in this process, or in several on one or many machines.

Several processes count segments of the text, each as a shard. The shards are merged here, or on a cluster by its
workers, each a range of the windows. Their jobs get the names of files: of the ids of the text, and of shards.
On a cluster, all machines see them under the same names.
"""

import math
import mmap
import platform
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...core.errors import InputError, MissingError
from ...processes.cluster import open_cluster
from ...processes.executors import LocalExecutor, WorkExecutor
from ...storage.files import PARTIAL, remove
from .counts import SMALL, Level, Unigrams, count_ngrams
from .resources import ArrayAllocator
from .shard_files import Bound
from .shards import count_merged, count_shard, divide_merge, merge_shards
from .windows import CHUNK_SIZE

SORTING = 64
"""Memory for sorting a window, in bytes."""
COUNTING = 16
"""Memory for each token of a shard, in bytes."""
SMALLEST, LARGEST, USUAL_NUMBER = 1 << 24, 1 << 28, 256
"""Tokens of a shard on a cluster, at least and at most, and the number of shards between these limits."""


class Workers(NamedTuple):
    """Where shards are counted."""

    number: int  # of processes of this machine, unless there is a cluster
    cluster: str | None  # address of a Dask scheduler
    memory: float | None  # in GB, of all processes together, or of each job on a cluster

    @property
    def half_memory(self) -> int | None:
        """Half of the memory in bytes. Sorting may use one half, and the tables of n-grams the other."""
        return None if self.memory is None else int(self.memory * 1e9 / 2)

    def chunk_size(self, processes: int, threads: int) -> int:
        """Return how many windows may be sorted at once in one of some processes."""
        if (half := self.half_memory) is None:
            return CHUNK_SIZE
        return max(1, min(CHUNK_SIZE, half // processes // SORTING // (1 + threads)))


class IdsFile(NamedTuple):
    """Token ids in a file."""

    path: str
    dtype: str
    offset: int
    tokens: int

    def open(self) -> np.ndarray:
        """Map the ids into memory ``(tokens,)``.

        Raises:
            InputError: this machine does not see the file.
        """
        try:
            return np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=(self.tokens,))
        except FileNotFoundError:
            raise not_seen(self.path) from None


def not_seen(path: str | Path) -> InputError:
    """Return the error for a file or folder that the machine of a worker does not see."""
    return MissingError(
        f"{path}: not there on {platform.node()}; put the run and the cache (SERIATIM_CACHE) on a file system that all "
        "machines of the cluster share"
    )


class ShardJob(NamedTuple):
    """The arguments of `count_shard`, with the file of the ids instead of the ids."""

    ids: IdsFile
    start: int
    stop: int
    path: str
    order: int
    vocabulary_size: int
    chunk_size: int
    threads: int


def count_job(job: ShardJob) -> None:
    """Count one shard, in the process of a worker.

    Raises:
        InputError: this machine does not see the text, or the folder of the run.
    """
    if not Path(job.path).parent.is_dir():
        raise not_seen(Path(job.path).parent)
    count_shard(**{**job._asdict(), "ids": job.ids.open()})


class MergeJob(NamedTuple):
    """What merging a range of the windows of all shards needs."""

    folder: str
    shards: Sequence[str]  # in the folder
    path: str
    bounds: tuple[Bound, Bound]
    memory: float | None  # in GB


def merge_job(job: MergeJob) -> None:
    """Merge a range, in the process of a worker."""
    paths = [Path(job.folder, name) for name in job.shards]
    merge_shards(paths, job.path, memory=job.memory, bounds=job.bounds, threads=1)


@contextmanager
def counted(
    ids: np.ndarray | Iterator[np.ndarray],
    tokens: int,
    order: int,
    vocabulary_size: int,
    workers: Workers,
    weights: Path,
    arrays: ArrayAllocator,
) -> Iterator[Iterator[Unigrams | Level]]:
    """Yield the n-grams of a text for n = 1, …, ``order``, which are counted while they are read.

    Args:
        ids: the ids of the text, whole or in blocks.
        tokens: their number.
        order: the length of the longest n-grams.
        vocabulary_size: the number of different ids.
        workers: the processes that count.
        weights: the file of the model, beside which a folder for the shards is written and removed.
        arrays: allocates large arrays.
    """
    if workers.number == 1 and workers.cluster is None and tokens < SMALL - order:
        all_ids = ids if isinstance(ids, np.ndarray) else np.concatenate(list(ids))
        chunk_size = workers.chunk_size(1, torch.get_num_threads())
        yield count_ngrams(all_ids, order, vocabulary_size, arrays=arrays, chunk_size=chunk_size)
        return
    with shard_folder(weights) as folder:
        paths = count_shards(ids_file(ids, folder), folder, order, vocabulary_size, workers)
        with closing(count_merged(paths, arrays=arrays, memory=workers.half_memory, folder=folder)) as levels:
            yield levels


@contextmanager
def shard_folder(weights: Path) -> Iterator[Path]:
    """Yield an empty folder beside the weights of a run, which is removed at the end.

    After a process was killed, the next run in the same folder removes it.
    """
    folder = weights.with_name(f"{weights.name}.shards{PARTIAL}").absolute()
    remove(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def ids_file(ids: np.ndarray | Iterator[np.ndarray], folder: Path) -> IdsFile:
    """Return the file that ids are mapped from; others, whole or in blocks, are written to a file in ``folder``."""
    if isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap) and ids.filename:
        return IdsFile(str(Path(ids.filename).absolute()), ids.dtype.str, ids.offset, len(ids))
    path, tokens, kind = folder / "ids.bin", 0, ""
    with path.open("wb") as file:
        for block in [ids] if isinstance(ids, np.ndarray) else ids:
            block.tofile(file)
            tokens, kind = tokens + len(block), block.dtype.str
    return IdsFile(str(path), kind, 0, tokens)


def count_shards(ids: IdsFile, folder: Path, order: int, vocabulary_size: int, workers: Workers) -> list[Path]:
    """Count all shards of a text, and return their files; the workers of a cluster also merge them.

    Raises:
        InputError: the cluster cannot be used.
        TrainingError: a worker ended.
        OSError: the disk is full, or a file cannot be written.
    """
    processes = 1 if workers.cluster else workers.number
    threads = 1 if workers.cluster else max(1, torch.get_num_threads() // processes)
    chunk_size, cuts = workers.chunk_size(processes, threads), shard_cuts(ids.tokens, workers)
    jobs = [
        ShardJob(ids, start, stop, str(folder / f"{start}.shard"), order, vocabulary_size, chunk_size, threads)
        for start, stop in pairwise(cuts)
    ]
    with ExitStack() as stack:
        with _named_by_option():
            executor = stack.enter_context(open_executor(min(processes, len(jobs)), workers.cluster))
        executor.run_all(count_job, jobs)
        paths = [Path(job.path) for job in jobs]
        return merge_on_workers(executor, paths, folder, workers.memory) if workers.cluster else paths


def open_executor(processes: int, cluster: str | None) -> AbstractContextManager[WorkExecutor]:
    """Open so many processes of this machine, or the workers of a cluster."""
    return LocalExecutor(processes) if cluster is None else open_cluster(cluster)


def require_cluster(address: str) -> None:
    """Raise InputError if a cluster does not answer, has no workers, or has another version of this package."""
    with _named_by_option(), open_cluster(address):
        pass


@contextmanager
def _named_by_option() -> Iterator[None]:
    """Name the option in errors about the cluster, which other commands call --cluster."""
    try:
        yield
    except InputError as error:
        raise error.with_message(f"model.options.{str(error).removeprefix('--')}") from None


def merge_on_workers(executor: WorkExecutor, paths: list[Path], folder: Path, memory: float | None) -> list[Path]:
    """Merge as many ranges of windows as there are shards, remove the shards, and return the files of the ranges."""
    names = [path.name for path in paths]
    jobs = [
        MergeJob(str(folder), names, str(folder / f"{number}.merged"), bounds, memory)
        for number, bounds in enumerate(divide_merge(paths, len(paths)))
    ]
    executor.run_all(merge_job, jobs)
    for path in paths:
        path.unlink()
    return [Path(job.path) for job in jobs]


def shard_cuts(tokens: int, workers: Workers) -> list[int]:
    """Return where a text is cut: into as many shards as there are processes, or more if memory or a cluster ask."""
    processes = 1 if workers.cluster else workers.number
    largest = min(max(tokens // USUAL_NUMBER, SMALLEST), LARGEST) if workers.cluster else LARGEST
    if (half := workers.half_memory) is not None:
        largest = min(largest, half // processes // COUNTING)
    number = max(processes, math.ceil(tokens / max(1, largest)))
    return sorted({tokens * i // number for i in range(number + 1)})
