"""Settings of the memory allocator: freed memory stays with the process until a long job ends.

By default glibc returns large blocks to the system when they are freed, and the system clears them page by page when
the next step allocates them again. On a CPU this takes up to a third of a step. Without glibc, nothing is changed.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
"""Parameters of mallopt(3)."""
KEEP = {TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
USUAL = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 2**26, TOP_PAD: 0, MMAP_THRESHOLD: 2**25}
"""The values that glibc's adaptive thresholds reach after a few large blocks."""

KERNELS = 256
"""The number of compiled kernels of bfloat16 products in the caches, one for each shape; each takes about 1 MB."""
KERNEL_CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
"""Environment variables that set the sizes of the caches of PyTorch and oneDNN; both default to 1,024 kernels."""


for _name in KERNEL_CACHES:  # both libraries read their variable at the first bfloat16 product on a CPU
    os.environ.setdefault(_name, str(KERNELS))

_jobs: list[object] = []
"""The jobs that are running; they share the settings, which apply to the whole process."""


@contextmanager
def freed_memory_kept(*, up_to: int | None = None) -> Iterator[None]:
    """Keep freed memory with the process inside the ``with`` block; the end of the outermost block returns it.

    Nothing is changed where the user tunes malloc. The bound of the outermost block applies to blocks inside it.

    Args:
        up_to: size in bytes of the largest block that is kept; None for no limit.
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    library = ctypes.CDLL(None) if os.name == "posix" and not tuned else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        yield
        return
    job = object()
    if not _jobs:
        for option in (KEEP | ({MMAP_MAX: 0} if up_to is None else {MMAP_THRESHOLD: up_to})).items():
            library.mallopt(*option)
    _jobs.append(job)
    try:
        yield
    finally:
        _jobs.remove(job)
        if not _jobs:
            for option in USUAL.items():
                library.mallopt(*option)
            library.malloc_trim(0)
