"""Taggers with attributes of words as runs: trained, measured, opened, asked; and what is refused."""

import shutil
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.storage.weights import load_tensors, read_metadata, save_tensors

from ..refusals import refused
from .tagged import config


@pytest.fixture(scope="session")
def run(folder: Path) -> seriatim.Run:
    return seriatim.train(linear(folder, "features"))


def linear(folder: Path, out: str) -> dict:
    tree = config(folder, out)
    return {key: tree[key] for key in ("task", "data", "out")} | {"model": {"layer": "features"}}


def test_it_learns_and_opens_with_the_same_figures(run: seriatim.Run, folder: Path) -> None:
    valid = run.config.data.valid
    assert valid is not None
    found = run.evaluate(valid)
    assert found["accuracy"] > run.summary["baseline"]["accuracy"]
    assert found["loss"] == run.summary["valid"]["loss"]
    assert seriatim.load(run.path).evaluate(valid) == found


def test_a_batch_gives_the_answers_of_its_sentences(run: seriatim.Run) -> None:
    lines = ["anna sees Paris", "", "unseen-word 12", "a " * 30, "\0", "anna \0\0\0 \x01", "\uffff" * 5]
    answers = list(run.predict(lines, details=True))
    for line, answer in zip(lines, answers, strict=True):
        (alone,) = run.predict([line], details=True)
        assert alone["tags"] == answer["tags"]
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
        assert len(answer["tags"]) == len(line.split())


def test_verbs(run: seriatim.Run, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="nothing is left to do"):
        assert main(["train", "--resume", str(run.path)]) == 0
    page = tmp_path / "page.html"
    assert main(["inspect", str(run.path), "--text", "anna sees Paris", "--out", str(page)]) == 0
    assert "conditional random field" in (run.path / "README.md").read_text()


def test_weights_of_another_model_are_refused(run: seriatim.Run, tmp_path: Path) -> None:
    file = run.path / "model.safetensors"
    tensors, metadata = load_tensors(file), read_metadata(file)
    damages = [
        {"keys": tensors["keys"].flip(0)},
        {"weights": tensors["weights"][:-1]},
        {"crf.start": tensors["crf.start"].double()},
        {"crf.end": tensors["crf.end"] * float("inf")},
    ]
    for number, damage in enumerate(damages):
        copy = tmp_path / str(number)
        shutil.copytree(run.path, copy)
        save_tensors(tensors | damage, copy / "model.safetensors", metadata)
        with refused("damaged", "model.safetensors"):
            seriatim.load(copy)
