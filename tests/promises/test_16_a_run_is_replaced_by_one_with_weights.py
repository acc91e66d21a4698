"""A run is replaced once the new one has weights, and not by a command that reads it; readers see one of the two."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError, TrainingError
from seriatim.processes.signals import Interrupted
from seriatim.storage.files import LOCK, locked
from seriatim.storage.written_folders import LIST, RUN, STAGE, begin, clear, latest_folder, settle
from seriatim.training.reporting import Reporter

from ..conftest import small_config
from ..refusals import refused
from .death import Clock, Death, FullDisk
from .kills import outcome

TRAINING = {"precision": "float32", "steps": 6, "checkpoint_every": 2, "evaluate_every": 4, "baseline": "none"}
STAYS = "ignore:.*goes on with the training that is to replace"


@pytest.fixture(scope="module")
def config(texts: dict[str, str]) -> dict:
    return small_config(texts, "", training=TRAINING)


@pytest.fixture(scope="module", autouse=True)
def _content_is_remembered_at_once() -> Iterator[None]:
    """Remember the content of young files, too, so that later trainings touch the disk equally often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seriatim.data.source_content.RACY_SECONDS", 0)
        yield


@pytest.fixture(scope="module")
def whole(config: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the new training leaves where nothing was before."""
    return seriatim.train({**config, "out": str(tmp_path_factory.mktemp("whole") / "run")}).path


@pytest.fixture(scope="module")
def old_run(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    layer, out = {"layer": "window"}, tmp_path_factory.mktemp("old") / "run"
    path = seriatim.train(small_config(texts, out, model=layer, training={**TRAINING, "steps": 2})).path
    (path / "notes.txt").write_text("mine")
    return path


@pytest.fixture
def out(old_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(old_run, tmp_path / "run")
    return tmp_path / "run"


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but for its lock and what is to replace it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    inside = {path.relative_to(folder): path.read_bytes() for path in files}
    return {str(path): text for path, text in inside.items() if path.parts[0] != STAGE}


@pytest.mark.filterwarnings(STAYS)
def test_killed_at_any_moment_it_leaves_the_old_run_or_the_new_one(
    config: dict, out: Path, old_run: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        clock = Clock(patched, 10**9)
        seriatim.train({**config, "out": str(out)}, overwrite=True)
    assert outcome(out) == outcome(whole)
    assert (out / "notes.txt").read_text() == "mine"
    layers = []
    for k in range(3, clock.touches, 29):
        folder = tmp_path / str(k)
        shutil.copytree(old_run, folder)
        with monkeypatch.context() as patched:
            Clock(patched, k)
            with pytest.raises(Death):
                seriatim.train({**config, "out": str(folder)}, overwrite=True)
        layers.append(seriatim.load(folder).config.model.layer)  # also where it was killed while it replaced files
        if layers[-1] == "window":
            assert content(folder) == content(old_run)
        if latest_folder(folder, RUN) != folder or layers[-1] == "gru":
            seriatim.resume(folder)
            assert outcome(folder) == outcome(whole)
            assert (folder / "notes.txt").read_text() == "mine"
    assert layers == sorted(layers, reverse=True)
    assert len({*layers}) == 2


class Stop(Reporter):
    """Stops the training at its third step."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def step(self, record) -> None:
        if record["step"] == 3:
            raise self.error


@pytest.mark.filterwarnings(STAYS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), TrainingError("NaN")], ids=repr)
def test_what_fails_before_it_has_weights_leaves_the_old_run(
    error: BaseException, config: dict, out: Path, old_run: Path, whole: Path
) -> None:
    with pytest.raises(type(error)):
        seriatim.train({**config, "out": str(out)}, overwrite=True, reporter=Stop(error))
    assert content(out) == content(old_run)
    assert list(seriatim.load(out).generate(max_tokens=3, seed=1))
    assert main(["train", "--resume", str(out / STAGE), "--quiet"]) == 0
    assert outcome(out) == outcome(whole)


