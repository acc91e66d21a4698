"""Memory between the steps of a training."""

import platform
import resource

import pytest
import torch

from seriatim.training import allocator
from seriatim.training.allocator import freed_memory_kept

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")


def faults() -> int:
    """Pages that the system had to provide for one use of 48 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(allocator.os.environ):
        if name.startswith(("MALLOC_", "GLIBC_TUNABLES")):
            monkeypatch.delenv(name)


@glibc
@pytest.mark.usefixtures("untuned")
def test_freed_memory_is_used_again_and_returned_at_the_end() -> None:
    plain = faults()
    with freed_memory_kept():
        faults()
        assert 5 * faults() < plain
    assert 2 * faults() > plain


@glibc
@pytest.mark.usefixtures("untuned")
def test_settings_of_a_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = faults()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    with freed_memory_kept():
        faults()
        assert 2 * faults() > plain


@pytest.mark.usefixtures("untuned")
def test_a_library_without_these_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A C library of another kind."""

        def mallopt(self, name: int, value: int) -> int:
            raise AssertionError("not its own settings")

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Other())
    with freed_memory_kept():
        pass
