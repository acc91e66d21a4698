"""The progress of several trainings at the same time, and the speed that is measured for them."""

from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.cli.comparison_console import ComparisonConsole
from seriatim.comparison.comparing import ComparisonProgress
from seriatim.comparison.plan import Plan
from seriatim.comparison.planning import ComparisonSettings, fit_plan, make_plan
from seriatim.comparison.worker import pace_of

from .comparisons import small


def plan_of(texts: dict[str, str], *layers: str, **settings: float) -> Plan:
    return make_plan(small(texts, "out"), ComparisonSettings(layers, **settings))


def step(share: float, left: float) -> dict:
    return {"event": "step", "step": 12, "loss": 2.5, "progress": share, "seconds_left": left}


def test_one_line_shows_all_trainings(texts, capsys: pytest.CaptureFixture[str]) -> None:
    progress = ComparisonProgress(plan_of(texts, "rnn", "gru", "lstm", steps=30, tune=3))
    console = ComparisonConsole()
    progress.start("rnn", 1, None).hear(step(0.5, 20.0))
    console.show(progress, at_once=True)
    assert capsys.readouterr().err.startswith("1 of 3  rnn  step 12  loss 2.500, 20 s left  all: ")
    progress.start("gru", 1, 2)
    progress.start("gru", 1, 3).hear({"event": "timing"})
    console.show(progress, at_once=True)
    (line,) = capsys.readouterr().err.splitlines()
    gru = "gru (learning rate 2 of 3) starting, gru (learning rate 3 of 3) timing its steps"
    assert line.startswith(f"1 and 2 of 3  rnn 50 %, {gru}  all: ")
    assert progress.fraction == pytest.approx(0.5 / 3)


def test_the_number_of_trainings_at_the_same_time_is_said(
    texts, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_process: None
) -> None:
    for workers, said in ((1, False), (1000, True)):
        out = tmp_path / str(workers)
        seriatim.compare(
            small(texts, out), layers=["rnn", "gru"], steps=1, workers=workers, reporter=ComparisonConsole()
        )
        assert ("2 trainings at the same time\n" in capsys.readouterr().err) == said


def test_two_workers_need_half_of_the_time(texts) -> None:
    left = {}
    for workers in (1, 2):
        progress = ComparisonProgress(plan_of(texts, "rnn", "gru", "lstm", "mingru", minutes=1))
        progress.workers = workers
        assert progress.seconds_left == pytest.approx(4 * 75 / workers)
        trainings = [progress.start(layer, 1, None) for layer in ("rnn", "gru")[:workers]]
        left[workers] = progress.seconds_left
        for training in trainings:
            training.hear(step(0.5, 100.0))
        assert progress.seconds_left == pytest.approx((100 * workers + (4 - workers) * 75) / workers, abs=1)
    assert left[2] == pytest.approx(left[1] / 2, abs=1)


def test_the_speed_beside_others_has_an_entry_of_its_own_with_a_budget_in_minutes(texts, in_process: None) -> None:
    plan = plan_of(texts, "rnn", steps=3)
    fit_plan(plan)
    device = torch.device("cpu")
    names = {
        (seconds, count): pace_of(plan.config("rnn"), device, seconds, at_once=count)[1]
        for seconds in (None, 0.01)
        for count in (1, 2)
    }
    assert names[None, 1] == names[None, 2] == names[0.01, 1] != names[0.01, 2]
