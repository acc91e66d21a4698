"""Gradient flow, compared with independent computations of the same gradients in float64."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.contract import SequenceLayer
from seriatim.core.state import with_children
from seriatim.inspection.gradient_flow import (
    FlowCurve,
    LayerFlow,
    band,
    equal_windows,
    flow_section,
    gradient_flow,
    gradient_flow_chart,
    norms_by_lag,
)
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.pages.chart import Chart
from seriatim.recurrence import uncompiled

from ..conftest import randn, small_config
from ..laws.eight_laws import build
from ..refusals import refused
from .inspected import SENTENCE, TEXTS

BATCH, TIME = 3, 7


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which these tests do not need and which takes seconds to build."""
    with uncompiled():
        yield


def only(layer: SequenceLayer, inputs: Tensor, weight: Tensor) -> Tensor:
    """Return the norms for a model with one leaf and a loss that is a fixed function of the last output."""
    (norms,) = norms_by_lag(layer, lambda: (layer(inputs)[0][:, -1] * weight).sum(1)).values()
    return norms


def test_elman_is_a_product_of_jacobians() -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("rnn", 4, 5).double().eval()
    inputs, weight = randn(BATCH, TIME, 4), randn(5)
    states, _ = layer(inputs)
    u = layer.cell.weight_hh_l0
    for row in range(BATCH):
        gradient, expected = weight, []
        for t in reversed(range(1, TIME)):  # ∂h_t/∂h_{t−1} = diag(1 − h_t²) U
            gradient = gradient @ (torch.diag(1 - states[row, t] ** 2) @ u)
            expected.append(gradient.norm())
        torch.testing.assert_close(only(layer, inputs, weight)[row], torch.stack(expected))


@pytest.mark.parametrize("name", ["lstm", "gru", "mgu", "mingru", "mamba", "s4d", "block-lstm", "convolution"])
def test_constant_states_equal_separate_differentiation(name: str) -> None:
    """The last k steps are a function of the state before them, which is differentiated separately."""
    layer = build(name)
    inputs = randn(BATCH, TIME, 5)
    weight = randn(layer.output_size)
    norms = norms_by_lag(layer, lambda: (layer(inputs)[0][:, -1] * weight).sum(1))
    for lag in (1, 3, TIME - 1):
        with torch.no_grad():
            _, state = layer(inputs[:, : TIME - lag])
        parts: list[list[Tensor]] = []
        given = _each_leaf(state, parts)
        outputs, _ = layer(inputs[:, TIME - lag :], given)
        total = (outputs[:, -1] * weight).sum()
        assert len(parts) == len(norms)
        for own, found in zip(parts, norms.values(), strict=True):
            gradients = torch.autograd.grad(total, own, retain_graph=True, allow_unused=True)
            squares = [gradient.flatten(1).square().sum(1) for gradient in gradients if gradient is not None]
            torch.testing.assert_close(found[:, lag - 1], torch.stack(squares).sum(0).sqrt())


def _each_leaf(state: object, parts: list[list[Tensor]]) -> object:
    """Return the state as tensors that require gradients; ``parts`` gets those of each leaf of the model."""
    if isinstance(state, Tensor):
        tensor = state.clone().requires_grad_()
        parts.append([tensor])
        return tensor
    if "_0" not in getattr(state, "_fields", "_0"):  # of one layer; the fields of several have numbers
        tensors = [part.clone().requires_grad_() for part in state]
        parts.append(tensors)
        return type(state)(*tensors)
    return with_children(state, [_each_leaf(part, parts) for part in state])


