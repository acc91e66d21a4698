"""What replaces a run or a comparison removes what Seriatim wrote and nothing else, and can be killed at any moment."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from seriatim.core.errors import InputError
from seriatim.data.vocabulary import TOKENIZERS
from seriatim.layers.outside_code import CODE
from seriatim.runs.run import BASELINE
from seriatim.storage import written_folders
from seriatim.storage.files import LOCK, locked
from seriatim.storage.written_folders import (
    COMPARISON,
    DECIDED,
    LIST,
    RUN,
    STAGE,
    Form,
    begin,
    clear,
    finish_replacing,
    latest_folder,
    record,
    refuse_strangers,
    settle,
    steadily,
    strangers,
)
from seriatim.training.parallel import JOB
from seriatim.training.run_files import check_out

from ..golden.answers import GOLDEN
from ..promises.death import Clock, Death
from ..refusals import refused

CONFIG, CARD = "task: classify\n", "A sequence model trained with Seriatim.\n"
OLD = {
    "config.yaml": CONFIG,
    "tokenizer.json": '{"seriatim": 1}',
    "labels.json": "[]",
    "model.safetensors": '{"__metadata__":{"format":"seriatim 1"}}',
    "README.md": CARD,
    "checkpoints/step-000000001/progress.json": "{}",
    "checkpoints/step-000000002.damaged/model.safetensors": "",
    "baseline/config.yaml": CONFIG,
    "baseline/tokenizer.json": "",
    "model.safetensors.1234abcd.partial": "half",
}
NEW = {
    "config.yaml": f"{CONFIG}# new\n",
    "tokenizer.json": '{"seriatim": 1, "kind": "new"}',
    "model.safetensors": "seriatim new",
    "metrics.jsonl": '{"kind": "train"}\n',
    "checkpoints/step-000000009/progress.json": "{}",
}
MINE = {"notes.txt": "mine", "figures/loss.csv": "mine", "readme.txt": "mine"}
COMPARED = {
    "comparison.yaml": "format: seriatim comparison 1\n",
    "results.json": '{"format": "seriatim comparison 1"}',
    "rows/gru-1.json": '{"parameters": 1}',
    **{f"runs/gru-1/{name}": text for name, text in OLD.items()},
    "runs/gru-1/inspect.html": '<meta name="generator" content="seriatim">',
}


def write(folder: Path, files: dict[str, str], form: Form | None = None) -> Path:
    """Write files; with a form also the list of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if form is not None:
        record(folder, form, *{name.split("/")[0] for name in files})
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def content(folder: Path, *without: str) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (LOCK, LIST))
    names = {path.relative_to(folder).as_posix(): path.read_text() for path in files}
    return {name: text for name, text in names.items() if name.split("/")[0] not in without}


def test_the_forms_know_every_name_that_is_written() -> None:
    vocabulary = {f"{name}.json" for name in (*TOKENIZERS, "labels")}
    assert {*vocabulary, CODE, JOB} <= RUN.files.keys()
    assert {BASELINE, "checkpoints", "tensorboard"} <= RUN.folders.keys()


