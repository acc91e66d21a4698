"""Gradient flow, compared with independent computations of the same gradients in float64."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.contract import SequenceLayer
from seriatim.core.state import map_state, state_leaves, with_children
from seriatim.inspection import jacobians
from seriatim.inspection.gradient_flow import (
    FlowCurve,
    equal_windows,
    flow_section,
    gradient_flow,
    gradient_flow_figure,
    norms_by_lag,
)
from seriatim.inspection.gradient_trend import MIN_LAGS, reach, trend
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.inspection.jacobians import JacobianProduct, jacobian_products, spectral_radii
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
    assert reach(norms.mean(0).tolist()) == 4


def test_a_layer_that_is_not_causal_is_measured_by_its_inputs() -> None:
    layer = build("encoder")
    inputs, weight = randn(BATCH, TIME, 5), randn(6)
    top = list(norms_by_lag(layer, lambda: (layer(inputs)[0][:, -1] * weight).sum(1)).values())
    assert [norms.shape for norms in top] == [(BATCH, TIME - 1)] * 2
    assert bool((top[0] > 0).all())


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


def test_reach_is_where_the_norm_stays_below_a_hundredth_of_the_start() -> None:
    assert reach([1.0, 0.5, 0.0099, 0.2, 0.001]) == 5
    assert reach([1.0, 0.5, 0.0099, 0.001, 0.0]) == 3
    assert reach([1.0, 0.009, 0.5, 0.6]) is None
    assert reach([1.0, 0.5]) is None
    assert reach([1.0, math.inf, math.nan]) is None
    assert reach([]) is None
    assert reach([0.0, 0.0]) == 1


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
    assert all(len(layer.trained.norms) == len(layer.fresh.norms) == flow.lags == 9 for layer in flow.layers)
    assert all(layer.trained.norms != layer.fresh.norms for layer in flow.layers)
    untrained = gradient_flow(trained("none", 1, 1e-30), text, lags=9)
    for one, other in zip(flow.layers, untrained.layers, strict=True):
        torch.testing.assert_close(torch.tensor(one.fresh.norms), torch.tensor(other.trained.norms))


@pytest.mark.parametrize(("factor", "kind"), [(1.2, "exploding"), (0.8, "vanishing"), (1.0, None)])
def test_the_rate_of_a_linear_recurrence_is_its_spectral_radius(factor: float, kind: str | None) -> None:
    """∂h_T/∂h_{T−k} = (factor · Q)^k with an orthogonal Q: every norm is a power of the factor."""
    torch.manual_seed(0)
    layer = seriatim.layer("rnn", 4, 5, activation="identity").double().eval()
    with torch.no_grad():
        layer.cell.weight_hh_l0.copy_(factor * torch.linalg.qr(randn(5, 5))[0])
    rows = list(only(layer, randn(6, 40, 4), randn(5)))
    rate = trend(rows)
    assert rate is not None
    assert rate.factor == pytest.approx(factor)
    assert rate.low <= rate.factor + 1e-12
    assert rate.factor <= rate.high + 1e-12
    assert rate.kind == kind


def test_no_rate_is_stated_without_support() -> None:
    falling = 0.8 ** torch.arange(40.0, dtype=torch.float64)
    assert trend([falling[: MIN_LAGS - 1]] * 9) is None, "too short"
    assert trend([falling] * 3) is None, "too few windows"
    assert trend([torch.zeros(40)] * 9) is None, "nothing to fit"
    broken = torch.cat([falling, torch.tensor([torch.inf, torch.nan, 0.0])])
    rate = trend([broken] * 4)
    assert rate is not None
    assert rate.factor == pytest.approx(0.8)
    noise = torch.rand(8, 60, generator=torch.Generator().manual_seed(0)).add(0.1)
    unclear = trend(list(noise))
    assert unclear is not None
    assert unclear.kind is None
    both = trend([falling, 1 / falling] * 4)  # falls in half of the windows, rises in the others
    assert both is not None
    assert both.kind is None


@pytest.mark.parametrize(("factor", "kind"), [(1e4, "exploding"), (1e-4, "vanishing")])
def test_a_norm_that_leaves_the_range_of_numbers_at_once_is_named(factor: float, kind: str) -> None:
    """Overflow and underflow end a window after a few steps, and so does the end of a layer's window."""
    norms = factor ** torch.arange(60.0)
    rate = trend([norms, 2 * norms, 3 * norms, 4 * norms])
    assert rate is not None
    assert rate.factor == pytest.approx(factor, rel=0.01)
    assert rate.kind == kind
    seen = torch.cat([0.1 ** torch.arange(5.0), torch.zeros(40)])
    assert trend([seen] * 9) is None
    at_once = [1.0, math.inf, *[math.nan] * 40]
    assert FlowCurve(at_once, trend([torch.tensor(at_once)] * 9)).phrases == [
        "exploding, beyond the range of floating-point numbers"
    ]


