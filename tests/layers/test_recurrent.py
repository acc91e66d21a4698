"""The recurrent architectures against second derivations of their equations; projections."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.state import State, map_state, state_to_dict
from seriatim.layers import from_torch, to_torch

from ..conftest import as_torch
from ..exhaustive import parameters
from ..refusals import refused
from .recurrences import CELLS, D, H, N, build, sequence


def rows(matrix: Tensor, gate: int) -> Tensor:
    return matrix[gate * H : (gate + 1) * H]


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def normalised(v: Tensor, gain: Tensor, shift: Tensor | float) -> Tensor:
    mean = v.mean(1, keepdim=True)
    variance = ((v - mean) ** 2).mean(1, keepdim=True)
    return gain * (v - mean) / (variance + 1e-5) ** 0.5 + shift


def by_hand(name: str, p: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of every architecture, gate by gate and matrix by matrix."""

    def gate(i: int, seen: Tensor = h) -> Tensor:
        return x @ rows(p["w.weight"], i).T + seen @ rows(p["u.weight"], i).T + rows(p["w.bias"], i)

    if name == "residual-rnn":
        return h + torch.tanh(gate(0)), c
    if name == "mgu":
        z = sigma(gate(0))
        return h - z * h + z * torch.tanh(gate(1)), c
    if name == "gru-original":
        r, z = sigma(gate(0)), sigma(gate(1))
        w, b = rows(p["w.weight"], 2), rows(p["w.bias"], 2)
        candidate = torch.tanh(x @ w.T + (r * h) @ p["u_candidate.weight"].T + b)
        return h - z * h + z * candidate, c
    if name == "lstm-peephole":
        p_i, p_f, p_o = (torch.diag(peephole) for peephole in p["peepholes"])
        new = sigma(gate(1) + c @ p_f) * c + sigma(gate(0) + c @ p_i) * torch.tanh(gate(2))
        return sigma(gate(3) + new @ p_o) * torch.tanh(new), new
    if name == "lstm-coupled":
        f = sigma(gate(0))
        new = f * c + torch.tanh(gate(1)) - f * torch.tanh(gate(1))
        return sigma(gate(2)) * torch.tanh(new), new
    assert name == "lstm-layernorm"
    whole = normalised(x @ p["w.weight"].T, p["norm_inputs.weight"], p["norm_inputs.bias"])
    whole = whole + normalised(h @ p["u.weight"].T, p["norm_hidden.weight"], 0.0)
    i, f, candidate, o = (whole[:, k * H : (k + 1) * H] for k in range(4))
    new = sigma(f) * c + sigma(i) * torch.tanh(candidate)
    return sigma(o) * torch.tanh(normalised(new, p["norm_cell.weight"], p["norm_cell.bias"])), new