@pytest.mark.parametrize("options", [{}, {"position": "alibi"}, {"window": 3}, {"score": "additive"}])
def test_attention_equals_its_equation(options: dict) -> None:
    """The norm at a lag is that of the gradient with respect to the keys and values of one position."""
    torch.manual_seed(0)
    layer = seriatim.layer("attention", 4, 6, num_heads=2, **options).double().eval()
    inputs, weight = randn(BATCH, TIME, 4), randn(6)
    _, state = layer(inputs[:, :-1])
    kept = state.kept.detach().requires_grad_()
    outputs, _ = layer(inputs[:, -1:], state._replace(kept=kept))
    (gradient,) = torch.autograd.grad((outputs[:, 0] * weight).sum(), kept)
    expected = gradient.square().sum((1, 3)).sqrt().flip(1)
    found = only(layer, inputs, weight)
    torch.testing.assert_close(found[:, : expected.shape[1]], expected)
    assert bool((found[:, : expected.shape[1]] > 0).all())
    assert not found[:, expected.shape[1] :].any()


def test_nothing_reaches_beyond_a_window() -> None:
    layer = seriatim.layer("window", 4, 6, context=4).double()
    norms = only(layer, randn(BATCH, TIME, 4), randn(6))
    assert bool((norms[:, :3] > 0).all())
    assert not norms[:, 3:].any()


def test_a_layer_that_is_not_causal_passes_nothing_on() -> None:
    layer = build("encoder")
    assert not norms_by_lag(layer, lambda: layer(randn(BATCH, TIME, 5))[0][:, -1].sum(1))


def test_the_direction_back_counts_from_its_own_end() -> None:
    """For a palindrome and equal weights, both directions reach equally far from their ends."""
    layer = seriatim.layer("gru", 4, 6, bidirectional=True).double().eval()
    layer.backwards.load_state_dict(layer.forwards.state_dict())
    half, weight = randn(BATCH, 4, 4), randn(6)
    inputs = torch.cat([half, half.flip(1)], dim=1)

    def loss() -> Tensor:
        outputs, _ = layer(inputs)
        return (outputs[:, -1, :6] * weight).sum(1) + (outputs[:, 0, 6:] * weight).sum(1)

    there, back = norms_by_lag(layer, loss).values()
    torch.testing.assert_close(there, back)


def test_parameters_and_their_gradients_do_not_change() -> None:
    layer = build("lstm")
    only(layer, randn(BATCH, TIME, 5), randn(6))
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_the_band_of_few_unequal_windows_is_wide() -> None:
    """One window of many with a long reach moves the mean, but not the lower bound of the band."""
    falling, long = 0.05 ** torch.arange(20.0), torch.ones(20)
    norms = [falling] * 15 + [long]
    assert torch.stack(norms).mean(0)[-1] > 0.01
    low, high = band(norms)
    assert low[-1] < 1e-9 < 0.01 < high[-1]
    assert low[0] == high[0] == 1


def test_before_and_after_a_training(texts: dict[str, str], tmp_path: Path) -> None:
    """The fresh model is the one before training, the trained model differs from it, and the run is unchanged."""

    def trained(name: str, steps: int, rate: float) -> seriatim.Run:
        model = {"layer": "mingru", "num_layers": 2}
        training = {"steps": steps, "learning_rate": rate}
        return seriatim.train(small_config(texts, tmp_path / name, model=model, training=training))

    text = "the cat sees the moon . the old man likes it ."
    run, before = trained("run", 10, 0.01), torch.random.get_rng_state()
    flow = gradient_flow(run, text, lags=9)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [layer.name for layer in flow.layers] == ["layer 1: mingru", "layer 2: mingru"]
    assert all(len(layer.trained.norms) == len(layer.fresh.norms) == 9 for layer in flow.layers)
    assert all(layer.trained.norms != layer.fresh.norms for layer in flow.layers)
    untrained = gradient_flow(trained("none", 1, 1e-30), text, lags=9)
    for one, other in zip(flow.layers, untrained.layers, strict=True):
        torch.testing.assert_close(torch.tensor(one.fresh.norms), torch.tensor(other.trained.norms))