def test_a_signal_says_how_to_go_on(config: dict, out: Path, old_run: Path, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.training.loop.Trainer.agree", lambda self: setattr(self, "signal_number", 15))
    with pytest.raises(Interrupted) as stopped:
        seriatim.train({**config, "out": str(out)}, overwrite=True)
    assert stopped.value.go_on.endswith(f"--resume {out}")
    assert content(out) == content(old_run)


@pytest.mark.parametrize("model", [{}, {"layer": "ngram"}], ids=["trained", "counted"])
def test_a_full_disk_leaves_the_old_run(
    model: dict, config: dict, out: Path, old_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in (1, 5, 15):
        with monkeypatch.context() as patched:
            FullDisk(patched, k)
            with pytest.raises((TrainingError, InputError), match="No space left"):
                seriatim.train({**config, "model": {**config["model"], **model}, "out": str(out)}, overwrite=True)
        assert content(out) == content(old_run)


def test_bad_data_leave_the_old_run(config: dict, out: Path, old_run: Path) -> None:
    with refused("missing", "gone.txt"):
        seriatim.train({**config, "data": {"train": "gone.txt"}, "out": str(out)}, overwrite=True)
    assert content(out) == content(old_run)
    assert not (out / STAGE).exists()


def test_an_import_is_whole_before_it_replaces_a_run(out: Path, old_run: Path, tmp_path: Path, monkeypatch) -> None:
    arpa = tmp_path / "model.arpa"
    arpa.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-99\t<s>\n-1\t<unk>\n-0.5\ta\n-0.5\t</s>\n\n\\end\\\n")
    for k in (1, 4, 7, 10):
        with monkeypatch.context() as patched:
            FullDisk(patched, k)
            assert main(["import", str(arpa), "--out", str(out), "--overwrite"]) == 1
        assert content(out) == content(old_run)
    assert main(["import", str(arpa), "--out", str(out), "--overwrite"]) == 0
    assert seriatim.load(out).config.model.layer == "ngram"
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == []


def test_who_reads_while_runs_replace_each_other_reads_one_of_them(out: Path, whole: Path, old_run: Path) -> None:
    expected = {run.config.model.layer: run for run in map(seriatim.load, (whole, old_run))}
    stopped, seen = threading.Event(), []

    def replace() -> None:
        for number in range(40):
            source = (whole, old_run)[number % 2]
            with locked(out):
                stage = begin(out, RUN, lambda folder: True)
                clear(stage, RUN)
                shutil.copytree(source, stage, ignore=shutil.ignore_patterns(LOCK, "*.txt"), dirs_exist_ok=True)
                settle(stage)
        stopped.set()

    thread = threading.Thread(target=replace)
    thread.start()
    while not stopped.is_set():
        run = seriatim.load(out)
        like = expected[run.config.model.layer]
        assert run.summary == like.summary
        parameters = dict(run.model.named_parameters())
        assert all(value.equal(parameters[name]) for name, value in like.model.named_parameters())
        seen.append(run.config.model.layer)
    thread.join()
    assert {*seen} <= expected.keys()
    assert (out / "notes.txt").read_text() == "mine"


TRAIN = "train lm --steps 1 --quiet --overwrite --data"
CLASHES = {
    "the initial run": f"{TRAIN} {{train}} --init {{run}} --out {{run}}",
    "a link as initial run": f"{TRAIN} {{train}} --init {{folder}}/link --out {{run}}",
    "a link as output": f"{TRAIN} {{train}} --init {{run}} --out {{folder}}/link",
    "another path": f"{TRAIN} {{train}} --init {{run}} --out {{run}}/../run",
    "through a folder that is not there": f"{TRAIN} {{train}} --init {{run}} --out {{folder}}/none/../{{run.name}}",
    "within the initial run": f"{TRAIN} {{train}} --init {{run}} --out {{run}}/baseline",
    "the initial run within": f"{TRAIN} {{train}} --init {{run}}/baseline --out {{run}}",
    "the configuration": f"{TRAIN} {{train}} --config {{run}}/config.yaml --out {{run}}",
    "the data": f"{TRAIN} {{run}}/README.md --out {{run}}",
    "the held-out data": f"{TRAIN} {{train}} --valid {{run}}/*.md --out {{run}}",
    "the folder of the data": f"{TRAIN} {{folder}}/texts --out {{folder}}/texts",
    "a comparison": "compare lm --layers rnn --overwrite --data {folder}/texts --out {folder}/texts",
    "the imported model": "import {folder}/link --overwrite --out {run}",
    "a page over a text": "inspect {run} --text-file {folder}/text.txt --out {folder}/hard",
    "a table over a text": "surprisal {run} {folder}/text.txt --out {folder}/hard",
    "a table over a run": "surprisal {run} {folder}/text.txt --out {run}/config.yaml",
    "an export into a run": "export {run} --format onnx --out {run}/checkpoints/onnx",
    "what is checked": "check lm --data {folder}/texts --out {folder}/texts",
}
"""Commands that would write over what they read; ``link`` leads to the run, and ``hard`` is a hard link to the text."""


@pytest.mark.parametrize("name", CLASHES)
def test_a_command_that_would_write_over_what_it_reads_is_refused(
    name: str, texts: dict[str, str], out: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "text.txt").touch()
    (tmp_path / "texts").mkdir()
    shutil.copy(texts["train"], tmp_path / "texts")
    shutil.copytree(out, out / "baseline", ignore=shutil.ignore_patterns("baseline", "notes.txt"))
    (tmp_path / "hard").hardlink_to(tmp_path / "text.txt")
    (tmp_path / "link").symlink_to(out)
    before = content(tmp_path)
    assert main(CLASHES[name].format(run=out, folder=tmp_path, train=texts["train"]).split()) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "--out: " in errors[-1]
    assert len(errors) == 1 or name == "what is checked"
    assert content(tmp_path) == before


def test_runs_that_are_written_into_the_folder_of_their_data_are_not_trained_on(
    texts: dict[str, str], config: dict, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(texts["train"], data)
    settings = {**config, "data": {"train": str(data), "valid": texts["valid"]}}
    first = seriatim.train({**settings, "out": str(data / "first")})
    with pytest.warns(UserWarning, match="1 run, comparison or cache were left out: .*first"):
        second = seriatim.train({**settings, "out": str(data / "second")})
    with pytest.warns(UserWarning, match="2 runs, comparisons or caches were left out: .*first and 1 more"):
        assert seriatim.resume(first.path, overrides={"training.steps": 7}).summary["steps"] == 7
    assert outcome(second.path)["model.safetensors"] == outcome(data / "second")["model.safetensors"]
    assert first.summary["tokens"] == second.summary["tokens"]
    assert first.tokenizer.fingerprint() == second.tokenizer.fingerprint()


def test_a_run_lists_what_it_wrote(whole: Path) -> None:
    listed = {*json.loads((whole / LIST).read_text())["files"]}
    assert listed == {path.name for path in whole.iterdir()} - {LOCK, LIST}
