"""Comparisons from the beginning to the end: training, resuming, failures, changed data and sweeps of widths."""

import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.comparison import worker, workers
from seriatim.comparison.comparing import ComparisonProgress, ComparisonReporter, PresentTraining, resume
from seriatim.comparison.comparison_page import report
from seriatim.comparison.results import EQUAL, ResultRow
from seriatim.comparison.worker import Pace, WorkerJob
from seriatim.config import resolve
from seriatim.core.errors import InputError, TrainingError
from seriatim.processes.child import Stopped
from seriatim.processes.executors import InlineExecutor, WorkersLostError
from seriatim.processes.signals import Interrupted
from seriatim.recurrence import uncompiled
from seriatim.storage.weights import load_tensors
from seriatim.tasks import find_kind
from seriatim.tasks.defaults import rate_of

from ..exhaustive import parameters
from ..refusals import refused
from .comparisons import LINES, SMALL, small


@pytest.mark.parametrize(
    ("wrong", "trainings"),
    [(1.0, [10]), pytest.param(1.05, [9], marks=pytest.mark.exhaustive), (2.0, [5, 10]), (0.5, [20, 10])],
)
def test_a_wrong_measurement_is_set_right(
    texts, tmp_path: Path, monkeypatch, in_process: None, wrong: float, trainings: list[int]
) -> None:
    kept, steps = Pace(wrong, 64, 0.0), []
    usual = worker.train

    def train(config, **settings) -> seriatim.Run:
        steps.append(config.training.steps)
        run = usual(config, **settings)
        run.summary["tokens_per_second"] = run.summary["tokens"] / run.summary["steps"]  # a second a step
        return run

    def keep(name: str, pace: Pace) -> None:
        nonlocal kept
        kept = pace

    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr(worker, "pace_of", lambda *_, **__: (kept, "pace"))
    monkeypatch.setattr(worker, "store_pace", keep)
    config = {**small(texts, tmp_path / "a"), "model": {**SMALL["model"], "options": {"smoothing": "witten-bell"}}}
    row, counted = seriatim.compare(config, layers=["rnn", "ngram"], minutes=1 / 6).results["rows"]
    assert steps[: len(trainings)] == trainings
    assert not ResultRow.read(counted).missed_budget
    assert kept.step_seconds == (wrong if max(wrong, 1 / wrong) <= EQUAL else 1.0)  # the steps of a next comparison
    assert row["runs"][0]["planned_seconds"] == pytest.approx(10)
    assert row["runs"][0]["training_seconds"] == pytest.approx(trainings[-1])
    assert ResultRow.read(row).missed_budget == (trainings[-1] != 10)
    assert seriatim.load(tmp_path / "a" / "runs" / "rnn-1").summary["steps"] == trainings[-1]


def test_what_is_measured_of_a_model(texts, tmp_path: Path, in_process: None) -> None:
    settings = {"model": {"embedding_size": 8, "hidden_size": 12, "options": {"num_heads": 2, "window": 20}}}
    found = seriatim.compare({**small(texts, tmp_path / "a"), **settings}, layers=["lstm", "transformer"], steps=1)
    for row in found.rows:
        assert list(row["state_bytes"]) == ["1", "10", "100"]
        assert all(value > 0 for value in row["step_milliseconds"].values())
        assert all(value > 0 for value in row["reading_milliseconds"].values())
        for what in ("step", "reading"):
            medians, spreads = row[f"{what}_milliseconds"], row[f"{what}_spread"]
            assert medians.keys() == spreads.keys()
            assert all(low <= medians[length] <= high for length, (low, high) in spreads.items())
        assert row["milliseconds_per_token"] > 0
        assert row["state_by_source"] is None
        assert all(value >= 1 for value in [*row["distance"]["values"].values(), row["distance"]["whole"]])
        assert row["disk_bytes"] == (tmp_path / "a" / row["runs"][0]["path"] / "model.safetensors").stat().st_size
        assert 0 < row["epochs"] < 1
        assert row["runs"][0]["load"]["seconds"] > 0
    lstm, transformer = found.results["rows"]
    assert set(lstm["state_bytes"].values()) == {2 * lstm["hidden_size"] * 4}
    sizes = transformer["state_bytes"]
    assert sizes["1"] < sizes["10"] < sizes["100"]