def test_every_golden_run_has_the_form_of_a_run(tmp_path: Path) -> None:
    for golden in (Path(__file__).parents[1] / "golden").iterdir():
        if (golden / "config.yaml").exists():
            assert [path.name for path in strangers(golden, RUN)] in ([], ["expected.json"])


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("form", [RUN, COMPARISON], ids=lambda form: form.kind)
def test_replacing_can_be_killed_at_every_touch_of_the_disk(
    form: Form, listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the stage is renamed, the old run is untouched; afterwards the next process ends with the new one."""
    old, mine = (COMPARED if form is COMPARISON else OLD), (MINE if listed else {})
    new = (
        NEW
        if form is RUN
        else {"comparison.yaml": "format: seriatim comparison 1\n# new", "rows/a.json": '{"parameters": 2}'}
    )

    def prepared(name: str) -> Path:
        folder = write(write(tmp_path / name, old, form if listed else None), mine)
        refuse_strangers(folder, form)
        stage = begin(folder, form, lambda folder: True)
        return write(stage, new, form)

    with monkeypatch.context() as patched:
        stage = prepared("whole")
        clock = Clock(patched, 10**9)
        assert settle(stage) == tmp_path / "whole"
    assert content(tmp_path / "whole") == {**new, **mine}
    assert json.loads((tmp_path / "whole" / LIST).read_text())["kind"] == form.kind
    assert clock.touches > 8
    for k in range(1, clock.touches + 1):
        stage = prepared(str(k))
        with monkeypatch.context() as patched:
            Clock(patched, k)
            with pytest.raises(Death):
                settle(stage)
        folder = stage.parent
        decided = (folder / DECIDED).exists() or not (folder / STAGE).exists()
        for m in range(1, 6 if decided else 1):  # killed again while it recovers
            with monkeypatch.context() as patched:
                Clock(patched, m)
                with suppress(Death):
                    finish_replacing(folder)
        finish_replacing(folder)
        assert content(folder, STAGE) == ({**new, **mine} if decided else {**old, **mine})
        assert latest_folder(folder, form) == (folder if decided else stage)


def test_what_is_put_there_meanwhile_is_kept(tmp_path: Path) -> None:
    stage = write(begin(write(tmp_path / "run", OLD, RUN), RUN, lambda folder: True), NEW, RUN)
    write(tmp_path / "run", {"metrics.jsonl": "mine", "checkpoints/notes.txt": "mine", "README.md": "my own"})
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: was not written by Seriatim, and is now metrics\.jsonl\.k"):
        settle(stage)
    kept = {"metrics.jsonl.kept": "mine", "checkpoints/notes.txt": "mine", "README.md": "my own"}
    assert content(tmp_path / "run") == {**NEW, **kept}


def test_what_would_be_written_over_a_file_of_the_user_gives_way(tmp_path: Path) -> None:
    write(write(tmp_path, {"config.yaml": CONFIG}, RUN), {"README.md": "mine", "README.md.kept": "older"})
    with pytest.warns(UserWarning, match=r"is now README\.md\.kept\.1"):
        record(tmp_path, RUN, "README.md")
    assert (tmp_path / "README.md.kept.1").read_text() == "mine"


FOREIGN = {
    "a file": {"README.md": "mine"},
    "folders": {"checkpoints/best.pt": "mine", "baseline/model.bin": "mine"},
    "a list of labels": {"labels.json": '["a"]'},
    "labels of a language model": {
        "config.yaml": "task: lm\n",
        "tokenizer.json": OLD["tokenizer.json"],
        "labels.json": "[]",
    },
    "targets of a tagger": {"config.yaml": "x: 1\ntask: 'tag'\n", "target.json": OLD["tokenizer.json"]},
    "characters of a translator": {"config.yaml": "task: seq2seq\n", "characters.json": OLD["tokenizer.json"]},
    "labels in a baseline": {**OLD, "baseline/config.yaml": "task: mlm\n", "baseline/labels.json": '["mine"]'},
    "other names": {"thesis.txt": "mine"},
    "another configuration": {"config.yaml": "lr: 1\n", "tokenizer.json": "{}"},
    "a lock": {LOCK: "", "README.md": "mine"},
    "within a run": {**OLD, "checkpoints/notes.txt": "mine"},
    "within a checkpoint": {**OLD, "checkpoints/step-000000001/notes.txt": "mine"},
    "weights within a checkpoint": {**OLD, "checkpoints/step-000000001/mine.safetensors": "mine"},
    "a checkpoint that was kept": {**OLD, "checkpoints/step-best/model.safetensors": "mine"},
    "beside a run": {**OLD, "notes.txt": "mine"},
    "a card of one's own": {**OLD, "README.md": "mine"},
    "a comparison": COMPARED,
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("form", [RUN, COMPARISON], ids=lambda form: form.kind)
def test_a_folder_without_a_list_is_replaced_only_if_all_of_it_is_ours(
    form: Form, files: dict[str, str], tmp_path: Path
) -> None:
    folder = write(tmp_path / "out", files)
    if form is COMPARISON and files is COMPARED:
        check_out(str(folder), overwrite=True, form=form)
        clear(folder, form)
        assert content(folder) == {}
        return
    with refused("exists", "out"):
        check_out(str(folder), overwrite=True, form=form)
    assert content(folder) == {name: text for name, text in files.items() if name != LOCK}


def test_of_a_folder_with_a_list_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    write(write(tmp_path, OLD, RUN), MINE)
    check_out(str(tmp_path), overwrite=True)
    for name in ("metrics.jsonl", "checkpoints/mine.txt", "tensorboard/x", "baseline/notes.txt"):
        write(tmp_path, {name: "mine"})
        with refused("exists", value=name.split("/")[0]):
            check_out(str(tmp_path), overwrite=True)
        shutil.rmtree(tmp_path / name.split("/")[0]) if name.startswith("tens") else (tmp_path / name).unlink()
    with refused("exists", "test_of_a_folder_with_a_list_w0"):
        check_out(str(tmp_path), overwrite=True, form=COMPARISON)


def test_a_list_leads_nowhere_else(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"config.yaml": CONFIG, "precious.txt": "mine"})
    folder = write(tmp_path / "run", OLD, RUN)
    fields = json.loads((folder / LIST).read_text())
    fields["files"] += ["../outside", "../outside/precious.txt", str(outside), "figures", "/"]
    (folder / LIST).write_text(json.dumps(fields))
    write(folder, MINE)
    for name in (STAGE, DECIDED):
        (folder / name).symlink_to(outside)
    finish_replacing(folder)
    assert latest_folder(folder, RUN) == folder
    settle(write(begin(folder, RUN, lambda folder: True), NEW, RUN))
    assert content(folder) == {**NEW, **MINE}
    assert content(outside) == {"config.yaml": CONFIG, "precious.txt": "mine"}


@pytest.mark.parametrize("content", ["", "[", "null", "[1]", '{"files": 1}', '{"format": 1}', "{" * 100_000])
def test_a_damaged_list_is_none(content: str, tmp_path: Path) -> None:
    write(tmp_path, OLD, RUN)
    (tmp_path / LIST).write_text(content)
    check_out(str(tmp_path), overwrite=True)
    write(tmp_path, MINE)
    with refused("exists"):
        check_out(str(tmp_path), overwrite=True)


def replacer(folder: Path) -> Callable[[], None]:
    """A function that replaces the run in a folder."""

    def replace() -> None:
        with locked(folder):
            settle(write(begin(folder, RUN, lambda folder: True), NEW, RUN))

    return replace


@pytest.mark.parametrize("fails", [True, False])
def test_a_reader_never_sees_two_runs(fails: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", OLD, RUN)
    replacements = [replacer(folder), lambda: None]

    def read() -> tuple[str, str]:
        first = (folder / "config.yaml").read_text()
        replacements.pop(0)()
        second = (folder / "model.safetensors").read_text()
        if fails and first != NEW["config.yaml"]:
            raise InputError("its files do not belong together")
        return first, second

    assert steadily(folder, read) == (NEW["config.yaml"], NEW["model.safetensors"])


def test_an_error_of_a_reader_is_not_hidden(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", OLD, RUN)

    def read() -> None:
        raise InputError("damaged")

    with pytest.raises(InputError, match="damaged"):
        steadily(folder, read)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_who_may_not_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_folders, "MAX_SECONDS", 0.0)
    folder = write(tmp_path / "run", OLD, RUN)
    write(folder / DECIDED, NEW, RUN)
    folder.chmod(0o500)
    with pytest.raises(InputError, match="cannot finish"):
        finish_replacing(folder)


@pytest.mark.parametrize("kind", sorted(path.name for path in GOLDEN.iterdir() if (path / "config.yaml").exists()))
def test_all_that_a_run_without_a_list_has_is_ours(kind: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / kind, tmp_path / "run", ignore=shutil.ignore_patterns("expected.json", LIST))
    assert list(strangers(tmp_path / "run", RUN)) == []
    config = (tmp_path / "run" / "config.yaml").read_text()
    task = kind.split("-")[0]
    for name in ("labels.json", "target.json"):
        (tmp_path / "run" / name).touch()
    mine = {"classify": {"target.json"}, "tag": {"target.json"}, "seq2seq": {"labels.json"}}
    found = {path.name for path in strangers(tmp_path / "run", RUN)}
    assert found == mine.get(task, {"labels.json", "target.json"})
    (tmp_path / "run" / "config.yaml").write_text(config.replace(f"task: {task}", "task: another"))
    assert list(strangers(tmp_path / "run", RUN)) == []
