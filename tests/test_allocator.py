"""Memory between the steps of a training."""

import json
import os
import platform
import subprocess
import sys

import pytest

from seriatim.training import allocator
from seriatim.training.allocator import freed_memory_kept

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
COUNT = """
import json, resource, torch
from seriatim.training.allocator import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = [faults()]
with freed_memory_kept():
    faults()
    found.append(faults())
print(json.dumps([*found, faults()]))
"""


def untuned() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}


def faults(**environment: str) -> list[int]:
    """Pages that the system provides for a use of 48 MB before, within and after, in a fresh process."""
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, env={**untuned(), **environment}, stdout=subprocess.PIPE, text=True, check=True)
    found: list[int] = json.loads(done.stdout)
    return found


@glibc
def test_settings_of_a_user_are_left_alone() -> None:
    before, within, after = faults(MALLOC_TRIM_THRESHOLD_="1000000")
    assert 2 * within > before
    assert 2 * after > before


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
