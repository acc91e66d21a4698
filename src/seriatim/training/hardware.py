"""What a training computes on: device, precision, memory, and the environment that determines its last bits."""

import ctypes
import functools
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from ..compiler.cpp.toolchain import compiler
from ..core.errors import UnavailableError, shown
from ..version import __version__

Precision = Literal["float32", "bfloat16"]


def choose_device(name: str, *, local_index: int | None = None) -> torch.device:
    """Return the device of that name if this machine has it; ``auto`` is CUDA if there is one, else the CPU.

    Of several ranks on one machine, the rank ``local_index`` has the CUDA device of that number.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and local_index is not None:
        name = f"cuda:{local_index}"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError):
        raise UnavailableError(
            f"training.device: {shown(name)} is not available on this machine; use auto or cpu"
        ) from None
    return device


def choose_precision(name: Literal["float32", "bfloat16", "auto"], device: torch.device) -> Precision:
    """Return the precision of that name; ``auto`` is bfloat16 where a GPU supports it, and else float32.

    On processors bfloat16 is faster for wide layers only, slower on some machines, and costs some quality.
    """
    if name != "auto":
        return name
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


def environment(device: torch.device) -> dict[str, str]:
    """Return what the last bits of a training depend on: versions, processor, compiler, device and threads."""
    return {
        "seriatim": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "compiler": " ".join(compiler() or ["none"]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": str(torch.get_num_threads()),
    }


def describe_changes(before: dict[str, str], now: dict[str, str]) -> str:
    """Return the differences of two environments in words, for example ``threads 1 (2 before)``."""
    return ", ".join(
        f"{name} {now[name]} ({before[name]} before)" for name in now if before.get(name, now[name]) != now[name]
    )


@functools.cache
def _processor() -> str:
    """Return the name of the processor and the instruction set that PyTorch uses on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return f"{name or platform.processor() or platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def resident_memory() -> int | None:
    """Return the memory that this process uses now, in bytes; None where the system does not tell."""
    return _status("VmRSS")


def peak_memory() -> int | None:
    """Return the peak of memory of this process in bytes; None where the system does not tell.

    On Linux it is read from ``/proc``, as ``getrusage`` also counts the process that started this one.
    """
    if (peak := _status("VmHWM")) is not None:
        return peak
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str) -> int | None:
    """Return a field of ``/proc/self/status`` in bytes; None if there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
    except (OSError, ValueError, IndexError):
        return None


# The memory allocator: freed memory stays with the process until a long job ends. By default glibc returns large blocks
# to the system when they are freed, and the system clears them page by page when the next step allocates them again. On
# a CPU this takes up to a third of a step. Without glibc, nothing is changed.


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


def _glibc() -> ctypes.CDLL | None:
    """Return glibc; None on other systems, and where the user tunes malloc, which is better than our settings."""
    tuned = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    library = ctypes.CDLL(None) if os.name == "posix" and not tuned else None
    return library if hasattr(library, "gnu_get_libc_version") else None


def return_freed_memory() -> None:
    """Return freed memory to the system, unless a job keeps it; it takes some milliseconds."""
    if (library := _glibc()) is not None and not _jobs:
        library.malloc_trim(0)


_jobs: list[object] = []
"""The jobs that are running; they share the settings, which apply to the whole process."""


@contextmanager
def freed_memory_kept(*, up_to: int | None = None) -> Iterator[None]:
    """Keep freed memory with the process inside the ``with`` block; the end of the outermost block returns it.

    Nothing is changed where the user tunes malloc. The bound of the outermost block applies to blocks inside it.

    Args:
        up_to: size in bytes of the largest block that is kept; None for no limit.
    """
    library = _glibc()
    if library is None:
        yield
        return

    # Threads of a server may be in several blocks: the first sets the process up, the last one restores it.
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


# The threads of PyTorch. Between two operations those of libgomp spin for several milliseconds, so that the next one
# begins sooner. Where two trainings share the processors, each spins on those that the other one needs, and both take
# several times as long as with one thread. A process with more threads of OpenMP than processors spins for
# microseconds only, and trains a little slower when it is alone. Results do not depend on it.


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables that tell libgomp how to wait."""


@contextmanager
def waiting_threads_asleep() -> Iterator[None]:
    """Let the threads of PyTorch sleep while they wait inside the ``with`` block, also where it is already imported.

    Nothing is changed for a single thread, without libgomp, and where the user has chosen how threads wait.
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    is_chosen = any(name in os.environ for name in WAITING)
    if library is None or is_chosen or torch.get_num_threads() == 1 or not hasattr(library, "GOMP_parallel"):
        yield
        return

    # A thread of Python has threads of OpenMP of its own, as many as there are processors, and lets them sleep.
    done, nothing = threading.Event(), ctypes.cast(library.free, ctypes.c_void_p)  # as free(NULL) does nothing

    def hold_threads() -> None:
        library.GOMP_parallel(nothing, None, len(os.sched_getaffinity(0)) + 1, 0)
        done.wait()

    holder = threading.Thread(target=hold_threads, daemon=True)
    holder.start()
    try:
        yield
    finally:
        done.set()
        holder.join()
