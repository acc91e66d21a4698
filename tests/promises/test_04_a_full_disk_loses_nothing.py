"""A full disk: one line says so, the last checkpoint is whole, and with room again the training goes on."""

import os
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError, TrainingError
from seriatim.training.checkpoints import checkpoints, damage, space_of_training

from ..conftest import small_config
from ..exhaustive import parameters
from ..golden.answers import GOLDEN
from .death import FullDisk
from .kills import PROCESSES, outcome

TRAINING = {"schedule": "constant", "precision": "float32", "steps": 6, "checkpoint_every": 2, "evaluate_every": 4}


@pytest.mark.parametrize("every", [23, pytest.param(9, marks=pytest.mark.exhaustive)])
def test_full_at_any_touch_of_the_disk(texts, tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(out: Path) -> dict:
        return small_config(texts, out, training=TRAINING)

    monkeypatch.setattr("seriatim.data.source_content.RACY_SECONDS", 0)  # what is new is remembered, too
    seriatim.train(config(tmp_path / "first"))  # fills the cache
    with monkeypatch.context() as patched:
        touches = FullDisk(patched, 10**9)
        seriatim.train(config(tmp_path / "whole"))
    # A run without its model card and summary is complete.
    card = next(i for i, path in enumerate(touches.paths) if "README" in path)
    for k in range(3, card, every):
        out = tmp_path / str(k)
        with monkeypatch.context() as patched:
            FullDisk(patched, k)
            with pytest.raises(
                (TrainingError, InputError), match=r"No space left on device\); .*(make room|--out)"
            ) as e:
                seriatim.train(config(out))
        assert "\n" not in str(e.value)
        assert not any(map(damage, checkpoints(out / "checkpoints")))
        assert not list(out.rglob("*.partial"))
        if (out / "config.yaml").exists():
            seriatim.resume(out)
            assert outcome(out) == outcome(tmp_path / "whole")


def train_limited(out: str, limit: int, log: str) -> None:
    """Goes on with a training in a process whose files may not be larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    torch.set_num_threads(1)
    os._exit(main(["train", "--resume", out, "--training.steps", "6", "--quiet"]))


def test_files_that_may_not_grow(texts, tmp_path: Path) -> None:
    seriatim.train(small_config(texts, tmp_path / "whole", training=TRAINING))
    out = seriatim.train(small_config(texts, tmp_path / "cut", training={**TRAINING, "steps": 2})).path
    sizes = [path.stat().st_size for path in checkpoints(out / "checkpoints")[-1].iterdir()]
    process = PROCESSES.Process(target=train_limited, args=(str(out), max(sizes) - 1, str(tmp_path / "log")))
    process.start()
    process.join()
    assert process.exitcode == 1
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("seriatim: error: ")
    assert "File too large); make room; step-000000002.1 is complete, resume with --resume" in line
    assert checkpoints(out / "checkpoints")[-1].name == "step-000000002.1"
    seriatim.resume(out, overrides={"training.steps": 6})
    assert outcome(out)["last/model.safetensors"] == outcome(tmp_path / "whole")["last/model.safetensors"]


WRITING = {
    "torch": ["export", str(GOLDEN / "lm-lstm"), "--format", "torch"],
    "transformers": ["export", str(GOLDEN / "lm-imported"), "--format", "transformers"],
    "onnx": ["export", str(GOLDEN / "lm-rnn"), "--format", "onnx"],
    "surprisal": ["surprisal", str(GOLDEN / "lm-ngram"), str(GOLDEN / "data" / "text.txt")],
    "inspect": ["inspect", str(GOLDEN / "lm-ngram"), "--text", "the cat"],
}


@pytest.mark.parametrize("name", parameters(WRITING, everyday=("torch", "transformers", "surprisal")))
@pytest.mark.parametrize("limit", [10, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_what_cannot_be_written_is_named_and_leaves_nothing(name: str, limit: int, tmp_path: Path, capsys) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert main([*WRITING[name], "--out", str(tmp_path / "out")]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err.startswith(f"seriatim: error: {tmp_path / 'out'}: File too large; ")
    assert not list(tmp_path.iterdir())


def test_room_is_asked_for_before_anything_is_written(texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(texts, tmp_path / "run", training=TRAINING)
    first = seriatim.train(config)
    sizes = [path.stat().st_size for path in first.path.rglob("*") if path.is_file()]
    needed = space_of_training(first.model, first.config.training)
    assert sum(sizes) < needed < 2 * sum(sizes) + 2 * 2**20
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, needed - 1))
    with pytest.raises(TrainingError, match=r"other: .* MB are needed for the run, .* MB are free; make"):
        seriatim.train({**config, "out": str(tmp_path / "other")})
    assert not (tmp_path / "other").exists()
    before = outcome(first.path)
    with pytest.raises(TrainingError, match="the run that is there stays"):
        seriatim.train(config, overwrite=True)
    assert outcome(first.path) == before
    seriatim.resume(first.path)  # what it replaces counts as room
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 0))
    with pytest.raises(TrainingError, match="are free"):
        seriatim.resume(first.path)
    with pytest.raises(TrainingError, match="are free"):
        seriatim.train(small_config(texts, tmp_path / "counted", model={"layer": "ngram"}))
    assert not (tmp_path / "counted").exists()
