"""RG-LRU: agreement with RecurrentGemma's recurrent block, extreme gates, and single steps."""

import functools

import pytest
import torch

import seriatim
from seriatim.recurrence import explain, uncompiled

from ..agreement import same_gradients
from ..conftest import randn
from ..refusals import refused

WIDTH, INNER, HEADS, TIME = 12, 18, 3, 9


def block(**options: object) -> seriatim.SequenceLayer:
    torch.manual_seed(0)
    layer = seriatim.layer("rg-lru", WIDTH, WIDTH, inner_size=INNER, num_heads=HEADS, block=False, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.double().eval()


@pytest.mark.parametrize("first", [True, False])
def test_equal_to_the_block_of_recurrent_gemma(first: bool) -> None:
    """From the beginning of a sequence and later, where the square root is not 1."""
    modeling = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    config = modeling.RecurrentGemmaConfig(
        hidden_size=WIDTH, lru_width=INNER, num_attention_heads=HEADS, num_hidden_layers=1
    )
    theirs, ours = modeling.RecurrentGemmaRecurrentBlock(config, 0).double(), block()
    scan = type(theirs.rg_lru)._rnn_scan
    theirs.rg_lru._rnn_scan = functools.partial(scan, theirs.rg_lru, acc_dtype=torch.float64)
    names = {
        "linear_y": "y_proj", "linear_x": "x_proj", "linear_out": "out_proj", "conv_1d.bias": "conv_bias",
        "rg_lru.recurrent_param": "a_param", "rg_lru.input_gate": "input_gate",
        "rg_lru.recurrent_gate": "recurrence_gate",
    }  # fmt: skip
    weights = {"conv_weight": theirs.conv_1d.weight.squeeze(1).t()}
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5)
        for there, here in names.items():
            if name.startswith(there):
                weights[name.replace(there, here)] = parameter
    x = randn(2, TIME, WIDTH).requires_grad_()
    positions = torch.arange(TIME).unsqueeze(0) + (0 if first else 7)
    expected, _ = theirs(x, positions.expand(2, -1), None, use_cache=False)
    state = ours.initial_state(2)
    found, _ = torch.func.functional_call(ours, weights, (x, state if first else state._replace(started=1 + state[2])))
    same_gradients(found, expected, [x, *theirs.parameters()])


def test_steps_have_the_gradients_of_a_sequence() -> None:
    layer, x = block(), randn(2, TIME, WIDTH).requires_grad_()
    state, outputs = layer.initial_state(2), []
    for t in range(TIME):
        output, state = layer.step(x[:, t], state)
        outputs.append(output)
    same_gradients(torch.stack(outputs, 1), layer(x)[0], [x, *layer.parameters()])


@pytest.mark.parametrize("scale", [-1e4, -1.0, 1.0, 1e4])
def test_extreme_gates_give_numbers_at_any_split(scale: float) -> None:
    layer = block().float()
    with torch.no_grad():
        layer.recurrence_gate_bias.copy_(scale * torch.randn_like(layer.recurrence_gate_bias).abs())
        layer.input_gate_bias.fill_(-scale)
        layer.a_param.copy_(scale * torch.randn_like(layer.a_param))
    x = torch.randn(3, TIME, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    whole, _ = layer(x)
    for split in (1, 4, 8):
        first, state = layer(x[:, :split])
        outputs = torch.cat([first, layer(x[:, split:], state)[0]], dim=1)
        torch.testing.assert_close(outputs, whole)
        gradients = torch.autograd.grad(outputs.sum(), [x, *layer.parameters()])
        assert all(gradient.isfinite().all() for gradient in (outputs, *gradients))


def test_a_compiled_step_is_the_step_as_it_is_written() -> None:
    layer, x = block(), randn(3, 6, WIDTH)
    assert "one call of compiled code" in explain(layer)
    with torch.no_grad():
        state = reference = layer(x[:, :2], lengths=torch.tensor([2, 0, 1]))[1]
        for t in range(2, 6):
            found, state = layer.step(x[:, t], state)
            with uncompiled():
                expected, reference = layer.step(x[:, t], reference)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    with refused("range", "model.options.num_heads"):
        seriatim.layer("rg-lru", WIDTH, WIDTH, num_heads=5)
    for option in ("inner_size", "kernel_size"):
        with refused("range", option):
            seriatim.layer("rg-lru", WIDTH, WIDTH, **{option: 0})
    with refused("mismatch", "state"):
        block()(randn(2, 1, WIDTH), seriatim.layer("mamba", WIDTH, WIDTH, block=False).double().initial_state(2))
