"""What is said of a run that answers together with its simple baseline, and of a baseline that was cut off."""

import json
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.training import finish

from .test_blend import config, tagged
from .test_simple_baseline import Lines


@pytest.fixture(scope="module")
def lines() -> Lines:
    return Lines()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, lines: Lines) -> seriatim.Run:
    """A tagger that has learned nothing, with a baseline that knows every word."""
    folder = tmp_path_factory.mktemp("both")
    settings = config("tag", tagged(folder), folder / "run", baseline_weight=0.8, learning_rate=1e-6)
    return seriatim.train(settings, reporter=lines)


def test_the_network_alone_is_compared_with_the_baseline_too(run: seriatim.Run, lines: Lines, capsys) -> None:
    network = run.summary["network"]
    assert network["accuracy"] < run.summary["valid"]["accuracy"]
    assert network["verdict"].startswith("The network alone is worse than its simple baseline")
    card = (run.path / "README.md").read_text()
    assert network["verdict"] in card
    assert "| answers | of the network and its simple baseline, which has the weight 0.8; accuracy of the net" in card
    assert [line for line in lines.lines if "weight 0.8" in line]
    assert "selected on the same held-out data" in card
    (figures,) = (line for line in lines.lines if line.startswith("held-out accuracy"))
    alone = network["text"]
    assert f"network alone: {alone}" in figures
    assert f"network alone: {alone}" in repr(run)
    (row,) = (line for line in card.splitlines() if line.startswith("| accuracy |"))
    assert f" | {alone} | " in row
    data = str(run.config.data.valid)
    assert main(["evaluate", str(run.path), "--data", data, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run.evaluate(data) == seriatim.load(run.path).evaluate(data) == found
    baseline = seriatim.load(run.path / "baseline").evaluate(data)
    assert found["baseline"]["accuracy"] == baseline["accuracy"] > found["network"]["accuracy"]
    assert (found["baseline_weight"], found["network"]["verdict"]) == (0.8, network["verdict"])
    assert found["network"]["accuracy"] == pytest.approx(network["accuracy"])
    assert main(["evaluate", str(run.path), "--data", data]) == 0
    table = capsys.readouterr().out
    assert "network alone" in table
    assert network["verdict"] in " ".join(table.split())


def test_a_baseline_that_did_not_converge_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "MINUTES", 1e-9)
    with pytest.warns(UserWarning, match="the simple baseline had not converged after 1e-09 minutes"):
        seriatim.train(config("tag", tagged(tmp_path), tmp_path / "run", baseline_weight=0))


def test_fields_that_mean_nothing_for_a_model_without_steps_are_named(tmp_path: Path) -> None:
    settings = config("tag", tagged(tmp_path), tmp_path / "run")
    with pytest.warns(UserWarning, match=r"training\.epochs: no effect on features, which takes no steps"):
        seriatim.train(settings, overrides={"model.layer": "features", "training.epochs": 3})


def test_the_weight_of_a_tagger_is_that_with_the_highest_metric(run: seriatim.Run, monkeypatch) -> None:
    """The loss is lowest elsewhere."""
    values = {0.0: (0.5, 0.9), 0.2: (0.4, 0.93), 0.35: (0.3, 0.95), 0.5: (0.2, 0.95), 0.65: (0.15, 0.94)}
    values[0.8] = (0.1, 0.92)
    task = run.task
    monkeypatch.setattr(task.blender, "blend", lambda model, baseline, weight: weight)
    monkeypatch.setattr(
        task.evaluator, "evaluate", lambda model, data: dict(zip(("loss", "accuracy"), values[model], strict=True))
    )
    data = task.reader.read(str(run.config.data.valid), "valid", run.vocabulary)
    assert task.blender.best_weight(0.0, run.model, data) == 0.5