@pytest.mark.parametrize("task", parameters(("lm", "classify"), everyday=("classify",)))
def test_train_and_compare_train_the_same(task: str, texts, tmp_path: Path, in_process: None) -> None:
    data = texts["train"]
    if task in LINES:
        path = tmp_path / "data.tsv"
        path.write_text(LINES[task])
        data = str(path)
    config = {"task": task, "data": {"train": data, "valid": data}, "model": SMALL["model"]}
    config["training"] = {"evaluate_every": 4, "keep": "last", "baseline": "none"}
    compared = seriatim.compare({**config, "out": str(tmp_path / "compared")}, layers=["gru"], steps=4)
    path = tmp_path / "compared" / compared.results["rows"][0]["runs"][0]["path"]
    overrides = {"model.layer": "gru", "training.steps": 4, "out": str(tmp_path / "alone")}
    with uncompiled():
        alone = seriatim.train(config, overrides=overrides)
    assert alone.config.to_yaml() == resolve(path / "config.yaml").to_yaml()
    tensors = load_tensors(path / "model.safetensors")
    assert all(torch.equal(value, tensors[name]) for name, value in alone.model.named_parameters())


@pytest.mark.exhaustive
def test_a_comparison_goes_on_and_is_the_same_again(texts, tmp_path: Path, in_process: None) -> None:
    test = tmp_path / "test.txt"
    test.write_text(Path(texts["test"]).read_text())
    model = {**SMALL["model"], "options": {"smoothing": "witten-bell"}}
    first, again = (
        seriatim.compare(
            {**small(texts, tmp_path / out, test=str(test)), "model": model},
            layers=layers,
            steps=6,
            parameters=3000,
        )
        for out, layers in (("a", ["ngram", "rnn"]), ("b", ["rnn", "ngram"]))
    )
    results = first.results
    metrics = {row["layer"]: row["metrics"] for row in results["rows"]}
    assert metrics == {row["layer"]: row["metrics"] for row in again.results["rows"]}
    assert json.loads((tmp_path / "a" / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["metric"]["key"] == results["figures"][0]["key"] == "perplexity"
    assert results["data"]["measured_on"] == str(test)

    rnn = results["rows"][1]
    run = seriatim.load(tmp_path / "a" / rnn["runs"][0]["path"])
    assert run.evaluate(str(test))["perplexity"] == pytest.approx(rnn["metrics"]["perplexity"])
    assert rnn["parameters"] == sum(parameter.numel() for parameter in run.model.parameters())
    assert rnn["runs"][0]["steps"] == 6
    assert rnn["held_out"][-1]["step"] == 6
    assert rnn["difference"]["to"] == "ngram"
    assert [row["layer"] for row in first.rows] == ["ngram", "rnn"]

    more = resume(tmp_path / "a", layers=["ngram", "rnn", "rnn+gru"], seeds=2)
    assert [row["layer"] for row in more.results["rows"]] == ["ngram", "rnn", "rnn+gru"]
    kept = more.results["rows"][1]
    assert kept["runs"][0] == rnn["runs"][0]
    assert kept["spread"]["loss"] == sorted(one["metrics"]["loss"] for one in kept["runs"])
    assert kept["metrics"]["loss"] == pytest.approx(np.mean(kept["spread"]["loss"]))
    for wrong, what in (({"layers": ["rnn"]}, "--layers: ngram"), ({"seeds": 1}, "--seeds: the comparison has 2")):
        with pytest.raises(InputError, match=what):
            resume(tmp_path / "a", **wrong)

    test.write_text(Path(texts["valid"]).read_text())
    written = (tmp_path / "a" / "results.json").read_bytes()
    with refused("mismatch"):
        resume(tmp_path / "a", seeds=3)
    assert (tmp_path / "a" / "results.json").read_bytes() == written
    assert resume(tmp_path / "a", seeds=2).results["rows"] == more.results["rows"]  # nothing is left to train
    test.write_text(Path(texts["test"]).read_text())
    assert len(resume(tmp_path / "a", seeds=3).results["rows"][1]["runs"]) == 3

    plan = tmp_path / "a" / "comparison.yaml"
    plan.write_text(plan.read_text().replace(f"version: {seriatim.__version__}", "version: 0.0.1"))
    with refused("mismatch", "comparison.yaml"):
        resume(tmp_path / "a")


def test_half_a_budget_goes_to_trials(texts, tmp_path: Path, in_process: None) -> None:
    found = seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn"], steps=12, tune=3, metric="bits_per_byte")
    (row,) = found.rows
    tried = [one["learning_rate"] for one in row["tried"]]
    assert np.allclose(np.array(tried) / rate_of("rnn", "lm", find_kind("lm").learning_rate), [1 / 3, 1, 3])
    assert row["learning_rate"] == min(row["tried"], key=lambda one: one["value"])["learning_rate"]
    assert row["runs"][0]["steps"] == 6
    assert found.results["metric"]["key"] == "bits_per_byte"


def test_a_signal_ends_it_and_it_goes_on(texts, tmp_path: Path, monkeypatch, in_process: None) -> None:
    usual = workers.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            signal.raise_signal(signal.SIGINT)
            assert signalled() == signal.SIGINT
            raise Stopped
        return usual(job, listen, signalled)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "run_worker", run)
        with pytest.raises(Interrupted) as error:
            seriatim.compare(small(texts, tmp_path / "a b"), layers=["rnn", "gru"], steps=2)
    assert shlex.split(error.value.go_on) == ["seriatim", "compare", "--resume", str(tmp_path / "a b")]
    first, second = json.loads((tmp_path / "a b" / "results.json").read_text())["rows"]
    assert second["failed"] == "not trained yet"
    found = resume(tmp_path / "a b").results["rows"]
    assert found[0]["metrics"] == first["metrics"]
    assert found[1]["failed"] is None


def test_lost_workers_are_told_with_the_command_that_goes_on(texts, tmp_path: Path, monkeypatch, in_process) -> None:
    lost = WorkersLostError("the connection to the cluster at tcp://there:8786 was lost")
    begun: list[str] = []

    class Begun(ComparisonReporter):
        def run(self, progress: ComparisonProgress, training: PresentTraining) -> None:
            begun.append(training.layer)

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        monkeypatch.setattr(InlineExecutor, "lost", lost)
        raise lost

    monkeypatch.setattr(workers, "run_worker", run)
    with pytest.raises(TrainingError) as error:
        seriatim.compare(small(texts, tmp_path / "a b"), layers=["rnn", "gru"], steps=2, reporter=Begun())
    assert str(error.value) == (
        f"2 of 2 layers failed: rnn and gru: {lost}; to go on: seriatim compare --resume '{tmp_path / 'a b'}'"
    )
    assert begun == ["rnn"]


def test_a_layer_that_fails_is_a_row(texts, tmp_path: Path, gru_fails: Callable) -> None:
    found = seriatim.compare(small(texts, tmp_path / "a"), layers=["gru", "rnn"], steps=2)
    assert [row["layer"] for row in found.rows] == ["rnn", "gru"]
    assert found.rows[1]["failed"] == "its process was ended by SIGKILL"
    assert found.failures == [{"layer": "gru", "seed": 1, "reason": "its process was ended by SIGKILL"}]
    with pytest.raises(TrainingError, match="gru: its process"):
        seriatim.compare(small(texts, tmp_path / "b"), layers=["gru"], steps=2)


def test_a_changed_training_text_is_refused_before_anything_is_trained(texts, tmp_path: Path, in_process: None) -> None:
    train = tmp_path / "train.txt"
    original = Path(texts["train"]).read_text()
    train.write_text(original)
    config = {**small(texts, tmp_path / "a"), "data": {"train": str(train), "valid": texts["valid"]}}
    seriatim.compare(config, layers=["rnn"], steps=2)
    train.write_text(original.replace("moon", "noon"))  # the same characters, so that the tokenizer stays as it is
    for more in ({"seeds": 2}, {"layers": ["rnn", "gru"]}):
        with refused("mismatch", "data.train"):
            resume(tmp_path / "a", **more)
    assert [path.name for path in (tmp_path / "a" / "runs").iterdir()] == ["rnn-1"]
    train.write_text(original)
    assert [row["failed"] for row in resume(tmp_path / "a", layers=["rnn", "gru"]).results["rows"]] == [None, None]


def test_a_row_of_other_data_is_not_written(texts, tmp_path: Path, monkeypatch, in_process: None) -> None:
    """The training text changes after the check, while the training runs."""
    train = tmp_path / "train.txt"
    original = Path(texts["train"]).read_text()
    train.write_text(original)
    usual = workers.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        train.write_text(original.replace("moon", "noon") if job.layer == "gru" else original)
        return usual(job, listen, signalled)

    monkeypatch.setattr(workers, "run_worker", run)
    config = {**small(texts, tmp_path / "a"), "data": {"train": str(train), "valid": texts["valid"]}}
    found = seriatim.compare(config, layers=["rnn", "gru"], steps=2)
    assert "was trained on different data" in found.rows[1]["failed"]
    assert [path.name for path in (tmp_path / "a" / "rows").glob("*.json")] == ["rnn-1.json"]
    assert not (tmp_path / "a" / "runs" / "gru-1").exists()
    monkeypatch.setattr(workers, "run_worker", usual)
    train.write_text(original)
    assert resume(tmp_path / "a").results["rows"][1]["failed"] is None


@pytest.mark.parametrize("task", parameters(["classify", "seq2seq", "tag"], everyday=["tag"]))
def test_other_tasks(task: str, tmp_path: Path, in_process: None) -> None:
    path = tmp_path / ("data.conll" if task == "tag" else "data.tsv")
    header, lines = ("label\ttext\n" if task == "classify" else ""), LINES[task].removeprefix("label\ttext\n")
    path.write_text(header + 6 * lines)  # enough for two groups of inputs of similar lengths
    data = {"train": str(path), "valid": str(path), "alternatives": False}
    config = {**SMALL, "task": task, "data": data, "out": str(tmp_path / "out")}
    kind = {"classify": "char", "seq2seq": None, "tag": "word"}[task]
    found = seriatim.compare({**config, "tokenizer": {"kind": kind}}, layers=["rnn", "window"], steps=2)
    assert found.results["metric"]["key"] == {"classify": "accuracy", "seq2seq": "bleu", "tag": "accuracy"}[task]
    assert found.results["tokenizer"]["kind"] in ([kind] if kind else ["char", "word"])
    for row in found.rows:
        assert row["failed"] is None
        assert row["milliseconds_per_token"] > 0
        assert {"input", "truth", "text"} <= row["samples"][0].keys()
    assert found.rows[1]["difference"]["to"] == found.rows[0]["layer"]
    assert [each["by"] for each in found.results["differ"]["buckets"]] == ["length"]


@pytest.mark.exhaustive
def test_a_sweep_of_widths(texts, tmp_path: Path, in_process: None) -> None:
    """Each layer at each width is a row; the page shows the metric against the bytes of the state."""
    config = small(texts, tmp_path / "a") | {
        "model": {"embedding_size": 8, "options": {"order": 2, "smoothing": "witten-bell"}}
    }
    found = seriatim.compare(config, layers=["lstm", "ngram", "mingru"], widths=[4, 8], steps=1)
    assert sorted(row["layer"] for row in found.rows) == ["lstm@4", "lstm@8", "mingru@4", "mingru@8", "ngram"]
    rows = {row["layer"]: row for row in found.rows}
    for width in (4, 8):
        row = rows[f"lstm@{width}"]
        assert (row["architecture"], row["width"], row["hidden_size"]) == ("lstm", width, width)
        assert row["state_at_length"] == {"tokens": 1000, "bytes": 2 * 4 * width}
    assert rows["lstm@4"]["parameters"] < rows["lstm@8"]["parameters"]
    page = report(found.results)
    assert 'id="bottleneck"' in page
    finished = resume(tmp_path / "a", widths=[4, 8, 16])
    assert [row["layer"] for row in finished.results["rows"] if row["width"] == 16] == ["lstm@16", "mingru@16"]
    assert {row["layer"]: row["metrics"] for row in finished.rows if row["layer"] in rows} == {
        name: row["metrics"] for name, row in rows.items()
    }
    with refused("fixed", "--layers"):
        resume(tmp_path / "a", widths=[4])


def test_states_are_measured_at_the_longest_input(tmp_path: Path, in_process: None) -> None:
    """What grows with the text is measured where it is needed; classifiers of a sweep read in one direction."""
    path = tmp_path / "data.tsv"
    path.write_text("label\ttext\n" + "yes\ta b c d e\nno\tb a\n" * 6)
    config = {**SMALL, "task": "classify", "data": {"train": str(path), "valid": str(path)}, "out": str(tmp_path / "a")}
    found = seriatim.compare(config, layers=["gru", "self-attention"], widths=[8], steps=1)
    states = {row["architecture"]: row["state_at_length"] for row in found.rows}
    assert states["gru"] == {"tokens": 5, "bytes": 4 * 8}
    assert states["self-attention"]["tokens"] == 5
    assert 5 * 4 * 8 <= states["self-attention"]["bytes"] < 6 * 4 * 8
