"""Imported checkpoints that several files of tests share."""

from pathlib import Path

import pytest

import seriatim
from seriatim.interchange.formats import import_run

from .checkpoints import write


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives a checkpoint's folder, its model there, and its run; each is made once."""
    cache: dict[str, tuple[Path, object, seriatim.Run]] = {}

    def get(name: str) -> tuple[Path, object, seriatim.Run]:
        if name not in cache:
            folder = tmp_path_factory.mktemp(name)
            shards = {"max_shard_size": "20KB"} if name in ("llama", "bert") else {}
            model = write(name, folder, more_rows=7 if name == "llama-tied" else 0, **shards)
            cache[name] = folder, model, import_run(str(folder), str(folder / "run"))
        return cache[name]

    return get
