"""Death at a touch of the disk, or a disk that is full from then on, so that no touch goes untried."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from seriatim.storage import weights
from seriatim.training.checkpoints import MetricsLog

WRITES = ("write_text", "fsync", "save_file", "write")


class Death(BaseException):
    """What a killed process does: nothing any more."""


class Clock:
    """Dies at the k-th touch of the disk; a file that is being written then is left half written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
        self.touches, self.dies_at = 0, dies_at
        self.paths: list[str] = []  # of each touch, as far as it has one
        for owner, name in (
            *((Path, name) for name in ("mkdir", "rename", "replace", "unlink", "write_text")),
            (os, "fsync"),
            (shutil, "rmtree"),
            (weights, "save_file"),
            (MetricsLog, "write"),
        ):
            monkeypatch.setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*arguments: Any, **settings: Any) -> Any:
            self.touches += 1
            self.paths.append(str(arguments[0]))
            if not self.dead(name):
                return function(*arguments, **settings)
            if self.touches == self.dies_at and name in ("write_text", "save_file"):
                path = arguments[0] if name == "write_text" else arguments[1]
                with open(path, "wb") as file:
                    file.write(b'{"half')
            return self.die(name)

        return touch

    def dead(self, name: str) -> bool:
        return self.touches >= self.dies_at

    def die(self, name: str) -> None:
        raise Death


class FullDisk(Clock):
    """From the k-th touch on, what writes fails, and nothing else does."""

    def dead(self, name: str) -> bool:
        return name in WRITES and self.touches >= self.dies_at

    def die(self, name: str) -> None:
        if name == "save_file":
            raise SafetensorError(f"Error while serializing: I/O error: no space (os error {errno.ENOSPC})")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
