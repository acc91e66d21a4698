"""The gated short convolution against LFM2, and minLSTM against its equations as they are printed."""

import pytest
import torch

import seriatim
from seriatim.recurrence import explain, uncompiled

from ..agreement import same_gradients
from ..conftest import randn
from ..refusals import refused

WIDTH, TIME = 6, 9


def build(name: str, **options: object) -> seriatim.SequenceLayer:
    torch.manual_seed(0)
    return seriatim.layer(name, WIDTH, WIDTH, block=False, **options).double().eval()


@pytest.mark.parametrize("bias", [False, True])
def test_equal_to_the_convolution_of_lfm2(bias: bool) -> None:
    modeling = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    config = modeling.Lfm2Config(
        hidden_size=WIDTH, conv_bias=bias, conv_L_cache=3, num_hidden_layers=1, layer_types=["conv"]
    )
    torch.manual_seed(1)
    theirs, ours = modeling.Lfm2ShortConv(config, 0).double(), build("short-convolution", bias=bias)
    weights = {f"{name}.weight": getattr(theirs, name).weight for name in ("in_proj", "out_proj")}
    weights["conv_weight"] = theirs.conv.weight.squeeze(1).t()
    if bias:
        weights |= {f"{name}.bias": getattr(theirs, name).bias for name in ("in_proj", "out_proj")}
        weights["conv_bias"] = theirs.conv.bias
    x = randn(2, TIME, WIDTH).requires_grad_()
    found, _ = torch.func.functional_call(ours, weights, (x,))
    same_gradients(found, theirs(x), [x, *theirs.parameters()])


def test_minlstm_is_its_equations() -> None:
    layer, x = build("minlstm"), randn(2, TIME, WIDTH).requires_grad_()
    h, rows = torch.zeros(2, WIDTH, dtype=torch.float64), []
    for t in range(TIME):
        forget, take, candidate = layer.w(x[:, t]).chunk(3, dim=1)
        f, i = torch.sigmoid(forget), torch.sigmoid(take)
        h = f / (f + i) * h + i / (f + i) * candidate
        rows.append(h)
    same_gradients(layer(x)[0], torch.stack(rows, 1), [x, *layer.parameters()])


@pytest.mark.parametrize("forget", [-1e4, 0.0, 1e4])
@pytest.mark.parametrize("take", [-1e4, 0.0, 1e4])
def test_extreme_gates_of_minlstm_give_numbers_at_any_split(forget: float, take: float) -> None:
    layer = build("minlstm").float()
    with torch.no_grad():
        layer.w.bias.copy_(torch.tensor([forget, take, 0.0]).repeat_interleave(WIDTH))
    x = torch.randn(3, TIME, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    whole, _ = layer(x)
    for split in (1, 4, 8):
        first, state = layer(x[:, :split])
        outputs = torch.cat([first, layer(x[:, split:], state)[0]], dim=1)
        torch.testing.assert_close(outputs, whole)
        gradients = torch.autograd.grad(outputs.sum(), [x, *layer.parameters()])
        assert all(gradient.isfinite().all() for gradient in (outputs, *gradients))


@pytest.mark.parametrize(("name", "options"), [("short-convolution", {"bias": True}), ("minlstm", {})])
def test_steps_are_compiled_and_have_the_gradients_of_a_sequence(name: str, options: dict[str, bool]) -> None:
    layer, x = build(name, **options), randn(3, TIME, WIDTH).requires_grad_()
    assert "one call of compiled code" in explain(layer)
    state, outputs = layer.initial_state(3), []
    with torch.no_grad():
        compiled = layer.step(x[:, 0], state)[0]
    with uncompiled():
        for t in range(TIME):
            output, state = layer.step(x[:, t], state)
            outputs.append(output)
    torch.testing.assert_close(compiled, outputs[0], rtol=0, atol=1e-12)
    same_gradients(torch.stack(outputs, 1), layer(x)[0], [x, *layer.parameters()])


def test_what_does_not_fit_is_refused() -> None:
    with refused("range", "kernel_size"):
        build("short-convolution", kernel_size=0)
    with refused("mismatch", "state"):
        build("short-convolution")(randn(2, 1, WIDTH), build("short-convolution", kernel_size=4).initial_state(2))
