"""Runs opened with rounded weights: what they answer, what they refuse, and what the command says they cost."""

import json

import pytest
import torch

import seriatim
from seriatim.core.errors import InputError


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    from seriatim.cli.main import main

    code = main([*arguments])
    return (code, *capsys.readouterr())


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_a_run_answers_with_rounded_weights(runs, texts, weights) -> None:
    path = runs["char-line"].path
    run, full = seriatim.load(path, weights=weights), seriatim.load(path)
    assert (run.weights, full.weights) == (weights, "float32")
    one, other = (r.evaluate(texts["valid"])["loss"] for r in (run, full))
    assert one == pytest.approx(other, abs=0.02)
    assert one != other
    text = "".join(run.generate("the ", max_tokens=20, seed=1))
    assert text == run.samples(1, "the ", max_tokens=20, seed=1)[0]
    assert all(
        torch.equal(a, b)
        for (name, a), b in zip(run.model.named_parameters(), full.model.parameters(), strict=True)
        if a.dim() < 2
    )


def test_a_state_is_continued_under_other_weights(runs, tmp_path) -> None:
    path = runs["char-line"].path
    stream = seriatim.load(path).stream()
    stream.feed("the cat")
    stream.save(tmp_path / "state.safetensors")
    small = seriatim.load(path, weights="int8")
    moved = small.stream().load(tmp_path / "state.safetensors")
    assert moved.feed(" a").log_probability == pytest.approx(stream.feed(" a").log_probability, abs=0.05)
    moved.save(tmp_path / "back.safetensors")
    for run in (seriatim.load(path), seriatim.load(path, weights="bfloat16")):
        run.stream().load(tmp_path / "back.safetensors").feed(" dog")
    with pytest.raises(InputError, match="does not belong to this model"):
        runs["char-stream"].stream().load(tmp_path / "back.safetensors")


def test_what_cannot_be_rounded_is_refused(runs, texts, tmp_path, capsys) -> None:
    with pytest.raises(InputError, match="weights: must be one of float32, bfloat16, int8, got 'int4'"):
        seriatim.load(runs["char-line"].path, weights="int4")  # type: ignore[arg-type]
    data = {"train": texts["train"], "valid": texts["valid"], "unit": "line"}
    seriatim.train(
        {
            "data": data,
            "model": {"layer": "ngram", "options": {"smoothing": "witten-bell"}},
            "out": str(tmp_path / "ngram"),
        }
    )
    with pytest.raises(InputError, match="does not multiply with matrices"):
        seriatim.load(tmp_path / "ngram", weights="int8")
    code, printed, errors = call(capsys, "generate", str(tmp_path / "ngram"), "--weights", "int8")
    assert (code, printed, errors.count("\n")) == (2, "", 1)


def test_evaluate_shows_what_rounding_costs(runs, texts, capsys) -> None:
    path, weights = str(runs["char-line"].path), ("--weights", "int8")
    code, printed, _ = call(capsys, "evaluate", path, "--data", texts["valid"], "--json", *weights)
    metrics = json.loads(printed)
    rounding = metrics["rounding"]
    assert (code, rounding["weights"]) == (0, "int8")
    assert rounding["metrics"]["loss"] == pytest.approx(seriatim.load(path).evaluate(texts["valid"])["loss"])
    for key in ("loss", "bits_per_byte"):
        expected = metrics[key] - rounding["metrics"][key]
        assert rounding["differences"][key]["difference"] == pytest.approx(expected, abs=1e-9)
    assert min(rounding["tokens_per_second"], rounding["tokens_per_second_float32"]) > 0
    code, printed, _ = call(capsys, "evaluate", path, "--data", texts["valid"], *weights)
    assert "bits per byte" in printed
    assert "weights rounded to int8 (first), and as they are (second)" in printed
    assert "tokens/s instead of" in printed
