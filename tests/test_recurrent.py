"""The recurrent architectures against second derivations of their equations; dropped weights, zoneout, the scan."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.layer import SequenceLayer
from seriatim.layers import from_torch, to_torch
from seriatim.layers import scan as scan_module
from seriatim.layers.scan import linear_scan
from seriatim.state import State, map_state, state_to_dict
from seriatim.unroll.zoneout import Zoneout

from .conftest import as_torch

N, D, H = 3, 5, 6
CELLS = ("residual-rnn", "mgu", "gru-original", "lstm-peephole", "lstm-coupled", "lstm-layernorm")
FUSED = ("rnn", "gru", "lstm")


def build(name: str, **options) -> SequenceLayer:
    """A layer in float64 whose every parameter is random, the biases and peepholes that start at zero included."""
    torch.manual_seed(1)
    layer = seriatim.layer(name, D, H, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def sequence(time: int) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(N, time, D, dtype=torch.float64)


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
        kernel.bias_hh_l0.zero_()
        kernel.weight_ih_l0.copy_(cell.w.weight)
        kernel.bias_ih_l0.copy_(cell.w.bias)
        kernel.weight_hh_l0.copy_(torch.cat([cell.u.weight, cell.u_candidate.weight]))
        for update in (kernel.weight_ih_l0, kernel.weight_hh_l0, kernel.bias_ih_l0):
            rows(update, 1).neg_()  # z and 1 − z exchanged
        assert (textbook(x)[0] - kernel(x)[0]).abs().max() > 1e-3
        rows(cell.w.bias, 0).fill_(50)
        rows(kernel.bias_ih_l0, 0).fill_(50)
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


@pytest.mark.parametrize("name", [*FUSED, *CELLS])
def test_zoneout_is_its_expectation_in_evaluation(name: str) -> None:
    plain, held = build(name), build(name, zoneout=0.3)
    state = plain(sequence(4))[1]
    x = sequence(1)[:, 0]
    _, new = plain.step(x, state)
    output, found = held.step(x, state)
    expected = map_state(lambda old, fresh: 0.3 * old + 0.7 * fresh, state, new)
    map_state(lambda a, b: torch.testing.assert_close(a, b) or a, found, expected)
    torch.testing.assert_close(output, next(iter(state_to_dict(expected).values())))


@pytest.mark.parametrize("name", [*FUSED, *CELLS])
def test_zoneout_keeps_values_at_its_rate_in_training(name: str) -> None:
    torch.manual_seed(0)
    layer = seriatim.layer(name, 8, 64, zoneout=0.3).train()
    state = map_state(torch.randn_like, layer.initial_state(50))
    outputs, new = layer.step(torch.randn(50, 8), state)

    def kept(old: Tensor, fresh: Tensor) -> Tensor:
        assert abs((old == fresh).float().mean().item() - 0.3) < 0.03
        return fresh

    map_state(kept, state, new)
    assert torch.equal(outputs, next(iter(state_to_dict(new).values())))


@pytest.mark.parametrize("name", [*FUSED, *CELLS])
def test_zoneout_over_a_sequence_is_that_of_its_steps(name: str) -> None:
    layer, x = build(name, zoneout=0.4).train(), sequence(6)
    torch.manual_seed(5)
    whole, end = layer(x)
    torch.manual_seed(5)
    state: State = layer.initial_state(N)
    for t in range(6):
        output, state = layer.step(x[:, t], state)
        torch.testing.assert_close(whole[:, t], output)
    map_state(lambda a, b: torch.testing.assert_close(a, b) or a, end, state)


@pytest.mark.parametrize("name", [*FUSED, *CELLS])
def test_rates_of_zero_change_nothing(name: str) -> None:
    plain, other = build(name).train(), build(name, zoneout=0.0, weight_dropout=0.0).train()
    assert torch.equal(plain(sequence(5))[0], other(sequence(5))[0])
    assert plain.state_dict().keys() == other.state_dict().keys()


def test_zoneout_leaves_an_output_that_is_no_part_of_the_state() -> None:
    class Doubled(seriatim.RecurrentCell):
        input_size = output_size = D

        def initial_state(self, batch_size: int) -> State:
            return torch.zeros(batch_size, D)

        def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
            return 2 * (state + inputs), state + inputs

    x, state = torch.ones(2, D), torch.zeros(2, D)
    output, new = Zoneout(Doubled(), 0.25).eval()(x, state)
    torch.testing.assert_close(output, 2 * x)
    torch.testing.assert_close(new, 0.75 * x)
    with pytest.raises(ValueError, match="names no weights to drop"):
        seriatim.Recurrent(Doubled(), weight_dropout=0.5)


def recurrent_matrices(layer: SequenceLayer) -> list[nn.Parameter]:
    if hasattr(layer, "weight_hh_l0"):
        return [layer.weight_hh_l0]
    return [layer.cell.get_parameter(name) for name in layer.recurrent_weights]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("zoneout", [0.0, 0.3])
@pytest.mark.parametrize("name", [*FUSED, *CELLS])
def test_weight_dropout_holds_one_mask_over_a_whole_call(name: str, zoneout: float, ragged: bool) -> None:
    layer = build(name, weight_dropout=0.5, zoneout=zoneout).train()
    matrices, x = recurrent_matrices(layer), sequence(8)
    lengths = torch.tensor([8, 0, 5]) if ragged else None
    torch.manual_seed(7)
    found, _ = layer(x, lengths=lengths)
    gradients = torch.autograd.grad(found.sum(), matrices)

    torch.manual_seed(7)
    masks = [nn.functional.dropout(torch.ones_like(matrix), 0.5) for matrix in matrices]
    layer.weight_dropout = 0.0
    with torch.no_grad():
        for matrix, mask in zip(matrices, masks, strict=True):
            matrix *= mask
    expected, _ = layer(x, lengths=lengths)
    torch.testing.assert_close(found, expected)
    for gradient, mask in zip(gradients, masks, strict=True):
        assert 0.2 < (mask == 0).double().mean() < 0.8
        assert torch.all(gradient[mask == 0] == 0)


@pytest.mark.parametrize("name", [*FUSED, *CELLS])
def test_weight_dropout_is_for_training_alone_and_seeded(name: str) -> None:
    plain, dropped, x = build(name), build(name, weight_dropout=0.5), sequence(5)
    assert torch.equal(plain(x)[0], dropped(x)[0])
    assert torch.equal(plain.step(x[:, 0], plain.initial_state(N))[0], dropped.step(x[:, 0], plain.initial_state(N))[0])
    dropped.train()
    torch.manual_seed(4)
    first, second = dropped(x)[0], dropped(x)[0]
    torch.manual_seed(4)
    assert torch.equal(first, dropped(x)[0])
    assert not torch.equal(first, second)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in dropped.named_parameters()]


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
@pytest.mark.parametrize("option", ["weight_dropout", "zoneout"])
@pytest.mark.parametrize("name", ["lstm", "mgu"])
def test_rates_out_of_range_are_named(name: str, option: str, rate: float) -> None:
    with pytest.raises(ValueError, match=rf"{option} must lie in \[0, 1\); got {rate}"):
        seriatim.layer(name, D, H, **{option: rate})


@pytest.mark.parametrize("bias", [True, False])
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
    with pytest.raises(ValueError, match=r"projection_size must lie in 0\.\.5"):
        seriatim.layer("lstm", D, H, projection_size=size)


def scanned(decays: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """The obvious loop."""
    states = []
    for t in range(decays.shape[1]):
        state = decays[:, t] * state + inputs[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


@pytest.mark.parametrize("wide", [0, 10**9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("time", [1, 2, 4, 7, 17, 63])
def test_the_scan_is_the_obvious_loop(time: int, dtype: torch.dtype, wide: int, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "WIDE", wide)
    torch.manual_seed(0)
    shapes = ((2, time, 3, 2), (2, time, 3, 2), (2, 3, 2))
    given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    weights = torch.randn(shapes[0], dtype=dtype)
    found, expected = linear_scan(*given), scanned(*given)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum().abs(), given),
        torch.autograd.grad((expected * weights).sum().abs(), given),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("wide", [0, 10**9])
@pytest.mark.parametrize("time", [1, 5, 11])
def test_the_scan_has_the_right_gradient(time: int, wide: int, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "WIDE", wide)
    torch.manual_seed(0)
    shapes = ((2, time, 2), (2, time, 2), (2, 2))
    assert torch.autograd.gradcheck(
        linear_scan, [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    )


@pytest.mark.parametrize("decay", [0.0, 1e-30, -0.5, 1.0])
def test_the_scan_stays_exact_where_products_vanish(decay: float) -> None:
    torch.manual_seed(0)
    inputs, start = torch.randn(1, 300, 4), torch.randn(1, 4)
    decays = torch.full_like(inputs, decay).requires_grad_()
    found = linear_scan(decays, inputs, start)
    torch.testing.assert_close(found, scanned(decays, inputs, start))
    found.sum().backward()
    assert decays.grad.isfinite().all()


def test_the_scan_takes_views_and_leaves_them_alone() -> None:
    torch.manual_seed(0)
    decays = torch.rand(4, dtype=torch.float64).expand(2, 50, 4)
    inputs = torch.randn(50, 2, 4, dtype=torch.float64).transpose(0, 1)
    start = torch.randn(1, 4, dtype=torch.float64).expand(2, 4)
    before = [leaf.clone() for leaf in (decays, inputs, start)]
    torch.testing.assert_close(linear_scan(decays, inputs, start), scanned(decays, inputs, start))
    assert all(torch.equal(a, b) for a, b in zip(before, (decays, inputs, start), strict=True))


def test_the_scan_names_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(batch, time, \.\.\.\)"):
        linear_scan(torch.ones(2, 3, 4), torch.ones(2, 3, 5), torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"start \(batch, \.\.\.\)"):
        linear_scan(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.ones(2, 5))
