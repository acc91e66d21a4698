"""Memory that is freed at every step of a long job stays with the process until the job ends.

By itself glibc returns large blocks to the system when they are freed, and the system clears them, page by page, when
the next step asks again: up to a third of a step on a CPU. Elsewhere than on glibc nothing is done.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
"""Names of mallopt(3)."""
KEEP = {TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
USUAL = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 2**26, TOP_PAD: 0, MMAP_THRESHOLD: 2**25}
"""Where glibc's thresholds, which adapt themselves, are after a few large blocks."""

KERNELS = 256
"""Compiled kernels of bfloat16 products that are cached, one for each shape; each takes about 1 MB."""
KERNEL_CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
"""Sizes of the caches of PyTorch and of oneDNN, which hold the same kernels; both default to 1,024."""


def bound_kernel_caches() -> None:
    """Bounds the memory that batches of many shapes take; variables that the user has set stay as they are.

    Both libraries read their variable at the first product on a CPU in bfloat16, so that this must come before.
    """
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, str(KERNELS))


bound_kernel_caches()

_jobs: list[object] = []
"""Those under way: the settings are the whole process's."""


@contextmanager
def freed_memory_kept(*, up_to: int | None = None) -> Iterator[None]:
    """Keeps freed memory inside the ``with`` block; at the end of the last such block it is returned.

    Where a user tunes malloc nothing is done. Inside another such block, that one's bound holds.

    Args:
        up_to: bytes of the largest block that is kept; None for any.
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    library = ctypes.CDLL(None) if os.name == "posix" and not tuned else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        yield
        return
    job = object()
    if not _jobs:
        _set(library, KEEP | ({MMAP_MAX: 0} if up_to is None else {MMAP_THRESHOLD: up_to}))
    _jobs.append(job)
    try:
        yield
    finally:
        _jobs.remove(job)
        if not _jobs:
            _set(library, USUAL)
            library.malloc_trim(0)


def _set(library: ctypes.CDLL, options: dict[int, int]) -> None:
    for name, value in options.items():
        library.mallopt(name, value)
