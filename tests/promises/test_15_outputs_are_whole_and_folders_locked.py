"""What is written is written aside and renamed; two processes never write into one run; a crash releases its lock."""

import os
import threading
import time
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.interchange.formats import import_run
from seriatim.storage.disk_cache import cached
from seriatim.storage.files import LOCK, locked, write_whole
from seriatim.training.reporting import Reporter

from ..conftest import small_config
from ..refusals import refused
from .death import FullDisk
from .kills import PROCESSES, begin, outcome


def hold(folder: str, held: str) -> None:
    with locked(Path(folder)):
        Path(held).touch()
        time.sleep(600)


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def test_a_second_process_is_refused_until_the_first_is_dead(texts, tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", training={"steps": 2})
    seriatim.train(config)
    other = PROCESSES.Process(target=hold, args=(str(tmp_path / "run"), str(tmp_path / "held")))
    other.start()
    try:
        wait_for(tmp_path / "held")
        before = outcome(tmp_path / "run")
        for again in (
            lambda: seriatim.train(config, overwrite=True),
            lambda: seriatim.resume(tmp_path / "run"),
            lambda: import_run(arpa(tmp_path), str(tmp_path / "run"), overwrite=True),
        ):
            with refused("busy", "run"):
                again()
        assert main(["train", "--resume", str(tmp_path / "run")]) == 2
        assert outcome(tmp_path / "run") == before
        assert list(seriatim.load(tmp_path / "run").generate(max_tokens=3, seed=1))  # readers are not kept out
    finally:
        other.kill()
        other.join()
    seriatim.resume(tmp_path / "run", overrides={"training.steps": 3})


def arpa(folder: Path) -> str:
    path = folder / "model.arpa"
    path.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-99\t<s>\n-1\t<unk>\n-0.5\ta\n-0.5\t</s>\n\n\\end\\\n")
    return str(path)


def test_a_training_that_is_killed_releases_its_folder(texts, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin(small_config(texts, out, training={"steps": 10**6, "checkpoint_every": 5}), out)
    wait_for(out / "checkpoints" / "step-000000005")
    with refused("busy", "run"):
        seriatim.resume(out)
    process.kill()
    process.join()
    assert seriatim.resume(out, overrides={"training.steps": 1}).summary["steps"] >= 5


def test_of_two_that_begin_at_once_one_trains(texts, tmp_path: Path) -> None:
    """Both find the folder empty; the one that comes second must not write over what the first wrote."""
    config = small_config(texts, tmp_path / "run", training={"steps": 30})
    refused, ready = [], threading.Barrier(2)

    def train() -> None:
        ready.wait()
        try:
            seriatim.train(config)
        except InputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (reason,) = refused
    assert "another process is writing this run" in reason or "not empty" in reason
    assert seriatim.load(tmp_path / "run").summary["steps"] == 30


def test_a_lock_without_a_run_is_no_obstacle(texts, tmp_path: Path) -> None:
    """What a training leaves that was killed before it wrote anything, or while it replaced another run."""
    out = tmp_path / "run"
    out.mkdir()
    (out / LOCK).touch()
    config = small_config(texts, out, training={"steps": 2})
    seriatim.train(config)
    (out / "config.yaml").unlink()
    with refused("exists", "run"):
        seriatim.train(config)
    seriatim.train(config, overwrite=True)


def write_often(path: str, text: str) -> None:
    for _ in range(100):
        write_whole(Path(path), text)


def test_of_two_that_write_one_file_one_wins_whole(tmp_path: Path) -> None:
    (tmp_path / "file.partial").write_text("mine")
    texts = ["a" * 100_000, "b" * 150_000]
    processes = [PROCESSES.Process(target=write_often, args=(str(tmp_path / "file"), text)) for text in texts]
    for process in processes:
        process.start()
    wait_for(tmp_path / "file")
    while any(process.is_alive() for process in processes):
        assert (tmp_path / "file").read_text() in texts
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == ["file", "file.partial"]  # which is somebody's own


def test_a_lock_that_is_a_link_is_not_followed(texts, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with refused("unwritable", "run"):
        seriatim.train(small_config(texts, tmp_path / "run"))
    assert (tmp_path / "precious").read_text() == "mine"


class Look(Reporter):
    """What other processes see of a run while it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def validation(self, record) -> None:
        assert seriatim.load(self.folder).path == self.folder


def test_a_run_can_be_opened_while_it_trains(texts, tmp_path: Path) -> None:
    training = {"steps": 12, "evaluate_every": 2, "checkpoint_every": 2}
    seriatim.train(small_config(texts, tmp_path / "run", training=training), reporter=Look(tmp_path / "run"))


def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "file.txt"
    write_whole(path, "before")
    for k in (1, 2):  # the text, the flush
        with monkeypatch.context() as patched:
            FullDisk(patched, k)
            with pytest.raises(OSError, match="No space left"):
                write_whole(path, "after")
        assert path.read_text() == "before"
        assert os.listdir(tmp_path) == ["file.txt"]


def test_an_export_is_whole_or_not_there(texts, tmp_path: Path, monkeypatch) -> None:
    data, layer = {"unit": "line"}, {"layer": "ngram", "options": {"order": 2, "smoothing": "witten-bell"}}
    run = seriatim.train(small_config(texts, tmp_path / "run", data=data, model=layer, tokenizer={"kind": "word"}))
    out = tmp_path / "model.arpa"
    before = "# written by Seriatim\nbefore"
    out.write_text(before)
    with monkeypatch.context() as patched:
        FullDisk(patched, 1)
        assert main(["export", str(run.path), "--format", "arpa", "--out", str(out)]) == 1
    assert out.read_text() == before
    assert not list(tmp_path.glob("*.partial"))
    assert main(["export", str(run.path), "--format", "arpa", "--out", str(out)]) == 0
    assert out.read_text().startswith("# written by Seriatim\n\\data\\\n")


def test_a_cache_is_whole_or_not_there(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path))

    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        cached("thing", half)
    assert not list(tmp_path.iterdir())
    left = tmp_path / "other.killed.partial"
    left.mkdir()
    os.utime(left, (0, 0))  # long ago
    (tmp_path / "thing.busy.partial").mkdir()
    assert (cached("thing", lambda folder: (folder / "whole").touch()) / "whole").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thing", "thing.busy.partial"]
