"""What the page says of gradient flow, and what its plots show, from curves whose properties are known."""

import math
from collections.abc import Iterator

import pytest
import torch

from seriatim.inspection import gradient_flow
from seriatim.inspection.gradient_flow import FlowCurve, LayerFlow, gradient_flow_figure, leaves_frame
from seriatim.inspection.gradient_trend import Trend, reach, trend
from seriatim.inspection.inspected_run import prepare
from seriatim.inspection.jacobians import JacobianProduct
from seriatim.recurrence import uncompiled

from .inspected import SENTENCE, TEXTS


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which these tests do not need and which takes seconds to build."""
    with uncompiled():
        yield


def test_a_rate_describes_the_curve_up_to_its_reach() -> None:
    """A gradient that vanishes at once and leaves a small rest has the rate of its fall, not of its flat end."""
    fall = 0.5 ** torch.arange(60.0, dtype=torch.float64)
    two_phases = torch.maximum(fall, torch.tensor(0.004))
    rate = trend([two_phases * scale for scale in (1, 2, 3, 4)])
    assert rate is not None
    assert (rate.factor, rate.kind) == (pytest.approx(0.5), "vanishing")
    assert rate.factor ** reach(two_phases.tolist()) < 0.01, "rate and reach agree"
    bent = torch.maximum(fall, torch.tensor(0.02))  # no reach, and not a line
    unclear = trend([bent * scale for scale in (1, 2, 3, 4)])
    assert unclear is not None
    assert unclear.kind is None
    assert FlowCurve(bent.tolist(), unclear).phrases == ["reach more than 60 steps"]


def test_a_reach_of_few_steps_has_no_rate() -> None:
    at_once = torch.tensor([1.0, 0.009, 0.0001, 0.0005, *[0.0002] * 30], dtype=torch.float64)
    assert reach(at_once.tolist()) == 2
    assert trend([at_once * scale for scale in (1, 2, 3, 4)]) is None


def frame(trained: list[float], fresh: list[float]) -> tuple[float, float, float]:
    axes = gradient_flow_figure([LayerFlow("layer 1: rnn", FlowCurve(trained), FlowCurve(fresh))]).axes[0]
    return axes.get_xlim()[1], *axes.get_ylim()


def test_an_exploding_curve_does_not_hide_the_other() -> None:
    up, flat = [1.25**k for k in range(255)], [0.97**k for k in range(255)]
    right, low, high = frame(up, flat)
    assert right >= 255
    assert low < min(flat)
    assert high > max(up)
    assert leaves_frame(LayerFlow("a", FlowCurve(up), FlowCurve(flat))) == (None, None)


def test_a_curve_that_leaves_the_frame_is_named() -> None:
    falling, flat = [0.1**k for k in range(40)], [1.0] * 40
    right, low, _ = frame(falling, flat)
    assert right >= 40
    assert low >= 0.1**11
    layer = LayerFlow("layer 1: rnn", FlowCurve(falling), FlowCurve(flat))
    assert leaves_frame(layer) == (11, None)
    assert "the curve after training leaves the frame at k = 11." in gradient_flow._caption(layer)
    assert frame(falling, falling)[0] < 15, "the plot ends where nothing is drawn"
    endless = LayerFlow(
        "layer 1: rnn", FlowCurve([1.0, 1e100, math.inf, math.inf]), FlowCurve([1.0, 1e90, math.inf, math.nan])
    )
    assert leaves_frame(endless) == (None, None)
    assert "leaves the frame" not in gradient_flow._caption(endless)


def test_the_measured_rate_stands_beside_the_spectral_radius_only_where_it_is_stated() -> None:
    product = JacobianProduct([1, 2], [1.0, 0.9], 1)
    for fit, is_stated in ((0.99, True), (0.05, False)):  # no straight line fits the second
        measured = Trend(0.9, 0.89, 0.91, fit, 200, 16)
        layer = LayerFlow(
            "a",
            FlowCurve([1.0] * 40, measured, None, product, 1.774),
            FlowCurve([1.0] * 40, measured, None, product, 1.2),
        )
        said = " ".join(gradient_flow._jacobians(layer))
        assert "1.77" in said
        assert ("(0.890 to 0.910)" in said) is is_stated
    assert not list(gradient_flow._jacobians(LayerFlow("layer 1: gru", FlowCurve([1.0] * 40), FlowCurve([1.0] * 40))))


@pytest.mark.parametrize(
    ("name", "steps", "whole", "inputs"),
    [("lm", 1, 0, 0), ("classify", 0, 1, 0), ("tag", 1, 0, 0), ("mlm", 0, 0, 1), ("seq2seq-heads", 1, 0, 1)],
)
def test_the_introduction_is_that_of_the_layers(inspected, name: str, steps: int, whole: int, inputs: int) -> None:
    subject = prepare(inspected[name], TEXTS.get(name, SENTENCE), beam=1, data=None, file_format=None)
    said = gradient_flow.flow_section(subject).blocks[0].text
    expected = ((gradient_flow.STEPS, steps), (gradient_flow.SEQUENCE, whole), (gradient_flow.INPUTS, inputs))
    assert [text in said for text, _ in expected] == [bool(is_said) for _, is_said in expected]
