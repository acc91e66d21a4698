"""How threads of PyTorch wait while a model is trained."""

import os
import time

import pytest
import torch

from seriatim.training import hardware
from seriatim.training.hardware import waiting_threads_asleep

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/task") or not hasattr(hardware.ctypes.CDLL(None), "GOMP_parallel"),
    reason="only libgomp waits so, and only Linux lists threads",
)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.fixture(autouse=True)
def _untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.torch, "get_num_threads", lambda: 2)
    for name in hardware.WAITING:
        monkeypatch.delenv(name, raising=False)


def test_a_process_has_more_threads_than_processors_until_the_end() -> None:
    before, values = threads(), torch.randn(200, 200)
    expected = values @ values
    with waiting_threads_asleep():
        deadline = time.monotonic() + 60
        while threads() <= max(before, len(os.sched_getaffinity(0))) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert threads() > len(os.sched_getaffinity(0))
        assert torch.equal(values @ values, expected)
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threads() <= before


@pytest.mark.parametrize("name", hardware.WAITING)
def test_what_the_user_has_chosen_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1000")
    before = threads()
    with waiting_threads_asleep():
        assert threads() == before
