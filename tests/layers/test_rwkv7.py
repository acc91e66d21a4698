"""RWKV-7 beside its equations in NumPy, written with the paper's orientation of the state, one step after another."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.layers.rwkv7 import RWKV7
from seriatim.recurrence import explain

from ..refusals import refused
from .recurrences import D, sequence

HEADS, SIZE, H = 2, 3, 6


def build(**options) -> RWKV7:
    torch.manual_seed(1)
    layer = RWKV7(D, H, num_heads=HEADS, rank=4, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_definition(layer: RWKV7, x: Tensor) -> np.ndarray:
    """One row after another; S is (values, keys), and the transition multiplies it from the right."""
    p = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    rows = []
    for row in x.detach().numpy():
        memory, last, outputs = np.zeros((HEADS, SIZE, SIZE)), np.zeros(D), []
        for now in row:
            xr, xw, xk, xv, xa, xg = (now + mix * (last - now) for mix in p["shift"])
            r, k, v = p["r_proj.weight"] @ xr, p["k_proj.weight"] @ xk, p["v_proj.weight"] @ xv
            w = np.exp(-np.exp(-0.5) * sigmoid(p["w0"] + np.tanh(xw @ p["w1"]) @ p["w2"]))
            a = sigmoid(p["a0"] + xa @ p["a1"] @ p["a2"])
            g = sigmoid(xg @ p["g1"]) @ p["g2"]
            removed, written = k * p["k_k"], k * (1 + (a - 1) * p["k_a"])
            mixed = np.zeros(H)
            for h in range(HEADS):
                part = slice(h * SIZE, (h + 1) * SIZE)
                key = removed[part] / np.linalg.norm(removed[part])
                memory[h] = memory[h] @ (np.diag(w[part]) - np.outer(key, a[part] * key)) + np.outer(
                    v[part], written[part]
                )
                o = memory[h] @ r[part]
                o = (o - o.mean()) / np.sqrt(o.var() + 64e-5) * p["norm.weight"][part] + p["norm.bias"][part]
                mixed[part] = o + (r[part] * p["r_k"][h] * written[part]).sum() * v[part]
            outputs.append(p["o_proj.weight"] @ (mixed * g))
            last = now
        rows.append(outputs)
    return np.array(rows)


@pytest.mark.parametrize("time", [1, 9, 130])
def test_it_is_its_equations(time: int) -> None:
    layer, x = build(), sequence(time)
    np.testing.assert_allclose(layer(x)[0].detach().numpy(), by_definition(layer, x), rtol=1e-9, atol=1e-10)


def test_gradients_are_those_of_finite_differences() -> None:
    layer, x = build(), sequence(4)

    def outputs(x: Tensor, *values: Tensor) -> Tensor:
        names = [name for name, _ in layer.named_parameters()]
        found: tuple[Tensor, object] = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return found[0].sin().sum()

    assert torch.autograd.gradcheck(outputs, (x[:1].requires_grad_(), *layer.parameters()), fast_mode=True)


def test_it_starts_as_the_lowest_layer_of_the_authors() -> None:
    """The formulas of their file, for a width of 8 in two heads: what a loop over features gives."""
    layer = RWKV7(8, 8, num_heads=2)
    feature = np.arange(8)
    zigzag = (feature % 4 - 1.5) / 1.5
    zigzag = zigzag * np.abs(zigzag)
    for mix, power in zip(layer.shift.detach(), (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
        np.testing.assert_allclose(mix, 1 - (feature / 8) ** power, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.w0.detach(), -6 + 6 * feature / 7 + 0.5 + 2.5 * zigzag, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.a0.detach(), -0.19 + 0.3 * zigzag + 0.4 * (feature / 7 - 0.5), atol=1e-6)
    np.testing.assert_allclose(layer.k_k.detach(), 0.71 - 0.1 * (feature / 7 - 0.5), atol=1e-6)
    zeros = ("w1", "a1", "g1", "o_proj.weight", "norm.bias")
    assert not any(value.any() for name, value in layer.named_parameters() if name in zeros)
    assert layer.k_proj.weight.abs().max() <= 0.05 * 8**-0.5 < layer.v_proj.weight.abs().max() <= 0.5 * 8**-0.5
    up = layer.w2.detach()
    torch.testing.assert_close(up.T @ up, 0.01 * up.shape[0] / up.shape[1] * torch.eye(8))


@pytest.mark.parametrize("cut", [0, 1, 5, 70])
def test_gates_of_any_size_give_finite_outputs_and_gradients(cut: int) -> None:
    layer = build()
    with torch.no_grad():
        layer.w0.copy_(1e4 * torch.tensor([-1.0, 1, 0, 1, 1, -1]))
        layer.a0.copy_(1e4 * torch.tensor([1.0, -1, 0, 1, 1, -1]))
    x = sequence(70).requires_grad_()
    first, state = layer(x[:, :cut])
    second, state = layer(x[:, cut:], state)
    outputs = torch.cat([first, second], dim=1)
    torch.testing.assert_close(outputs, layer(x)[0], rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(outputs.sum() + state.memory.sum(), [x, *layer.parameters()])
    assert all(each.isfinite().all() for each in (outputs, *state, *gradients))


def test_inputs_of_zeros_have_gradients() -> None:
    """Where a key has no direction."""
    layer, x = build(), torch.zeros(2, 3, D, dtype=torch.float64, requires_grad=True)
    outputs, state = layer(x)
    gradients = torch.autograd.grad(outputs.sum(), [x, *layer.parameters()])
    assert all(each.isfinite().all() for each in (outputs, *state, *gradients))


def test_steps_run_in_compiled_code() -> None:
    assert "one call of compiled code" in explain(seriatim.layer("rwkv7", 8, 8, num_heads=2, block=False))


def test_in_half_precision_its_matrix_stays_float32() -> None:
    layer = build().bfloat16()
    outputs, state = layer(sequence(5).bfloat16())
    assert (outputs.dtype, state.memory.dtype) == (torch.bfloat16, torch.float32)
    assert outputs.isfinite().all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with refused("range", "model.options.num_heads"):
        RWKV7(6, 6, num_heads=4)
