"""Measure the counting of n-grams in shards, beside counting in one pass.

    python benchmarks/ngram_shards.py --text train.txt [--tokens 17750000] [--order 5] [--rounds 3]

The text is that of `ngrams.py`; see there. A round counts it in turn in one process of two threads, in one process of
one thread, and with two workers of one thread each, and prints the seconds of counting, smoothing and writing, and the
SHA-256 of the models. Then two shards, and eight, are counted by one thread, merged by one thread to one shard without
and with a limit of memory, and counted from the merged windows; each in a process of its own. Last, it prints how many
different n-grams a token has in a half, a quarter and so on of the given text as it is, and the ratios.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import machine
import numpy as np
import torch
from ngrams import enlarge

import seriatim
from seriatim.counting.ngrams.counting_jobs import ids_file
from seriatim.counting.ngrams.counts import count_ngrams
from seriatim.counting.ngrams.resources import ArrayAllocator
from seriatim.counting.ngrams.shard_files import Shard
from seriatim.counting.ngrams.shards import count_merged, count_shard, merge_shards

WAYS = {"two threads": ("2", []), "one thread": ("1", []), "two workers": ("2", ["--model.options.workers", "2"])}
MEMORY = 0.1
"""Memory of a merge with a limit, in GB."""
PARTS = 5


def train(text: Path, run: Path, order: int, threads: str, options: list[str]) -> tuple[float, str]:
    """Return the seconds of counting, smoothing and writing, and the digest of the model."""
    command = [sys.executable, "-m", "seriatim", "train", "lm", "--data", str(text), "--layer", "ngram", "--quiet"]
    settings = ["--tokenizer.kind", "word", "--data.unit", "line", "--model.options.order", str(order), *options]
    subprocess.run(
        [*command, *settings, "--overwrite", "--out", str(run)],
        env={**os.environ, "OMP_NUM_THREADS": threads},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    summary = json.loads((run / "summary.json").read_text())
    with (run / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return summary["tokens"] / summary["tokens_per_second"], digest


def status(name: str) -> float:
    """Return a field of the state of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(name))


