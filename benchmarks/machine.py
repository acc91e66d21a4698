"""Measure the limits of the machine, which are stated beside every figure."""

import platform
import statistics
import time
from collections.abc import Callable

import torch


def describe() -> str:
    rates = ", ".join(f"{name} {product_rate(dtype):.3g} GF/s" for name, dtype in TYPES.items())
    return (
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}; "
        f"best matrix product: {rates}"
    )


TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def product_rate(dtype: torch.dtype, repeats: int = 8) -> float:
    """Return the best rate of a square matrix product, in GF/s."""
    # bfloat16 without support of the processor is so slow that a large product would take a minute.
    small = _best_rate(dtype, 256, repeats)
    return max(small, _best_rate(dtype, 2048, repeats)) if small > 5 else small


def _best_rate(dtype: torch.dtype, size: int, repeats: int) -> float:
    a, out = torch.ones(size, size, dtype=dtype), torch.empty(size, size, dtype=dtype)
    return 2 * size**3 / min(seconds(lambda: torch.mm(a, a, out=out)) for _ in range(repeats)) / 1e9


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each function; they run in turn, so that other load affects them equally."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(found) for name, found in times.items()}
