"""Memory between the steps of a job."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from seriatim.training import hardware as allocator
from seriatim.training.hardware import KERNEL_CACHES, KERNELS, freed_memory_kept, return_freed_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
COUNT = """
import contextlib, json, resource, torch
from seriatim.training.hardware import freed_memory_kept

def steps(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        [torch.ones(10_000_000) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = []
for keep in (contextlib.nullcontext, freed_memory_kept):
    with keep():
        steps(3)
        found.append(steps(4))
print(json.dumps(found))
"""


def untuned() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}


def faults(**environment: str) -> list[int]:
    """Pages that the system provides to four steps, without and within, in a fresh process."""
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, env={**untuned(), **environment}, stdout=subprocess.PIPE, text=True, check=True)
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.exhaustive
@glibc
def test_freed_memory_is_used_again() -> None:
    without, within = faults()
    assert 2 * within < without


@pytest.mark.exhaustive
@glibc
def test_settings_of_a_user_are_left_alone() -> None:
    without, within = faults(MALLOC_TRIM_THRESHOLD_="1000000")
    assert 2 * within > without


class Settings:
    """A C library that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def gnu_get_libc_version(self) -> str:
        return "2.0"

    def mallopt(self, name: int, value: int) -> int:
        if name == allocator.MMAP_MAX:
            self.told.append("usual" if value else "keep")
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.told.append("trim")
        return 1


def test_jobs_in_one_another_or_overlapping_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(untuned()):
        monkeypatch.delenv(name)
    library = Settings()
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: library)
    first, second = freed_memory_kept(), freed_memory_kept()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert library.told == ["keep"]
    second.__exit__(None, None, None)
    assert library.told == ["keep", "usual", "trim"]


def test_freed_memory_is_returned_unless_a_job_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(untuned()):
        monkeypatch.delenv(name)
    library = Settings()
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: library)
    with freed_memory_kept():
        return_freed_memory()
        assert library.told == ["keep"]
    return_freed_memory()
    assert library.told == ["keep", "usual", "trim", "trim"]
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    return_freed_memory()
    assert library.told.count("trim") == 2, "a user who tunes malloc knows better"


def test_a_library_without_these_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A C library of another kind."""

        def mallopt(self, name: int, value: int) -> int:
            raise AssertionError("not its own settings")

    for name in set(os.environ) - set(untuned()):
        monkeypatch.delenv(name)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Other())
    with freed_memory_kept():
        pass


SHAPES = """
import os, sys
import torch

os.environ.update(dict.fromkeys(sys.argv[1:], "8"))  # as the package does it: after PyTorch is imported

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

layer = torch.nn.Linear(64, 64)
sizes = []
for rows in range(1, 121):
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.ones(rows, 64)).float().sum().backward()
    if rows in (40, 120):
        sizes.append(resident())
print(sizes[1] - sizes[0])
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_number_of_batch_shapes() -> None:
    """With caches of 8 kernels, 80 more shapes take hardly any memory; with 1,024 they take about 100 MB."""
    environment = {name: value for name, value in os.environ.items() if name not in KERNEL_CACHES}
    command = [sys.executable, "-c", SHAPES, *KERNEL_CACHES]
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 15


def test_the_caches_of_kernels_are_bounded_unless_the_user_says_otherwise() -> None:
    code = f"import os, seriatim.training.hardware; print(*[os.environ[name] for name in {KERNEL_CACHES!r}])"
    given = {name: value for name, value in os.environ.items() if name not in KERNEL_CACHES}
    for more, expected in (({}, f"{KERNELS} {KERNELS}"), ({KERNEL_CACHES[0]: "7"}, f"7 {KERNELS}")):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={**given, **more}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
