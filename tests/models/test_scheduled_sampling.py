"""Scheduled sampling: which inputs a model reads while it trains, and how often they are its own."""

from pathlib import Path

import pytest
import torch

import seriatim
from seriatim.config import resolve
from seriatim.core.state import state_leaves
from seriatim.models import LanguageModel
from seriatim.models.scheduled_sampling import ScheduledSampling
from seriatim.tasks import new_task

from ..conftest import small_config
from ..exhaustive import parameters
from ..refusals import refused


def model(name: str) -> LanguageModel:
    torch.manual_seed(3)
    return LanguageModel(seriatim.layer(name, 6, 6), 11).double()


@pytest.mark.parametrize(
    "name", parameters(seriatim.layers.names(), everyday=("convolution", "lstm", "mamba", "transformer"))
)
def test_every_layer_reads_its_own_predictions(name: str) -> None:
    """With probability 1 the loss is that of teacher forcing on the tokens that the model predicts greedily."""
    made, tokens = model(name), torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(1))
    targets, lengths = tokens.roll(-1, 1), torch.tensor([6, 4, 0])
    own, state = made.loss(tokens, targets, lengths=lengths, own_predictions=1.0)
    fed = tokens.clone()
    for t in range(1, 6):
        fed[:, t] = made(fed[:, :t])[0][:, -1].argmax(1)
    forced, expected = made.loss(fed, targets, lengths=lengths)
    torch.testing.assert_close(own, forced)
    for mine, theirs in zip(state_leaves(state), state_leaves(expected), strict=True):
        if mine.shape == theirs.shape:  # a growing state may hold room beyond what is valid
            torch.testing.assert_close(mine, theirs)
    own.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("schedule", ["constant", "linear", "inverse-sigmoid"])
def test_schedules_lead_from_teacher_forcing_to_the_rate(schedule: str) -> None:
    options = ScheduledSampling.model_validate({"scheduled_sampling": 0.5, "sampling_schedule": schedule})
    rates = [options.own_predictions(progress / 20) for progress in range(21)]
    assert rates == sorted(rates)
    assert rates[0] == (0.5 if schedule == "constant" else pytest.approx(0.0, abs=0.01))
    assert rates[-1] == pytest.approx(0.5, abs=0.01)


def test_the_inverse_sigmoid_is_that_of_the_paper() -> None:
    k, i = 40.0, 150
    options = ScheduledSampling(scheduled_sampling=1.0, sampling_schedule="inverse-sigmoid", sampling_k=k)
    expected = k / (k + torch.tensor(i / k, dtype=torch.float64).exp().item())
    assert 1 - options.own_predictions(i / 1000) == pytest.approx(expected)


def test_the_rate_follows_the_budget_of_a_training(texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, loss = [], LanguageModel.loss

    def listening(*given, own_predictions: float = 0.0, **named):
        seen.append(own_predictions)
        return loss(*given, own_predictions=own_predictions, **named)

    monkeypatch.setattr(LanguageModel, "loss", listening)
    options = {"scheduled_sampling": 0.4, "sampling_schedule": "linear"}
    sizes = {"layer": "gru", "options": options}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=sizes, training={"steps": 10}))
    assert seen == pytest.approx([0.4 * step / 10 for step in range(10)])
    assert seriatim.load(run.path).config.model.options == options


@pytest.mark.parametrize("task", ["lm", "seq2seq"])
@pytest.mark.parametrize(
    ("options", "kind", "place", "value"),
    [
        ({"sampling_schedule": "linear"}, "range", "model.options.sampling_schedule", ""),
        ({"scheduled_sampling": 1.5}, "range", "model.options.scheduled_sampling", ""),
        ({"scheduled_samplin": 0.5}, "unknown", "model.options.scheduled_samplin", "scheduled_sampling"),
        (
            {"scheduled_sampling": 0.5, "sampling_schedule": "exponential"},
            "range",
            "model.options.sampling_schedule",
            "",
        ),
    ],
)
def test_bad_options_are_named(task: str, options: dict[str, object], kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        new_task(resolve({"task": task, "model": {"layer": "gru", "options": options}}))