@pytest.mark.parametrize(("factor", "name"), [(1.2, "×1.20"), (1e5, "exploding, beyond the range")])
def test_the_page_names_an_exploding_gradient(factor: float, name: str, texts: dict[str, str], tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "rnn"}, training={"steps": 1})
    config["model"]["options"] = {"activation": "identity"}
    run = seriatim.train(config)
    with torch.no_grad():
        weight = run.model.layer.cell.weight_hh_l0
        weight.copy_(factor * torch.linalg.qr(weight)[0])
    text = "the cat sees the moon . the old man likes it . " * 8
    (_, table, _), lines = flow_section(prepare(run, text, beam=1, data=None, file_format=None))
    assert "exploding, " in lines[0]
    assert name in lines[0]
    assert "reach" not in lines[0].split("(before")[0], "a gradient that grows has no reach"
    assert table.rows[0][3].startswith(name)


def test_short_texts_are_measured_on_held_out_data_or_not_at_all(texts: dict[str, str], tmp_path: Path) -> None:
    given = {"beam": 1, "data": None, "file_format": None}
    config = small_config(texts, tmp_path / "run", model={"layer": "rnn"}, training={"steps": 1})
    run = seriatim.train({**config, "data": {"train": texts["train"]}, "out": str(tmp_path / "none")})
    with refused("empty"):
        flow_section(prepare(run, "t", **given))
    run = seriatim.train(config)
    parts, lines = flow_section(prepare(run, "the cat sees it .", **given))
    assert "the held-out data" in parts[0].text
    assert lines


@pytest.mark.parametrize("name", ["lm", "lm-lines", "mlm", "classify", "tag", "seq2seq"])
def test_windows_have_one_length(inspected, name: str) -> None:
    run = inspected[name]
    subject = prepare(run, TEXTS.get(name, SENTENCE), beam=1, data=None, file_format=None)
    items = subject.held_out_items(40, 20)
    found = equal_windows(subject.inputs, items, length=20, count=8)
    assert 1 < len(found.examples) <= 8
    assert {len(example.inputs) for example in found.examples} == {found.length}
    if found.examples[0].decoded:
        assert {len(example.decoded) for example in found.examples} == {found.length}
    flow = gradient_flow(run, items, lags=19, max_windows=8)
    assert (flow.windows, flow.length) == (len(found.examples), found.length)
    for layer in flow.layers:
        low, high = layer.trained.band
        assert all(a <= mean <= b for a, mean, b in zip(low, layer.trained.norms, high, strict=True) if a < b)


def test_windows_of_a_running_text_do_not_overlap(inspected) -> None:
    explainer = explainer_of(inspected["lm"])
    text = SENTENCE * 9
    found = equal_windows(explainer.inputs, [text], length=30, count=4)
    assert found.length == 30
    (whole,) = explainer.examples(text)
    starts = [
        next(i for i in range(0, len(whole.inputs), 30) if whole.inputs[i : i + 30] == each.inputs)
        for each in found.examples
    ]
    assert len(set(starts)) == len(starts) == 4


