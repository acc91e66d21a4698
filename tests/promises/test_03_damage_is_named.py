"""A file of a checkpoint that is not as it was written is named, and the checkpoint before it is used."""

import random
import re
import shutil
from pathlib import Path

import pytest

from seriatim.errors import InputError
from seriatim.training.checkpoints import checkpoints

from .saved import load, save

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "progress.json", "state.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "checkpoints", 1)
    save(tmp_path / "checkpoints", 2)
    return tmp_path / "checkpoints"


def expect_the_one_before(folder: Path, name: str) -> None:
    last = checkpoints(folder)[-1]
    with pytest.warns(UserWarning, match=rf"{re.escape(str(last))}/\S+: (missing|damaged).*; going on from .*step-0+1"):
        assert load(folder) == 1
    assert (folder / f"{last.name}.damaged").is_dir()
    assert load(folder) == 1  # without a word: what is damaged was put aside
    save(folder, 2)
    assert load(folder) == 2


@pytest.mark.parametrize("name", FILES)
def test_cut_off_anywhere_or_missing(folder: Path, name: str, tmp_path: Path) -> None:
    content = (checkpoints(folder)[-1] / name).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little") if name.endswith("safetensors") else 1
    for i, size in enumerate([None, 0, 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1]):
        copied = tmp_path / str(i)
        shutil.copytree(folder, copied)
        path = checkpoints(copied)[-1] / name
        path.unlink() if size is None else path.write_bytes(content[:size])
        expect_the_one_before(copied, name)


def test_a_flipped_bit_in_200_places(folder: Path, tmp_path: Path) -> None:
    generator = random.Random(0)
    last = checkpoints(folder)[-1]
    for _ in range(200):
        path = last / generator.choice(FILES)
        content = bytearray(path.read_bytes())
        place = generator.randrange(len(content))
        content[place] ^= 1 << generator.randrange(8)
        copied = tmp_path / "copied"
        shutil.copytree(folder, copied)
        (copied / last.name / path.name).write_bytes(content)
        with pytest.warns(UserWarning, match="going on from the checkpoint before"):
            assert load(copied) == 1
        shutil.rmtree(copied)


def test_where_none_is_whole(folder: Path) -> None:
    for checkpoint in checkpoints(folder):
        (checkpoint / "model.safetensors").write_bytes(b"")
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError, match=r"step-0+2/model.safetensors: damaged, and no checkpoint before it is whole"):
        load(folder)
    assert sorted(folder.rglob("*")) == before
