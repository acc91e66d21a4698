"""Here tests wait for the disk and compile as users do: what is promised may depend on it."""

import os

import pytest

from ..quick_compiler import compiled_for_use

REAL = os.fsync
_compiled = pytest.fixture(autouse=True, scope="module")(compiled_for_use)


@pytest.fixture(autouse=True)
def _wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", REAL)
