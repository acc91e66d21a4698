"""A training that torchrun starts again continues its own run, and no other one."""

from pathlib import Path

import pytest

import seriatim
from seriatim.config import resolve
from seriatim.training.parallel import JOB, how_to_begin

from ..conftest import small_config
from ..refusals import refused


@pytest.fixture
def config(texts, tmp_path: Path) -> dict:
    return small_config(texts, tmp_path / "run", training={"steps": 3, "baseline": "none"})


def test_a_restart_continues_a_run_of_the_same_configuration(config: dict, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert how_to_begin(resolve(config), folder, restarts=1) == "new"
    seriatim.train(config)
    assert how_to_begin(resolve(config), folder, restarts=1) == "resume"
    assert how_to_begin(resolve(config), folder, restarts=0) == "new"
    other = resolve(config, {"training.seed": 2})
    assert how_to_begin(other, folder, restarts=1) == "new"
    for name in ("model.safetensors", "metrics.jsonl", "summary.json"):
        (folder / name).unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.rename(folder / f"{checkpoint.name}.lost")
    assert how_to_begin(resolve(config), folder, restarts=1) == "again"


def test_the_same_job_continues_although_no_restart_was_counted(config: dict, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    run = seriatim.train(config)
    assert (tmp_path / "run" / JOB).read_text() == "job-7"
    assert seriatim.train(config).summary["steps"] == run.summary["steps"]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-8")
    with refused("exists", "run"):
        seriatim.train(config)


def test_without_the_name_of_a_job_nothing_is_recorded(config: dict, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    seriatim.train(config)
    assert not (tmp_path / "run" / JOB).exists()
