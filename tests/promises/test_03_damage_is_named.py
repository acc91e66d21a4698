"""A file of a checkpoint that is not as it was written is named, and the checkpoint before it is used."""

import random
import re
import shutil
from pathlib import Path

import pytest

import seriatim
from seriatim.training.checkpoints import checkpoints

from ..conftest import small_config
from ..refusals import refused
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


@pytest.mark.parametrize("places", [50, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_a_flipped_bit_in_many_places(folder: Path, tmp_path: Path, places: int) -> None:
    generator = random.Random(0)
    last = checkpoints(folder)[-1]
    for _ in range(places):
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
    with refused("damaged", "model.safetensors"):
        load(folder)
    assert sorted(folder.rglob("*")) == before


def test_what_cannot_be_read_of_a_finished_run_is_said_and_made_anew(texts, tmp_path: Path) -> None:
    """Weights, metrics and summary, damaged or gone, when a run goes on."""
    config = small_config(texts, tmp_path / "run", training={"steps": 20, "evaluate_every": 5})
    seriatim.train(config)
    run, more = tmp_path / "run", iter(range(21, 30))

    def go_on() -> seriatim.Run:
        return seriatim.resume(run, overrides={"training.steps": next(more)})

    (run / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"model\.safetensors: missing.*the search for the best weights begins again"):
        assert go_on().summary["best_valid"] > 0
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (run / "model.safetensors").write_bytes(content)
    with refused("damaged", "model.safetensors"):
        seriatim.load(run)
    with pytest.warns(UserWarning, match=r"model\.safetensors: damaged.*begins again"):
        go_on()
    (run / "summary.json").write_text("{")
    go_on()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([lines[0], "[" + lines[1], *lines[2:]]))
    with pytest.warns(UserWarning, match=rf"metrics\.jsonl: line 2 is damaged or missing, and {len(lines) - 1} lines"):
        go_on()


def test_other_texts_are_not_gone_on_with_wherever_they_lie(texts, tmp_path: Path) -> None:
    valid, moved = tmp_path / "valid.txt", tmp_path / "moved.txt"
    shutil.copy(texts["valid"], valid)
    config = small_config({**texts, "valid": str(valid)}, tmp_path / "run", training={"steps": 3})
    seriatim.train(config)
    valid.rename(moved)
    with refused("missing", "valid.txt"):
        seriatim.resume(tmp_path / "run")
    seriatim.resume(tmp_path / "run", overrides={"data.valid": str(moved), "training.steps": 4})
    moved.write_text("the cat sees the sea .\n")
    with refused("mismatch", "moved.txt"):
        seriatim.resume(tmp_path / "run", overrides={"training.steps": 5})


def test_a_flipped_bit_in_tables_of_ngrams(texts, tmp_path: Path) -> None:
    model = {"layer": "ngram", "options": {"order": 2, "smoothing": "witten-bell"}}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=model))
    path = run.path / "model.safetensors"
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place in (header, (header + len(content)) // 2, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with refused("damaged", "model.safetensors"):
            seriatim.load(run.path)


def test_the_last_two_are_kept_and_copies_are_none(tmp_path: Path) -> None:
    for _ in range(14):
        save(tmp_path, 7)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000007.12", "step-000000007.13"]
    shutil.copytree(tmp_path / "step-000000007.12", tmp_path / "step-keep")
    save(tmp_path, 8)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000007.13", "step-000000008"]
    assert load(tmp_path) == 8
