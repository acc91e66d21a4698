"""A folder that is no run, however it is made, is refused in one line, within the memory of a good one."""

import json
import shutil
from pathlib import Path

import pytest

import seriatim
from seriatim.storage.files import write_whole
from seriatim.training.checkpoints import MANIFEST, MetricsLog, checkpoints, damage

from ..conftest import small_config
from ..refusals import refused
from . import saved
from .hostile import NOT_REGULAR, PLACED
from .judge import refuse

FILES = ("config.yaml", "tokenizer.json", "labels.json", "target.json", "summary.json", "model.safetensors")
KEPT = ("manifest.json", "progress.json", "model.safetensors", "optimizer.safetensors", "state.safetensors")


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seriatim.train(small_config(texts, tmp_path_factory.mktemp("good") / "run", training={"steps": 2})).path


@pytest.mark.exhaustive
def test_what_is_no_file_of_a_run_is_named(run, tmp_path: Path) -> None:
    refuse({f"{what} as {name}": (name, place) for what, place in PLACED.items() for name in FILES}, run, tmp_path)


def test_what_is_no_file_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        saved.save(tmp_path / "checkpoints", step)
    last = checkpoints(tmp_path / "checkpoints")[-1]
    for name in KEPT:
        for what in (*NOT_REGULAR, "a link to nothing", "a link elsewhere", "a large file", "null"):
            folder = placed(what, f"{last.name}/{name}", last.parent, tmp_path)
            with pytest.warns(UserWarning, match=f"{name}: (missing|damaged)"):
                assert saved.load(folder) == 1


def test_metrics_are_read_from_a_file_alone(run, tmp_path: Path) -> None:
    for what in PLACED:
        folder = placed(what, "metrics.jsonl", run, tmp_path)
        if what in NOT_REGULAR:
            with refused("unreadable", "metrics.jsonl"):
                MetricsLog(folder, step=2, records=0)
        else:  # written anew, as far as there are no records
            MetricsLog(folder, step=2, records=0).close()
            assert (folder / "metrics.jsonl").read_text() == ""


def placed(what: str, name: str, good: Path, tmp_path: Path) -> Path:
    """A copy of a folder in which something stands for a file."""
    folder = tmp_path / "copied"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    (folder / name).unlink()
    PLACED[what](folder / name)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What nobody may touch."""
    folder = tmp_path / "outside"
    saved.save(folder, 1)
    (folder / "step-000000000.partial").mkdir()
    (folder / "precious.txt").write_text("precious")
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_pruning_stops_at_links(tmp_path: Path, outside: Path) -> None:
    before, folder = content(outside), tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step-000000001").symlink_to(outside)
    (folder / "step-000000002.partial").symlink_to(outside)
    (folder / "step-000000003.partial").write_text("a file")
    for step in (4, 5, 6):
        saved.save(folder, step)
    assert [path.name for path in folder.iterdir()].count("step-000000001") == 0
    assert saved.load(folder) == 6
    assert content(outside) == before


def test_checkpoints_elsewhere_are_neither_read_nor_pruned(run, tmp_path: Path, outside: Path) -> None:
    before = content(outside)
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").symlink_to(outside)
    with refused("forbidden", "checkpoints"):
        seriatim.resume(tmp_path / "run")
    with refused("forbidden", "checkpoints"):
        saved.save(tmp_path / "run" / "checkpoints", 9)
    assert content(outside) == before


def test_overwriting_a_run_leaves_what_its_links_lead_to(texts, run, tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints")
    for name in ("checkpoints", "tensorboard"):
        (folder / name).symlink_to(outside)
    for name in ("summary.json", "metrics.jsonl", "model.safetensors"):
        (folder / name).unlink()
        (folder / name).symlink_to(outside / "precious.txt")
    before = content(outside)
    seriatim.train(small_config(texts, folder, training={"steps": 2}), overwrite=True)
    assert content(outside) == before
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.filterwarnings("ignore:.*lines with it")
def test_nothing_is_written_through_a_link(run, tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in ("config.yaml", "summary.json", "model.safetensors", "metrics.jsonl", "README.md"):
        (folder / f"{name}.partial").symlink_to(outside / "precious.txt")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(outside / "new.txt")
    before = content(outside)
    seriatim.resume(folder, overrides={"training.steps": 4})
    write_whole(folder / "summary.json", "{}")
    assert content(outside) == before


def test_a_run_of_links_to_files_opens(run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for path in run.iterdir():
        (tmp_path / "run" / path.name).symlink_to(path)
    assert seriatim.load(tmp_path / "run").samples(1, max_tokens=5, seed=1)
    (tmp_path / "linked").symlink_to(run)
    assert seriatim.load(tmp_path / "linked").samples(1, max_tokens=5, seed=1)


def test_a_manifest_leads_nowhere_else(tmp_path: Path, outside: Path) -> None:
    saved.save(tmp_path / "checkpoints", 1)
    last = checkpoints(tmp_path / "checkpoints")[-1]
    sums = json.loads((last / MANIFEST).read_text())["sha256"]
    for name in ("../../outside/precious.txt", "..", ".", "", "/dev/zero", "x\0y", "a" * 5000):
        (last / MANIFEST).write_text(json.dumps({"sha256": {**sums, name: "0" * 64}}))
        assert str(damage(last)).startswith(str(last))
    for name in ("model.safetensors", "optimizer.safetensors", "progress.json"):
        (last / MANIFEST).write_text(json.dumps({"sha256": {key: sums[key] for key in sums if key != name}}))
        assert name in str(damage(last))
    for value in (None, [], {}, {"sha256": None}, {"sha256": [1]}, {"sha256": dict.fromkeys(sums, 3)}):
        (last / MANIFEST).write_text(json.dumps(value))
        assert damage(last)