@pytest.mark.parametrize("name", ["rnn", "residual-rnn", "gru", "lstm", "mgu", "mingru", "s4d", "window"])
def test_the_product_of_jacobians_is_that_of_the_last_state(name: str) -> None:
    """σ_max of ∂h_{T−2}/∂h_{T−1−k}, differentiated as one function of the earlier state."""
    layer, inputs = build(name), randn(2, TIME, 5)
    for row in range(2):
        product = products(layer, inputs[row : row + 1])
        for lag, found in zip(product.lags, product.norms, strict=True):
            assert found == pytest.approx(largest_singular_value(layer, inputs[row : row + 1], lag)), (row, lag)
    assert products(layer, inputs).norms[-1] == pytest.approx(
        sum(products(layer, inputs[row : row + 1]).norms[-1] for row in range(2)) / 2
    )


def all_products(layer: SequenceLayer, inputs: Tensor) -> dict[str, JacobianProduct]:
    return jacobian_products(layer, lambda rows: layer(torch.stack(rows))[0], list(inputs))


def products(layer: SequenceLayer, inputs: Tensor) -> JacobianProduct:
    (product,) = all_products(layer, inputs).values()
    return product


def largest_singular_value(layer: SequenceLayer, inputs: Tensor, lag: int) -> float:
    with torch.no_grad():
        _, before = layer(inputs[:, : TIME - lag])
    numbers = torch.cat([leaf.flatten() for leaf in state_leaves(before) if leaf.is_floating_point()])

    def later(flat: Tensor) -> Tensor:
        parts = iter(flat.split([leaf.numel() for leaf in state_leaves(before) if leaf.is_floating_point()]))
        state = map_state(lambda leaf: next(parts).view_as(leaf) if leaf.is_floating_point() else leaf, before)
        _, after = layer(inputs[:, TIME - lag : TIME - 1], state) if lag > 1 else (None, state)
        return torch.cat([leaf.flatten() for leaf in state_leaves(after) if leaf.is_floating_point()])

    return float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(later, numbers), 2))


def test_no_gradient_of_the_state_is_larger_than_the_product_allows() -> None:
    """The gradient of Elman's network vanishes although σ_max(U) · mean |g′| and the spectral radius say otherwise."""
    layer = seriatim.layer("rnn", 4, 5).double().eval()
    with torch.no_grad():
        layer.cell.weight_hh_l0.copy_(1.3 * torch.linalg.qr(randn(5, 5))[0])
    inputs = 3 * randn(1, 60, 4)
    norms, product = only(layer, inputs, randn(5))[0], products(layer, inputs)
    assert spectral_radii(layer) == {"layer 1: rnn": pytest.approx(1.3)}
    bounds = norms[0] * torch.tensor(product.norms, dtype=torch.float64)
    assert bool((norms[torch.tensor(product.lags) - 1] <= bounds * (1 + 1e-9)).all())
    assert product.norms[-1] < 1e-3


def test_states_that_grow_and_products_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = randn(2, TIME, 5)
    assert all_products(build("attention"), inputs) == {}
    assert spectral_radii(build("gru")) == {}
    monkeypatch.setattr(jacobians, "MAX_OPERATIONS", 1)
    assert all_products(build("gru"), inputs) == {}


def test_a_product_beyond_the_range_of_numbers_is_infinite() -> None:
    layer = seriatim.layer("rnn", 4, 5, activation="identity").eval()
    with torch.no_grad():
        layer.cell.weight_hh_l0.copy_(1e15 * torch.eye(5))
    assert products(layer, torch.ones(1, 9, 4)).norms[-1] == math.inf


def test_one_short_text_gives_all_its_lags(texts: dict[str, str], tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "rnn"}, training={"steps": 1})
    run = seriatim.train({**config, "data": {"train": texts["train"], "valid": "none"}})
    (flow,) = gradient_flow(run, "nine char").layers
    assert len(flow.trained.norms) == len(flow.fresh.norms) == 8
    parts, lines = flow_section(prepare(run, "nine char", beam=1, data=None, file_format=None))
    assert parts
    assert not lines, "no statement on reach or rate"
    (layer,) = gradient_flow(run, "nine char").layers
    assert len(gradient_flow_figure([layer]).axes[0].lines) == 4
