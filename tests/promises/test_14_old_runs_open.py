"""Runs written by any version open, and say what they said then: a golden run of every kind is kept in `tests/golden`.

They are never written again. Where a test here fails, the change that made it fail must learn to read what was written
before it: a new field of ``model``, for one, is no part of a run's identity where it has its default.
"""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

import seriatim
from seriatim.config import Tokenizer, resolve
from seriatim.models.tagger import Options as Words
from seriatim.models.translator import Options as Translation
from seriatim.recurrence import uncompiled
from seriatim.tasks import TASKS
from seriatim.tasks.classify import Options as Labels

from ..golden.answers import GOLDEN, answers, differences, names
from ..golden.recipes import CHECKPOINTED, IMPORTED, recipe

CONFIGS = {name: resolve(GOLDEN / name / "config.yaml") for name in names()}


@pytest.fixture(autouse=True)
def where_the_data_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)


def expected(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", names())
def test_it_opens_and_says_the_same(name: str) -> None:
    """Figures as near as other processors and libraries let them be, see `TOLERANCE`; texts exactly."""
    files = {path: path.read_bytes() for path in (GOLDEN / name).rglob("*") if path.is_file()}
    with uncompiled():
        found = answers(seriatim.load(GOLDEN / name, device="cpu"))
    said = {key: value for key, value in expected(name).items() if key != "resumed"}
    assert differences(found, said) == []
    assert files == {path: path.read_bytes() for path in (GOLDEN / name).rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore:.*results will differ by rounding")  # it began on a machine of another kind
def test_an_old_training_goes_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / CHECKPOINTED, tmp_path / "run")
    before = CONFIGS[CHECKPOINTED].training.steps
    run = seriatim.resume(tmp_path / "run", overrides={"training.steps": before + 3})
    assert run.summary["steps"] == before + 3
    assert differences(answers(run), expected(CHECKPOINTED)["resumed"]) == []


def test_every_kind_of_run_is_kept() -> None:
    """A new one needs a line in `recipes.py`, unless it is a layer, and ``python -m tests.golden.make NAME``."""
    languages = {config.model.layer for config in CONFIGS.values() if config.task == "lm"}
    assert {*seriatim.layers.names(), "ngram"} <= languages
    assert {config.task for config in CONFIGS.values()} == set(TASKS)
    kinds = get_args(get_args(Tokenizer.model_fields["kind"].annotation)[0])
    assert {config.tokenizer.kind for config in CONFIGS.values()} == set(kinds)
    for task in ("lm", "mlm"):
        assert {config.data.unit for config in CONFIGS.values() if config.task == task} == {"line", "stream"}


@pytest.mark.parametrize(
    ("task", "options", "name"),
    [
        ("classify", Labels, "pooling"),
        ("tag", Words, "characters"),
        ("seq2seq", Translation, "factorisation"),
        ("seq2seq", Translation, "attention"),
        ("seq2seq", Translation, "form"),
    ],
)
def test_every_form_of_a_task_is_kept(task: str, options: Any, name: str) -> None:
    annotation = options.model_fields[name].annotation
    forms = {value for part in get_args(annotation) for value in get_args(part) or [part]} - {type(None)}
    kept = {config.model.options[name] for config in CONFIGS.values() if config.task == task}
    assert forms == kept


def test_what_wrote_them_is_listed() -> None:
    versions = json.loads((GOLDEN / "versions.json").read_text(encoding="utf-8"))
    assert set(versions) == set(names())
    for name, version in versions.items():
        if name in IMPORTED:  # it was not trained, and has no summary
            continue
        summary = json.loads((GOLDEN / name / "summary.json").read_text(encoding="utf-8"))
        assert summary["versions"]["seriatim"] == version
        assert recipe(name)["model"]["layer"] == CONFIGS[name].model.layer
    assert {path.name for path in GOLDEN.iterdir() if path.is_dir()} - {"data", "__pycache__"} == set(versions)
