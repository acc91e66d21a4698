"""M²RNN beside its equations, row by row and head by head."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.layers.m2rnn import M2RNN
from seriatim.recurrence import explain

from ..refusals import refused
from .recurrences import D, sequence

HEADS, K, V, H = 2, 4, 3, 6


def build(**options) -> M2RNN:
    torch.manual_seed(1)
    layer = M2RNN(D, H, num_heads=HEADS, head_size=K, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def by_definition(layer: M2RNN, x: Tensor) -> Tensor:
    """One row and one head after another, with the matrices of the equations."""
    padded = F.pad(layer.qkv_proj(x), (0, 0, layer.conv_weight.shape[0] - 1, 0))
    u = F.silu(F.conv1d(padded.mT, layer.conv_weight.t().unsqueeze(1), groups=padded.shape[2]).mT)
    f = torch.exp(-layer.A_log.exp() * torch.log1p(torch.exp(layer.f_proj(x) + layer.dt_bias)))
    rows = []
    for row in range(len(x)):
        heads = []
        for h in range(HEADS):
            memory, outputs = x.new_zeros(K, V), []
            for t in range(x.shape[1]):
                q, k = u[row, t, h * K : (h + 1) * K], u[row, t, (HEADS + h) * K : (HEADS + h + 1) * K]
                v = u[row, t, 2 * HEADS * K + h * V : 2 * HEADS * K + (h + 1) * V]
                memory = f[row, t, h] * memory + (1 - f[row, t, h]) * torch.tanh(
                    memory @ layer.cell.weight[h] + torch.outer(k, v)
                )
                outputs.append(memory.mT @ q + layer.D[h] * v)
            heads.append(torch.stack(outputs))
        rows.append(torch.cat(heads, dim=1))
    gated = torch.stack(rows) * F.silu(layer.g_proj(x))
    return layer.o_proj(F.rms_norm(gated, (H,), layer.norm.weight, layer.norm.epsilon))


def test_it_is_its_equations() -> None:
    layer, x = build(), sequence(9).requires_grad_()
    ours, theirs = layer(x)[0], by_definition(layer, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()]) for y in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_matrix_starts_as_the_identity() -> None:
    assert torch.equal(M2RNN(8, 8, num_heads=2).cell.weight, torch.eye(4).expand(2, 4, 4))


def test_a_closed_gate_keeps_the_state_and_an_open_one_replaces_it() -> None:
    layer, x = build(), sequence(4)
    _, before = layer(x)
    with torch.no_grad():
        layer.f_proj.weight.zero_()
        layer.dt_bias.fill_(-1e4)
    torch.testing.assert_close(layer(x, before)[1].memory, before.memory, rtol=0, atol=0)
    with torch.no_grad():
        layer.dt_bias.fill_(1e4)
    _, after = layer(x, before)
    assert (after.memory.abs() < 1).all()


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_gates_of_any_size_give_finite_outputs_and_gradients(cut: int) -> None:
    layer = build()
    x = (1e4 * sequence(7)).requires_grad_()
    first, state = layer(x[:, :cut])
    second, state = layer(x[:, cut:], state)
    outputs = torch.cat([first, second], dim=1)
    torch.testing.assert_close(outputs, layer(x)[0])
    gradients = torch.autograd.grad(outputs.sum() + state.memory.sum(), [x, *layer.parameters()])
    assert all(each.isfinite().all() for each in (outputs, *state, *gradients))


def test_how_it_runs_is_said_in_words() -> None:
    assert "M2RNNCell runs" in explain(seriatim.layer("m2rnn", 8, 8, block=False))


def test_in_half_precision_its_matrix_stays_float32() -> None:
    layer = build().bfloat16()
    outputs, state = layer(sequence(5).bfloat16())
    assert (outputs.dtype, state.memory.dtype) == (torch.bfloat16, torch.float32)
    assert outputs.isfinite().all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with refused("range", "model.options.num_heads"):
        M2RNN(6, 6, num_heads=4)
    with refused("range", "head_size"):
        M2RNN(6, 6, head_size=0)
