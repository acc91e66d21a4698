"""A folder of tagged sentences and a tagger, for the tests of tagging; other files define fixtures of their own."""

from pathlib import Path

import pytest

import seriatim

from .tagged import columns, config, conllu


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tagged")
    for seed, (name, count) in enumerate({"train": 120, "valid": 30}.items()):
        (path / f"{name}.conll").write_text(columns(count, seed))
        (path / f"{name}.conllu").write_text(conllu(count, seed))
    return path


@pytest.fixture(scope="session")
def run(folder: Path) -> seriatim.Run:
    return seriatim.train(config(folder, "run"))
