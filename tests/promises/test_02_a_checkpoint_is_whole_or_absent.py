"""Whenever a process dies while it writes a checkpoint, the last whole one opens, and later ones can be written."""

import shutil
from pathlib import Path

import pytest

from seriatim.training.checkpoints import checkpoints

from .death import Clock, Death
from .saved import load, save


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
