"""Runs opened with rounded weights: what they answer, what they refuse, and what the command says they cost."""

import json

import pytest
import torch

import seriatim
from seriatim.runs import weight_rounding

from ..refusals import refused


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
    with refused("mismatch", "back.safetensors"):
        runs["char-stream"].stream().load(tmp_path / "back.safetensors")


def test_what_cannot_be_rounded_is_refused(runs, texts, tmp_path, capsys) -> None:
    with refused("unknown", "weights"):
        seriatim.load(runs["char-line"].path, weights="int3")  # type: ignore[arg-type]
    data = {"train": texts["train"], "valid": texts["valid"], "unit": "line"}
    seriatim.train(
        {
            "data": data,
            "model": {"layer": "ngram", "options": {"smoothing": "witten-bell"}},
            "out": str(tmp_path / "ngram"),
        }
    )
    with refused("unsupported", "ngram"):
        seriatim.load(tmp_path / "ngram", weights="int8")
    code, printed, errors = call(capsys, "generate", str(tmp_path / "ngram"), "--weights", "int8")
    assert (code, printed, errors.count("\n")) == (2, "", 1)


@pytest.mark.exhaustive
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
    speeds = rounding["speeds"]
    assert 0 < speeds["ratio_low"] <= speeds["ratio"] <= speeds["ratio_high"]
    code, printed, _ = call(capsys, "evaluate", path, "--data", texts["valid"], *weights)
    assert "bits per byte" in printed
    assert "weights rounded to int8, and as they are in the run" in printed
    assert "tokens/s instead of" in printed
    code, printed, errors = call(capsys, "evaluate", path, path, "--data", texts["valid"], *weights)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert "--weights: it measures what rounding costs one run" in errors


class Timed:
    """A model whose step takes some time; it counts its steps."""

    def __init__(self, seconds: float, clock: list[float]) -> None:
        self.seconds, self.clock, self.steps = seconds, clock, 0

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size, 1)

    def step(self, tokens, state):
        self.clock[0] += self.seconds if self.steps else 10.0  # the first step compiles
        self.steps += 1
        return torch.zeros(1, 3), state

    def parameters(self):
        return iter([torch.nn.Parameter(torch.zeros(1))])


def test_speeds_are_those_of_turns_that_are_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(weight_rounding.time, "perf_counter", lambda: clock[0])
    slow, fast = Timed(0.002, clock), Timed(0.0005, clock)
    speeds = weight_rounding.measure_speeds(fast, slow)
    assert speeds.first == pytest.approx(2000)
    assert speeds.second == pytest.approx(500)
    assert (speeds.ratio_low, speeds.ratio, speeds.ratio_high) == pytest.approx((4, 4, 4))
    assert slow.steps == fast.steps >= weight_rounding.TURNS * weight_rounding.TURN_SECONDS / slow.seconds
    instant = Timed(0.0, clock)
    clock[0] = 0.0
    ticking = iter(range(10**9))
    monkeypatch.setattr(weight_rounding.time, "perf_counter", lambda: next(ticking) * 1e-6)
    weight_rounding.measure_speeds(instant, instant)
    assert instant.steps <= 4 * weight_rounding.MAX_TURN_TOKENS * (weight_rounding.TURNS + 1)


def test_weights_that_change_after_rounding_are_other_weights(runs, tmp_path) -> None:
    run = seriatim.load(runs["char-line"].path, weights="int8")
    stream = run.stream()
    stream.feed("the")
    with torch.no_grad():
        for weight in run.model.parameters():
            weight.mul_(1.5)
    stream.save(tmp_path / "state.safetensors")
    with refused("mismatch", "state.safetensors"):
        runs["char-line"].stream().load(tmp_path / "state.safetensors")