def test_short_texts_are_measured_on_held_out_data_or_not_at_all(texts: dict[str, str], tmp_path: Path) -> None:
    given = {"beam": 1, "data": None, "file_format": None}
    config = small_config(texts, tmp_path / "run", model={"layer": "rnn"}, training={"steps": 1})
    run = seriatim.train({**config, "data": {"train": texts["train"]}, "out": str(tmp_path / "none")})
    with refused("empty"):
        flow_section(prepare(run, "t", **given))
    run = seriatim.train(config)
    chart, *_ = flow_section(prepare(run, "the cat sees it .", **given)).blocks
    assert "the held-out data" in chart.caption


@pytest.mark.parametrize("name", ["lm", "lm-lines", "mlm", "classify", "tag", "seq2seq"])
def test_windows_have_one_length(inspected, name: str) -> None:
    run = inspected[name]
    subject = prepare(run, TEXTS.get(name, SENTENCE), beam=1, data=None, file_format=None)
    items = subject.held_out_items(40, 20)
    found = equal_windows(subject.inputs, items, length=20, count=8)
    (length,) = {len(example.inputs) for example in found}
    assert 1 < len(found) <= 8
    if found[0].decoded:
        assert {len(example.decoded) for example in found} == {length}
    flow = gradient_flow(run, items, lags=19, max_windows=8)
    assert (flow.windows, flow.length) == (len(found), length)
    for layer in flow.layers:
        low, high = layer.trained.band
        assert all(a <= mean <= b for a, mean, b in zip(low, layer.trained.relative, high, strict=True) if a < b)


def test_windows_of_a_running_text_do_not_overlap(inspected) -> None:
    explainer = explainer_of(inspected["lm"])
    text = SENTENCE * 9
    found = equal_windows(explainer.inputs, [text], length=30, count=4)
    assert {len(each.inputs) for each in found} == {30}
    (whole,) = explainer.examples(text)
    starts = [
        next(i for i in range(0, len(whole.inputs), 30) if whole.inputs[i : i + 30] == each.inputs) for each in found
    ]
    assert len(set(starts)) == len(starts) == 4


def test_one_short_text_gives_all_its_lags(texts: dict[str, str], tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "rnn"}, training={"steps": 1})
    run = seriatim.train({**config, "data": {"train": texts["train"], "valid": "none"}})
    (flow,) = gradient_flow(run, "nine char").layers
    assert len(flow.trained.norms) == len(flow.fresh.norms) == 8
    chart, *_ = flow_section(prepare(run, "nine char", beam=1, data=None, file_format=None)).blocks
    assert isinstance(chart, Chart), "one window has no interval"


def test_the_chart_has_both_curves_relative_to_the_first_lag() -> None:
    rows = [0.5 ** torch.arange(30.0, dtype=torch.float64) * scale for scale in (1, 2, 3)]
    curve = FlowCurve(torch.stack(rows).mean(0).tolist(), band(rows))
    chart = gradient_flow_chart(LayerFlow("layer 1: rnn", curve, FlowCurve([0.0, 1.0, math.inf])))
    trained, fresh = chart.series
    assert trained.y[:20] == pytest.approx([0.5**k for k in range(20)])
    assert math.isnan(trained.y[-1]), "below the smallest number that is drawn"
    assert trained.intervals[3] == pytest.approx((0.125, 0.125)), "all windows fall alike"
    assert all(math.isnan(value) for value in fresh.y), "the first norm is zero"


def test_an_exploding_gradient_is_drawn_as_far_as_it_is_finite() -> None:
    rows = [torch.tensor([1.0, 1e300, math.inf, math.nan], dtype=torch.float64)] * 2
    curve = FlowCurve(torch.stack(rows).mean(0).tolist(), band(rows))
    chart = gradient_flow_chart(LayerFlow("layer 1: rnn", curve, curve))
    assert [math.isfinite(value) for value in chart.series[0].y] == [True, True, False, False]
    assert chart