@pytest.mark.parametrize("time", [1, 7])
@pytest.mark.parametrize("name", CELLS)
def test_every_cell_is_its_equations_in_values_and_gradients(name: str, time: int) -> None:
    layer = build(name)
    x = sequence(time).requires_grad_()
    torch.manual_seed(3)
    start = map_state(lambda leaf: torch.randn_like(leaf).requires_grad_(), layer.initial_state(N))
    leaves = list(state_to_dict(start).values())
    parameters = {key.removeprefix("cell."): value for key, value in layer.named_parameters()}
    weights = torch.randn(N, time, H, dtype=torch.float64)

    h, c = leaves[0], leaves[-1]
    steps = []
    for t in range(time):
        h, c = by_hand(name, parameters, x[:, t], h, c)
        steps.append(h)
    expected = torch.stack(steps, dim=1)
    found, _ = layer(x, start)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), [x, *leaves, *parameters.values()]),
        torch.autograd.grad((expected * weights).sum(), [x, *leaves, *parameters.values()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_mingru_is_its_equations_in_values_and_gradients() -> None:
    layer, x = build("mingru"), sequence(9).requires_grad_()
    torch.manual_seed(3)
    start = torch.randn(N, H, dtype=torch.float64, requires_grad=True)
    h, steps = start, []
    for t in range(9):
        z = sigma(x[:, t] @ rows(layer.w.weight, 0).T + rows(layer.w.bias, 0))
        h = h - z * h + z * (x[:, t] @ rows(layer.w.weight, 1).T + rows(layer.w.bias, 1))
        steps.append(h)
    expected = torch.stack(steps, dim=1)
    found, end = layer(x, start)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(end, expected[:, -1])
    weights = torch.randn(N, 9, H, dtype=torch.float64)
    sources = [x, start, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), sources),
        torch.autograd.grad((expected * weights).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", [*CELLS, "mingru"])
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_nothing_in_gives_nothing_out(name: str, shape: tuple[int, int]) -> None:
    layer = build(name)
    x = torch.zeros(*shape, D, dtype=torch.float64, requires_grad=True)
    outputs, state = layer(x)
    assert outputs.shape == (*shape, H)
    assert all(leaf.shape == (shape[0], H) for leaf in state_to_dict(state).values())
    total = outputs.sum() + sum(leaf.sum() for leaf in state_to_dict(state).values())
    if total.requires_grad:
        total.backward()


def test_both_grus_coincide_where_the_reset_gate_is_open() -> None:
    textbook, kernel, x = build("gru-original"), build("gru"), sequence(7)
    cell = textbook.cell
    with torch.no_grad():
        kernel.cell.bias_hh_l0.zero_()
        kernel.cell.weight_ih_l0.copy_(cell.w.weight)
        kernel.cell.bias_ih_l0.copy_(cell.w.bias)
        kernel.cell.weight_hh_l0.copy_(torch.cat([cell.u.weight, cell.u_candidate.weight]))
        for update in (kernel.cell.weight_ih_l0, kernel.cell.weight_hh_l0, kernel.cell.bias_ih_l0):
            rows(update, 1).neg_()  # z and 1 − z exchanged
        assert (textbook(x)[0] - kernel(x)[0]).abs().max() > 1e-3
        rows(cell.w.bias, 0).fill_(50)
        rows(kernel.cell.bias_ih_l0, 0).fill_(50)
    torch.testing.assert_close(textbook(x)[0], kernel(x)[0])


def test_without_peepholes_it_is_the_ordinary_lstm() -> None:
    layer, x = build("lstm-peephole"), sequence(7)
    theirs = nn.LSTM(D, H, batch_first=True).double()
    theirs.load_state_dict(
        {
            "weight_ih_l0": layer.cell.w.weight,
            "weight_hh_l0": layer.cell.u.weight,
            "bias_ih_l0": layer.cell.w.bias,
            "bias_hh_l0": torch.zeros(4 * H),
        }
    )
    assert not torch.allclose(layer(x)[0], theirs(x)[0])
    nn.init.zeros_(layer.cell.peepholes)
    torch.testing.assert_close(layer(x)[0], theirs(x)[0])


@pytest.mark.parametrize(("name", "gate"), [("lstm-peephole", 1), ("lstm-coupled", 0), ("lstm-layernorm", 1)])
def test_forget_gates_start_where_they_are_told(name: str, gate: int) -> None:
    cell = seriatim.layer(name, D, H, forget_bias=2.5).cell
    bias = cell.norm_inputs.bias if name == "lstm-layernorm" else cell.w.bias
    expected = torch.zeros_like(bias)
    rows(expected, gate).fill_(2.5)
    assert torch.equal(bias, expected)
    recurrent = rows(cell.u.weight, gate)
    torch.testing.assert_close(recurrent @ recurrent.T, torch.eye(H))
    if name != "lstm-layernorm":  # its biases belong to norms
        cell.reset_parameters()
        assert torch.equal(cell.w.bias, expected)


def test_an_lstm_that_is_initialised_again_has_its_forget_bias() -> None:
    cell = seriatim.layer("lstm", D, H, forget_bias=2.5).cell
    cell.reset_parameters()
    expected = torch.zeros(4, H)
    expected[1] = 2.5
    assert torch.equal(cell.bias_ih_l0, expected.flatten())


def test_layer_normalisation_ignores_the_scale_of_the_inputs() -> None:
    layer, x = build("lstm-layernorm"), sequence(5)
    layer.cell.norm_inputs.eps = 0.0
    torch.testing.assert_close(layer(x)[0], layer(1000 * x)[0])


def test_a_residual_network_starts_stable() -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("residual-rnn", 32, 64)
    x = torch.randn(4, 400, 32)
    start = torch.zeros(4, 64, requires_grad=True)
    outputs, end = layer(x, start)
    assert outputs.abs().max() < 64
    (early,) = torch.autograd.grad(end.sum(), start, retain_graph=True)
    assert early.abs().max() <= 1  # no direction explodes over 400 steps
    (late,) = torch.autograd.grad(outputs[:, 15].sum(), start)
    assert late.abs().max() > 0.3  # and some memories last


def test_a_residual_network_learns_what_came_three_steps_before() -> None:
    torch.manual_seed(0)
    layer, head = seriatim.layer("residual-rnn", 4, 32), nn.Linear(32, 4)
    adam = torch.optim.Adam([*layer.parameters(), *head.parameters()], 0.01)
    for _ in range(150):
        x = torch.randint(4, (16, 24))
        logits = head(layer(nn.functional.one_hot(x, 4).float())[0][:, 3:])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, :-3].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss < 0.7  # chance is 1.39


@pytest.mark.parametrize("bias", parameters([True, False], everyday=[True]))
@pytest.mark.parametrize(("num_layers", "bidirectional"), [(1, False), (3, False), (2, True)])
def test_projections_agree_with_torch_in_values_and_gradients(num_layers: int, bidirectional: bool, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.LSTM(D, H, num_layers, bias=bias, bidirectional=bidirectional, proj_size=4, batch_first=True).double()
    ours, x = from_torch(theirs), sequence(7).requires_grad_()
    assert ours.output_size == 4 * (1 + bidirectional)
    weights = torch.randn(N, 7, ours.output_size, dtype=torch.float64)
    found = []
    for model in (theirs, ours):
        outputs, _ = model(x)
        gradients = torch.autograd.grad((outputs * weights).sum(), [x, *model.parameters()])
        found.append((outputs, gradients))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1][0], found[1][1][0])
    translated = as_torch(ours, found[1][1][1:])
    for (name, _), gradient in zip(theirs.named_parameters(), found[0][1][1:], strict=True):
        torch.testing.assert_close(translated[name], gradient)
    for name, weight in to_torch(ours).state_dict().items():
        assert torch.equal(weight, theirs.state_dict()[name])


def test_a_projected_step_is_the_kernels() -> None:
    layer, x = build("lstm", projection_size=4), sequence(3)
    state: State = layer.initial_state(N)
    assert [leaf.shape[1] for leaf in state_to_dict(state).values()] == [4, H]
    whole, end = layer(x)
    for t in range(3):
        output, state = layer.step(x[:, t], state)
        torch.testing.assert_close(output, whole[:, t])
    map_state(lambda a, b: torch.testing.assert_close(a, b) or a, state, end)


@pytest.mark.parametrize("size", [-1, H, H + 1])
def test_a_projection_must_narrow(size: int) -> None:
    with refused("range", "model.options.projection_size"):
        seriatim.layer("lstm", D, H, projection_size=size)