class AnonymousMemory(threading.Thread):
    """Samples the memory of this process that is not mapped from a file, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.start()

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, status("RssAnon"))
            time.sleep(0.01)


def measured(step: str, ids: Path, order: int, size: int, shards: list[str]) -> dict[str, float]:
    """Run one step with one thread, and return its seconds and its memory in MB, above that of the libraries."""
    torch.set_num_threads(1)
    text, memory = np.memmap(ids, dtype=np.uint32, mode="r"), AnonymousMemory()
    time.sleep(0.1)
    before, merged = memory.peak, str(ids.with_name("merged.shard"))
    started, used = time.perf_counter(), time.process_time()
    if step == "count":
        cuts = [len(text) * i // len(shards) for i in range(len(shards) + 1)]
        for path, (start, stop) in zip(shards, pairwise(cuts), strict=True):
            count_shard(text, path, order=order, vocabulary_size=size, start=start, stop=stop)
    elif step in ("merge", "merge with little memory"):
        merge_shards(shards, merged, memory=MEMORY if "little" in step else None)
    elif step == "n-grams of the merged shard":
        for _ in count_merged([merged]):
            pass
    elif step == "n-grams of the merged shard, with little memory":
        half = int(MEMORY * 1e9 / 2)
        for _ in count_merged([merged], arrays=ArrayAllocator(half), memory=half):
            pass
    else:
        for _ in count_ngrams(text, order, size):
            pass
    seconds, processor = time.perf_counter() - started, time.process_time() - used
    return {"seconds": seconds, "processor": processor, "memory": memory.peak - before, "all": status("VmHWM")}


def in_a_process(step: str, ids: Path, order: int, size: int, shards: list[str]) -> dict[str, float]:
    """Return `measured` of another process."""
    command = [sys.executable, __file__, "--step", step, str(ids), str(order), str(size), *shards]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(result.stdout)
    print(
        f"{step}: {found['seconds']:.2f} s ({found['processor']:.2f} s of the processor), {found['memory']:.0f} MB "
        f"(with mapped files and libraries {found['all']:.0f} MB)",
        flush=True,
    )
    return found


def growth(text: Path, order: int, tokens: int) -> None:
    """Print the different n-grams of each order for each token of the beginnings of a text."""
    config = {
        "data": {"train": str(text), "unit": "line"},
        "tokenizer": {"kind": "word"},
        "model": {"layer": "ngram", "options": {"order": order}},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = seriatim.train({**config, "out": folder}, reporter=seriatim.Reporter())
        ids = run.task.reader.read(str(text), "train", run.vocabulary).ids
    size = run.vocabulary.tokenizer.vocabulary_size
    for part in range(PARTS - 1, -1, -1):
        some = ids[: len(ids) >> part]
        types = [sum(len(level.words(block)) for block in level.blocks) for level in count_ngrams(some, order, size)]
        types[0] = len(np.unique(some))
        shares = ", ".join(f"{number / len(some):.3f}" for number in types)
        print(f"different n-grams for each of {len(some):,} tokens: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=17_750_000)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(machine.describe(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text, run, order = folder / "text.txt", folder / "run", arguments.order
        os.environ["SERIATIM_CACHE"] = str(folder / "cache")
        tokens = enlarge(arguments.text, text, arguments.tokens)
        train(text, run, order, "2", [])  # fills the cache
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        digests = set()
        for _ in range(arguments.rounds):
            for name, (threads, options) in WAYS.items():
                taken, digest = train(text, run, order, threads, options)
                seconds[name].append(taken)
                digests.add(digest)
                print(f"{name}: {taken:.1f} s, {digest}", flush=True)
        loaded = seriatim.load(run)
        size = loaded.vocabulary.tokenizer.vocabulary_size
        corpus = loaded.task.reader.read(str(text), "train", loaded.vocabulary)
        ids = Path(ids_file(np.asarray(corpus.ids, dtype=np.uint32), folder).path)
        grams = sum(len(level.probability) for level in loaded.model.table.orders)
        print(f"{tokens:,} tokens, {size:,} in the vocabulary, {grams:,} n-grams, {len(digests)} model(s)")
        print(f"{(run / 'model.safetensors').stat().st_size / grams:.1f} bytes for each n-gram of the model")
        in_a_process("n-grams in one pass", ids, order, size, [])
        for number in (2, 8):
            shards = [str(folder / f"{number}-{i}.shard") for i in range(number)]
            counted = in_a_process("count", ids, order, size, shards)
            windows = sum(Shard(Path(path)).totals[0] for path in shards)
            size_of_shards = sum(os.path.getsize(path) for path in shards)
            print(f"{number} shards: {tokens / counted['seconds'] / 1e6:.2f} million tokens counted a second")
            print(
                f"{windows:,} windows, {size_of_shards / windows:.1f} bytes each, {size_of_shards / tokens:.1f} a token"
            )
            for step in ("merge", "merge with little memory"):
                found = in_a_process(step, ids, order, size, shards)
                rates = windows / found["seconds"] / 1e6, size_of_shards / found["seconds"] / 1e9
                print(f"{rates[0]:.2f} million windows a second, {rates[1]:.3f} GB/s read")
            print(f"{Shard(folder / 'merged.shard').totals[0]:,} windows after merging")
        in_a_process("n-grams of the merged shard", ids, order, size, [])
        in_a_process("n-grams of the merged shard, with little memory", ids, order, size, [])
    growth(arguments.text, order, tokens)
    print(f"medians: {', '.join(f'{name} {median(taken):.1f} s' for name, taken in seconds.items())}")
    for name in ("two threads", "one thread"):
        print(f"seconds, two workers / {name}: {median(seconds['two workers']) / median(seconds[name]):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        name, file, longest, vocabulary, *paths = sys.argv[2:]
        print(json.dumps(measured(name, Path(file), int(longest), int(vocabulary), paths)))
    else:
        main()
