"""Measure the limits of the machine, which are stated beside every figure."""

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from seriatim.recurrence.compiled_step import in_large_pages

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ZEN = {(23, 0): "Zen 1", (23, 3): "Zen 2", (25, 0): "Zen 3", (25, 1): "Zen 4", (25, 10): "Zen 4", (26, 0): "Zen 5"}
"""The architectures of AMD's processors by their family and the upper half of their model."""


def describe() -> str:
    known = facts()
    rates = ", ".join(f"{name} {rate:.3g} GF/s" for name, rate in known["best_product"].items())
    return (
        f"{known['name']}; {known['threads']} threads, torch {known['torch']}, Python {known['python']}; "
        f"best matrix product: {rates}"
    )


def facts() -> dict[str, Any]:
    """Return what a record says of the machine; the rates are in GF/s, and the load is that of the last minute."""
    return {
        "name": name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "best_product": {name: round(product_rate(dtype), 1) for name, dtype in TYPES.items()},
        "load": round(os.getloadavg()[0], 2),
    }


def name() -> str:
    """Return the processor, its architecture where its name does not say it, and the number of cores."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        zen = ZEN.get((int(known.get("cpu family", 0)), int(known.get("model", 0)) >> 4), "")
        processor = ", ".join(filter(None, [known.get("model name", ""), zen]))
        return f"{processor}, {os.cpu_count()} cores"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def product_rate(dtype: torch.dtype, repeats: int = 8) -> float:
    """Return the best rate of a square matrix product, in GF/s."""
    # bfloat16 without support of the processor is so slow that a large product would take a minute.
    small = _best_rate(dtype, 256, repeats)
    return max(small, _best_rate(dtype, 2048, repeats)) if small > 5 else small


def _best_rate(dtype: torch.dtype, size: int, repeats: int) -> float:
    a, out = torch.ones(size, size, dtype=dtype), torch.empty(size, size, dtype=dtype)
    return 2 * size**3 / min(seconds(lambda: torch.mm(a, a, out=out)) for _ in range(repeats)) / 1e9


def read_rate() -> float:
    """Return the bytes in a second that a sum reads from large pages of memory, where compiled steps keep weights."""
    values = in_large_pages(1 << 29).view(torch.float32).fill_(1)
    return values.nbytes / min(seconds(values.sum) for _ in range(8))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def times_in_turn(works: dict[str, Callable[[], object]], repeats: int, pause: float = 0.0) -> dict[str, list[float]]:
    """Return the seconds of each function; they run in turn, so that other load affects them equally.

    Each begins ``pause`` seconds after the one before, whose threads may still wait for more work and use a processor.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            time.sleep(pause)
            times[name].append(seconds(work))
    return times


def in_turn(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each function; they run in turn, so that other load affects them equally."""
    return {name: statistics.median(found) for name, found in times_in_turn(works, repeats).items()}
