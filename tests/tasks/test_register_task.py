"""A task and a layer from outside the package train, resume, evaluate, predict, are inspected and compared."""

import json
import random
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.tasks import TASKS, register

from ..refusals import refused
from . import outside_task

pytestmark = pytest.mark.usefixtures("outside_registered")


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Texts of two letters, rated by the share of the first."""
    folder, generator, paths = tmp_path_factory.mktemp("rated"), random.Random(1), {}
    for name, count in {"train": 300, "valid": 60}.items():
        texts = ["".join(generator.choices("ab", k=generator.randint(2, 9))) for _ in range(count)]
        paths[name] = str(folder / f"{name}.txt")
        Path(paths[name]).write_text("".join(f"{text}\t{text.count('a') / len(text):.3f}\n" for text in texts))
    return paths


def config(rated: dict[str, str], out: Path, **training) -> dict:
    return {
        "task": "rate",
        "data": rated,
        "model": {"layer": "leaky", "embedding_size": 8, "hidden_size": 8},
        "training": {"steps": 40, "learning_rate": 0.05, "schedule": "constant", "precision": "float32", **training},
        "out": str(out),
    }


@pytest.fixture(scope="module")
def run(rated, tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    return seriatim.train(config(rated, tmp_path_factory.mktemp("outside") / "run"))


def test_it_learns_and_evaluates(run: seriatim.Run, rated) -> None:
    assert run.summary["valid"]["loss"] < run.summary["baseline"]["loss"]
    assert run.evaluate(rated["valid"])["loss"] == pytest.approx(run.summary["valid"]["loss"])
    assert seriatim.load(run.path).evaluate(rated["valid"])["loss"] == pytest.approx(run.summary["valid"]["loss"])


@pytest.mark.parametrize("name", [3, None, "", "a\nb", "1a"])
def test_a_task_needs_a_name(name: object) -> None:
    with refused("malformed", "register"):
        register(name, TASKS["lm"])


def test_it_answers(run: seriatim.Run) -> None:
    low, high = run.predict(["bbbb", "aaaa"])
    assert float(low) < 0.5 < float(high)


def test_it_resumes_with_the_same_bits(run: seriatim.Run, rated, tmp_path: Path) -> None:
    half = seriatim.train(config(rated, tmp_path / "run", steps=20))
    resumed = seriatim.resume(half.path, overrides={"training.steps": 40})
    assert (resumed.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()


def test_the_command_knows_it(run: seriatim.Run, rated, tmp_path: Path, capsys) -> None:
    fields = ["--layer", "leaky", "--hidden_size", "8", "--embedding_size", "8", "--steps", "3", "--quiet"]
    data = ["--data", rated["train"], "--valid", rated["valid"]]
    assert main(["train", "rate", *data, *fields, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run.path), "--data", rated["valid"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(run.summary["valid"]["loss"])
    assert main(["check", "rate", *data]) == 0


def test_it_is_inspected(run: seriatim.Run, tmp_path: Path) -> None:
    inspection = seriatim.inspect(run, "abba", out=tmp_path / "page.html")
    assert inspection.path.exists()


def test_another_task_of_the_same_name_is_refused() -> None:
    with refused("exists", "lm"):
        register("lm", outside_task.RATE)
    register("rate", outside_task.RATE)
    assert TASKS["rate"] is outside_task.RATE


def test_a_task_that_is_a_class_is_told_what_a_task_is_now() -> None:
    with refused("contract", "rating"):
        register("rating", outside_task.RatedReader)  # type: ignore[arg-type]


def test_an_unknown_task_names_the_nearest(rated, tmp_path: Path) -> None:
    with refused("unknown", "task"):
        seriatim.train({**config(rated, tmp_path / "run"), "task": "rates"})


@pytest.mark.exhaustive
def test_it_is_compared_in_processes_of_their_own(rated, tmp_path: Path) -> None:
    """The task is registered there because the module of the layer is imported, which registers both."""
    source = {"task": "rate", "data": rated, "training": {"baseline": "none", "learning_rate": 0.05, "batch_size": 8}}
    comparison = seriatim.compare(
        {**source, "model": {"embedding_size": 8, "hidden_size": 8}, "out": str(tmp_path / "comparison")},
        layers=["leaky@8"],
        steps=5,
    )
    assert [row["layer"] for row in comparison.rows] == ["leaky@8"]
    assert comparison.rows[0]["metrics"]["loss"] > 0
