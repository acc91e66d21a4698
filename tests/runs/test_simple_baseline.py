"""The simple baseline of a run: trained beside it, stored in its folder, and named beside its figures."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.comparison.planning import ComparisonSettings, make_plan
from seriatim.config import resolve
from seriatim.data import synthetic
from seriatim.evaluation.intervals import Metric, Paired
from seriatim.runs.ensembles import open_baseline
from seriatim.storage.weights import load_tensors
from seriatim.tasks import FITTED, TASKS, new_task
from seriatim.tasks.beside_baseline import main_metric, verdict
from seriatim.training.reporting import LineReporter

from ..tasks.test_classification import config, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baseline")
    write(path / "train.tsv", 120, 0)
    write(path / "valid.tsv", 60, 1)
    return path


class Lines(LineReporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, text: str, share: float) -> None:
        pass


@pytest.fixture(scope="module")
def lines() -> Lines:
    return Lines()


@pytest.fixture(scope="module")
def run(folder: Path, lines: Lines) -> seriatim.Run:
    tree = config(folder, "run")
    tree["training"] |= {
        "epochs": 1,
        "learning_rate": 1e-5,
        "baseline": "simple",
        "baseline_weight": 0,
    }  # it learns nothing
    return seriatim.train(tree, reporter=lines)


def test_its_figures_are_in_the_summary_the_card_and_the_message(run: seriatim.Run, lines: Lines) -> None:
    baseline = run.summary["baseline"]
    simple = baseline["simple"]
    assert baseline["name"] == "the most frequent label of the training data"
    assert simple["layer"] == "bag"
    assert simple["accuracy_low"] <= simple["accuracy"] <= simple["accuracy_high"]
    assert simple["difference"] == pytest.approx(run.summary["valid"]["accuracy"] - simple["accuracy"])
    assert simple["verdict"].startswith("The model is worse than its simple baseline, a bag of n-grams: accuracy")
    assert simple["verdict"] in (run.path / "README.md").read_text()
    (told,) = [line for line in lines.lines if line.startswith("held-out accuracy")]
    assert f"{simple['name']}: {simple['accuracy']:.2f}" in told
    assert seriatim.load(run.path).summary["baseline"] == baseline


def test_it_is_a_run_like_one_that_is_trained_alone(run: seriatim.Run, folder: Path) -> None:
    baseline = seriatim.load(run.path / "baseline")
    tree = config(folder, "alone")
    alone = seriatim.train({**tree, "model": {"layer": "bag"}, "training": {}})
    assert not (alone.path / "baseline").exists()
    names = ("words", "characters", "scales", "weights", "bias")
    first, second = (load_tensors(one.path / "model.safetensors") for one in (baseline, alone))
    assert all(np.array_equal(first[name].numpy(), second[name].numpy()) for name in names)
    assert baseline.summary["valid"]["accuracy"] == run.summary["baseline"]["simple"]["accuracy"]


def test_evaluate_names_it(run: seriatim.Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(folder / "train.tsv")
    assert main(["evaluate", str(run.path), "--data", data, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"]["layer"] == "bag"
    assert found["baseline"]["accuracy"] == seriatim.load(run.path / "baseline").evaluate(data)["accuracy"]
    assert {key: value for key, value in found.items() if key != "baseline"} == run.evaluate(data)
    assert main(["evaluate", str(run.path), "--data", data]) == 0
    printed = capsys.readouterr().out
    assert "a bag of n-grams" in printed.splitlines()[0]
    assert found["baseline"]["verdict"] in printed


def test_it_can_be_left_out_or_be_missing(run: seriatim.Run, folder: Path, tmp_path: Path) -> None:
    tree = config(folder, "without")
    tree["training"] |= {"epochs": 1, "baseline": "none"}
    without = seriatim.train(tree)
    assert not (without.path / "baseline").exists()
    assert set(without.summary["baseline"]) == {"name", "accuracy", "macro_f1"}
    shutil.copytree(run.path, tmp_path / "older")
    shutil.rmtree(tmp_path / "older" / "baseline")
    assert main(["evaluate", str(tmp_path / "older"), "--data", str(folder / "valid.tsv")]) == 0


@pytest.mark.parametrize("task", ["classify", "lm", "mlm", "seq2seq"])
@pytest.mark.parametrize("name", [*synthetic.SYNTHETIC_TASKS])
def test_it_is_not_trained_beside_a_network_on_a_synthetic_task(task: str, name: str) -> None:
    """These tasks study what a network remembers, and n-grams solve some of them."""

    def chosen(spec: str, **training: object) -> str | None:
        return new_task(resolve({"task": task, "data": {"train": spec}, "training": training})).config.training.baseline

    spec = f"builtin:{name}"
    assert chosen(spec) == chosen(f"{spec}:train-10") == chosen(spec, baseline_weight=0) == "none"
    assert chosen(spec, baseline="simple") == chosen(spec, baseline_weight=0.5) == "simple"
    assert chosen("builtin:python-docs") == chosen("file.tsv") == "simple"


@pytest.mark.parametrize("layer", ["gru", "transformer"])
@pytest.mark.parametrize("name", [name for name, task in synthetic.SYNTHETIC_TASKS.items() if task.header])
def test_a_classifier_reads_a_synthetic_task_in_one_direction(name: str, layer: str) -> None:
    """Backwards, the symbol that it asks for is among the last inputs, which need no memory."""

    def sees_all(spec: str, **model: object) -> bool:
        model = new_task(
            resolve({"task": "classify", "data": {"train": spec}, "model": {"layer": layer, **model}})
        ).config.model
        return bool(model.bidirectional) or not model.options.get("causal", True)

    spec = f"builtin:{name}"
    assert not sees_all(spec)
    assert not sees_all(f"{spec}:train-10")
    assert sees_all("file.tsv")
    assert sees_all(spec, bidirectional=True)


def test_a_comparison_has_no_row_of_it_on_a_synthetic_task() -> None:
    def rows(train: str, **training: object) -> list[str]:
        tree = {"task": "classify", "data": {"train": train}, "training": training}
        return make_plan(tree, ComparisonSettings(layers=["rnn"])).layers

    assert rows("builtin:copy") == ["rnn"]
    assert rows("builtin:copy", baseline="simple") == rows("file.tsv") == ["rnn", "bag"]


def test_a_damaged_one_is_left_out(
    run: seriatim.Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    (copy / "baseline" / "model.safetensors").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="the simple baseline is left out"):
        assert main(["evaluate", str(copy), "--data", str(folder / "valid.tsv"), "--json"]) == 0
    assert "baseline" not in json.loads(capsys.readouterr().out)


def test_a_translator_of_text_is_compared_by_a_figure_that_both_models_have(tmp_path: Path) -> None:
    """Rules have no perplexity; if no answer of either model is exactly right, BLEU tells them apart."""
    lines = [f"the {noun} {verb} here now\tdie {noun}e {verb}t jetzt hier" for noun in "abcde" for verb in "vwxyz"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    data = {"train": str(tmp_path / "pairs.tsv"), "valid": str(tmp_path / "pairs.tsv")}
    for layer in ("rnn", "transformer"):
        model = {"layer": layer, "embedding_size": 8, "hidden_size": 8}
        run = seriatim.train(
            {"task": "seq2seq", "data": data, "model": model, "training": {"steps": 2}, "out": str(tmp_path / layer)}
        )
        simple = run.summary["baseline"]["simple"]
        assert main_metric(run.task, run.vocabulary).key in ("bleu", "exact_match")
        assert "BLEU" in simple["verdict"] or "exact match" in simple["verdict"]
        assert simple["difference_low"] is not None


def test_every_baseline_is_a_standalone_model_of_its_task() -> None:
    for name, kind in TASKS.items():
        if kind.reference_model is not None:
            assert FITTED[kind.reference_model].name == name
    assert all(kind.reference_model is None for kind in FITTED.values())


@pytest.mark.parametrize(
    ("low", "high", "p_value", "more_is_better", "expected"),
    [
        (0.1, 0.3, 0.01, True, "is better than"),
        (0.1, 0.3, 0.01, False, "is worse than"),
        (-0.3, -0.1, 0.01, True, "is worse than"),
        (-0.3, -0.1, 0.01, False, "is better than"),
        (-0.1, 0.3, 0.2, True, "cannot be told apart"),
        (0.1, 0.3, 0.25, True, "cannot be told apart"),  # only three items differ
        (None, None, None, True, "cannot be told apart"),
    ],
)
def test_the_verdict(
    low: float | None, high: float | None, p_value: float | None, more_is_better: bool, expected: str
) -> None:
    figure = Metric("key", "figure", 2, headline=True, more_is_better=more_is_better)
    result = Paired(0.0 if low is None or high is None else (low + high) / 2, low, high, p_value)
    sentence = verdict(figure, {"key": 0.5}, {"key": 0.25}, result, "a bag")
    assert expected in sentence
    assert sentence.endswith("figure 0.50 against 0.25.")


def test_that_of_another_run_is_left_out(run: seriatim.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    opened = seriatim.load(copy)
    assert open_baseline(opened) is not None
    (copy / "model.safetensors").rename(tmp_path / "old")
    shutil.copy(tmp_path / "old", copy / "model.safetensors")  # as by another training into this folder
    with pytest.warns(UserWarning, match="the run was replaced after it was opened"):
        assert open_baseline(opened) is None
