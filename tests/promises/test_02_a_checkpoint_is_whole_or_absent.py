"""Whenever a process dies while it writes a checkpoint, the last whole one opens, and later ones can be written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seriatim.models import weights
from seriatim.training.checkpoints import checkpoints

from .saved import load, save


class Death(BaseException):
    """What a killed process does: nothing any more."""


class Clock:
    """Dies at the k-th touch of the disk; a file that is being written then is left half written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
        self.touches, self.dies_at = 0, dies_at
        for owner, name in (
            *((Path, name) for name in ("mkdir", "rename", "replace", "unlink", "write_text")),
            (os, "fsync"),
            (shutil, "rmtree"),
            (weights, "save_file"),
        ):
            monkeypatch.setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*arguments: Any, **settings: Any) -> Any:
            self.touches += 1
            if self.touches < self.dies_at:
                return function(*arguments, **settings)
            if self.touches == self.dies_at and name in ("write_text", "save_file"):
                path = arguments[0] if name == "write_text" else arguments[1]
                with open(path, "wb") as file:
                    file.write(b'{"half')
            raise Death

        return touch


def touches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patched:
        clock = Clock(patched, 10**9)
        save(folder, 3)
    return clock.touches


def test_death_at_every_touch_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "whole", 1)
    save(tmp_path / "whole", 2)
    shutil.copytree(tmp_path / "whole", tmp_path / "counted")
    total, found = touches(tmp_path / "counted", monkeypatch), []
    assert total > 15
    for k in range(1, total + 1):
        folder = tmp_path / str(k)
        shutil.copytree(tmp_path / "whole", folder)
        with monkeypatch.context() as patched:
            Clock(patched, k)
            with pytest.raises(Death):
                save(folder, 3)
        found.append(load(folder))
        save(folder, 4)
        assert load(folder) == 4
        assert not list(folder.glob("*.partial"))
    assert found == sorted(found)
    assert set(found) == {2, 3}


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    for _ in range(3):
        save(tmp_path, 5)
    assert load(tmp_path) == 5
    assert len(checkpoints(tmp_path)) == 2
