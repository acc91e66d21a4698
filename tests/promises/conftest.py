"""Only here tests wait for the disk as users do: what is promised may depend on it."""

import os

import pytest

REAL = os.fsync


@pytest.fixture(autouse=True)
def _wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", REAL)
