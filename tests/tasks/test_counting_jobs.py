"""N-grams that several processes or a cluster count: the same bytes, and what is refused."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.counting.ngrams import counting_jobs, shard_files, shards
from seriatim.counting.ngrams.counting_jobs import ShardJob, Workers, ids_file, merge_job, shard_cuts
from seriatim.processes.executors import InlineExecutor
from seriatim.tasks import ngram

from ..refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:too few")


def config(texts: dict[str, str], out: Path, unit: str = "line", **options: Any) -> dict[str, Any]:
    return {
        "data": {"train": texts["train"], "valid": texts["valid"], "unit": unit},
        "tokenizer": {"kind": "word"},
        "model": {"layer": "ngram", "options": {"order": 4, **options}},
        "out": str(out),
    }


def weights(texts: dict[str, str], out: Path, unit: str = "line", **options: Any) -> bytes:
    """Train, and return the bytes of the model; no other file stays in the folder."""
    run = seriatim.train(config(texts, out, unit, **options))
    assert not list(run.path.glob("*partial*"))
    return (run.path / "model.safetensors").read_bytes()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process: another one takes seconds to start."""
    monkeypatch.setattr(counting_jobs, "open_executor", lambda processes, cluster: InlineExecutor())
    monkeypatch.setattr(ngram, "require_cluster", lambda address: None)


@pytest.mark.parametrize("unit", ["line", "stream"])
@pytest.mark.parametrize("options", [{}, {"word_dropout": 0.5}, {"prune": [0, 0, 1]}])
def test_workers_write_the_same_file(
    texts: dict[str, str], unit: str, options: dict[str, Any], tmp_path: Path, here: None, monkeypatch
) -> None:
    """On a cluster they also merge, each a range of the windows."""
    merged = []
    monkeypatch.setattr(counting_jobs, "SMALLEST", 500)
    monkeypatch.setattr(counting_jobs, "merge_job", lambda job: (merge_job(job), merged.append(job.bounds)))
    whole = weights(texts, tmp_path / "whole", unit, **options)
    assert weights(texts, tmp_path / "three", unit, workers=3, **options) == whole
    assert not merged
    monkeypatch.setattr(shards, "RANGE_BLOCKS", 1)
    monkeypatch.setattr(shard_files, "BLOCK_WINDOWS", 16)
    assert weights(texts, tmp_path / "cluster", unit, cluster="tcp://host:8786", **options) == whole
    assert len(merged) == 3


@pytest.mark.parametrize("memory", [1e-5, 1e-2])
def test_workers_with_little_memory_count_the_same(
    texts: dict[str, str], memory: float, tmp_path: Path, here: None
) -> None:
    whole = weights(texts, tmp_path / "whole", memory=memory)
    assert weights(texts, tmp_path / "two", workers=2, memory=memory) == whole
    assert weights(texts, tmp_path / "cluster", cluster="tcp://host:8786", memory=memory) == whole


def test_shards_of_a_killed_training_are_removed(texts: dict[str, str], tmp_path: Path) -> None:
    run = seriatim.train(config(texts, tmp_path / "run"))
    with counting_jobs.shard_folder(run.path / "model.safetensors") as folder:
        shutil.copytree(folder, tmp_path / "left")
    left = (tmp_path / "left").rename(folder)
    (left / "0.shard").touch()
    seriatim.train(config(texts, tmp_path / "run"), overwrite=True)
    assert not left.exists()


@pytest.mark.exhaustive
def test_processes_write_the_same_file(texts: dict[str, str], tmp_path: Path) -> None:
    whole = weights(texts, tmp_path / "whole", word_dropout=0.5)
    assert weights(texts, tmp_path / "two", word_dropout=0.5, workers=2) == whole


def test_unknown_tokens_are_drawn_in_blocks_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, once = np.arange(100, dtype=np.uint16), np.arange(100) % 3 > 0
    whole = np.concatenate(list(ngram._replaced(ids, once, 1, 0.5, seed=3)))
    monkeypatch.setattr(ngram, "BLOCK", 7)
    blocks = list(ngram._replaced(ids, once, 1, 0.5, seed=3))
    assert len(blocks) == 15
    assert np.array_equal(np.concatenate(blocks), whole)
    assert (whole != ids).any()


@pytest.mark.parametrize(
    ("tokens", "workers", "shards"),
    [
        (10, Workers(3, None, None), 3),
        (2, Workers(3, None, None), 2),
        (1 << 30, Workers(2, None, None), 4),
        (1 << 30, Workers(2, None, 0.064), 1074),
        (1 << 20, Workers(1, "tcp://host:8786", None), 1),
        (1 << 30, Workers(1, "tcp://host:8786", None), 64),
        (1 << 40, Workers(1, "tcp://host:8786", None), 4096),
    ],
)
def test_the_number_of_shards(tokens: int, workers: Workers, shards: int) -> None:
    cuts = shard_cuts(tokens, workers)
    assert (len(cuts) - 1, cuts[0], cuts[-1]) == (shards, 0, tokens)
    assert max(np.diff(cuts)) - min(np.diff(cuts)) <= 1


def end(job: ShardJob) -> None:
    """A job that the system kills."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_killed_worker_leaves_one_line_and_nothing_behind(
    texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counting_jobs, "count_job", end)
    command = ["train", "lm", "--data", texts["train"], "--layer", "ngram", "--out", str(tmp_path / "run")]
    assert main([*command, "--model.options.workers", "2", "--quiet"]) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    assert len(lines) == 1
    assert "ended before its job was done" in lines[0]
    assert not list((tmp_path / "run").glob("*partial*"))


def test_files_that_no_machine_sees_are_named(tmp_path: Path) -> None:
    file = ids_file(np.array([1, 2, 0], dtype=np.uint16), tmp_path)
    assert file.open().tolist() == [1, 2, 0]
    Path(file.path).unlink()
    with refused("missing", "ids.bin"):
        file.open()


def test_a_full_disk_is_one_line(texts: dict[str, str], tmp_path: Path, capsys, monkeypatch, here: None) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise OSError(28, "No space left on device", "0.shard")

    monkeypatch.setattr(counting_jobs, "count_shard", fail)
    command = ["train", "lm", "--data", texts["train"], "--layer", "ngram", "--out", str(tmp_path / "run")]
    assert main([*command, "--model.options.workers", "2", "--quiet"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "seriatim: error: 0.shard: No space left on device; check space and permissions"
    ]
    assert not list((tmp_path / "run").glob("*partial*"))
