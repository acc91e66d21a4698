"""Agreement with `torch.nn`, and the laws' neighbours: stacks, activations, the registry."""

import pytest
import torch
from torch import nn

import seriatim
from seriatim.layers import from_torch, to_torch

from ..conftest import as_torch
from ..exhaustive import parameters
from ..refusals import refused

TWINS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
SHAPES = ((1, False), (3, False), (2, True))


@pytest.mark.parametrize("bias", parameters([True, False], everyday=[True]))
@pytest.mark.parametrize(("num_layers", "bidirectional"), SHAPES)
@pytest.mark.parametrize("kind", TWINS)
def test_equal_to_torch_in_values_and_gradients(kind: str, num_layers: int, bidirectional: bool, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = TWINS[kind](5, 6, num_layers, bias=bias, bidirectional=bidirectional, batch_first=True).double()
    ours = from_torch(theirs)
    x = torch.randn(3, 11, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 11, 6 * (1 + bidirectional), dtype=torch.float64)
    found = []
    for model in (theirs, ours):
        outputs, _ = model(x)
        found.append((outputs, torch.autograd.grad((outputs * weights).sum(), [x, *model.parameters()])))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][1][0], found[1][1][0], rtol=1e-12, atol=1e-12)
    gradients = as_torch(ours, found[1][1][1:])
    for (name, _), gradient in zip(theirs.named_parameters(), found[0][1][1:], strict=True):
        torch.testing.assert_close(gradients.pop(name), gradient, rtol=1e-12, atol=1e-12)
    assert not gradients


@pytest.mark.parametrize("kind", TWINS)
def test_variable_lengths_agree_with_packed_sequences(kind: str) -> None:
    torch.manual_seed(0)
    theirs = TWINS[kind](5, 6, batch_first=True).double()
    ours, x, lengths = from_torch(theirs), torch.randn(4, 9, 5, dtype=torch.float64), torch.tensor([3, 9, 1, 7])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    outputs, end = theirs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    found, state = ours(x, lengths=lengths)
    torch.testing.assert_close(found, expected)
    for leaf, wanted in zip(state if kind == "LSTM" else (state,), end if kind == "LSTM" else (end,), strict=True):
        torch.testing.assert_close(leaf, wanted[0])


@pytest.mark.parametrize(("num_layers", "bidirectional"), SHAPES)
@pytest.mark.parametrize("kind", TWINS)
def test_weights_go_to_torch_and_back(kind: str, num_layers: int, bidirectional: bool) -> None:
    theirs = TWINS[kind](5, 6, num_layers, bidirectional=bidirectional)
    again = to_torch(from_torch(theirs))
    assert type(again) is type(theirs)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


def test_conversion_keeps_type_and_dropout() -> None:
    theirs = nn.LSTM(5, 6, 2, dropout=0.3).double()
    ours = from_torch(theirs)
    again = to_torch(ours)
    assert again.dropout == 0.3
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


def test_a_residual_connection_around_one_layer() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("gru", 4, 4, residual=True), torch.randn(2, 3, 4)
    torch.testing.assert_close(layer(x)[0], x + layer.layers[0](x)[0])


def test_a_cell_shares_state_dictionaries_with_torch() -> None:
    ours, theirs = seriatim.layer("lstm", 5, 6).cell, nn.LSTM(5, 6)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


def test_what_torch_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="tanh and relu"):
        to_torch(seriatim.layer("rnn", 5, 6, activation="sin"))
    with pytest.raises(ValueError, match="no module"):
        to_torch(seriatim.layer("rnn", 5, 6, num_layers=2, residual=True))
    with pytest.raises(ValueError, match="one width"):
        to_torch(seriatim.Stack([seriatim.layer("gru", 5, 6), seriatim.layer("gru", 6, 7)]))
    with pytest.raises(ValueError, match="one width"):
        to_torch(seriatim.Stack([seriatim.layer("rnn", 5, 6), seriatim.layer("rnn", 6, 6, activation="relu")]))
    with pytest.raises(ValueError, match="no module"):
        to_torch(seriatim.layer("gru", 5, 6, num_layers=2, dropout=0.1, variational_dropout=True))
    with pytest.raises(ValueError, match="weight dropout"):
        to_torch(seriatim.layer("gru", 5, 6, zoneout=0.1))
    with pytest.raises(ValueError, match="RNN, LSTM or GRU"):
        from_torch(nn.Linear(5, 6))


@pytest.mark.parametrize("time", [1, 7])
def test_named_activations_are_the_equation(time: int) -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("rnn", 3, 4, activation="softplus").double()
    x = torch.randn(2, time, 3, dtype=torch.float64)
    h = torch.zeros(2, 4, dtype=torch.float64)
    bias = layer.cell.bias_ih_l0 + layer.cell.bias_hh_l0
    for t in range(time):
        h = nn.functional.softplus(x[:, t] @ layer.cell.weight_ih_l0.T + h @ layer.cell.weight_hh_l0.T + bias)
    torch.testing.assert_close(layer(x)[1], h)


def test_a_residual_stack_adds_what_went_in() -> None:
    torch.manual_seed(0)
    plain = seriatim.layer("gru", 4, 4, num_layers=2)
    residual = seriatim.layer("gru", 4, 4, num_layers=2, residual=True)
    residual.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, 4)
    first = x + plain.layers[0](x)[0]
    torch.testing.assert_close(residual(x)[0], first + plain.layers[1](first)[0])


def test_variational_dropout_keeps_one_mask_over_time() -> None:
    from seriatim.layers.pointwise import VariationalDropout

    torch.manual_seed(0)
    drop, x = VariationalDropout(0.5), torch.ones(64, 9, 32)
    y = drop(x)
    assert torch.equal(y, y[:, :1].expand_as(y))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert abs((y == 0).float().mean().item() - 0.5) < 0.05
    assert drop.eval()(x) is x


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("shape", [(200_001,), (64, 9, 350)])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate: float, shape: tuple[int, ...]) -> None:
    from seriatim.layers.pointwise import Dropout

    torch.manual_seed(0)
    drop, x = Dropout(rate), torch.ones(shape, dtype=torch.float64, requires_grad=True)
    y = drop(x)
    deviation = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs((y == 0).double().mean().item() - rate) < 5 * deviation
    assert abs(y.mean().item() - 1) < 5 * deviation / (1 - rate)
    dropped = (y.detach() == 0).flatten()
    beside = (dropped[1:] & dropped[:-1]).double().mean().item()  # neighbours share a draw of 64 bits
    assert abs(beside - rate**2) < 10 * deviation
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())  # the gradient passes where the value did
    torch.manual_seed(0)
    assert torch.equal(drop(x), y)
    assert drop.eval()(x) is x


def test_forget_gates_start_open_and_recurrent_weights_orthogonal() -> None:
    layer = seriatim.layer("lstm", 5, 6, forget_bias=2.0)
    assert torch.equal(layer.cell.bias_ih_l0[6:12], torch.full((6,), 2.0))
    gate = layer.cell.weight_hh_l0[12:18]
    torch.testing.assert_close(gate @ gate.T, torch.eye(6))


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "place", "value"),
    [
        (("lstn", 4, 4), {}, "unknown", "", "lstm"),
        (("lstm", 0, 4), {}, "range", "input_size", ""),
        (("lstm", 4, 4), {"num_layers": 0}, "range", "num_layers", ""),
        (("lstm", 4, 4), {"forget_bais": 1}, "unknown", "", "forget_bias"),
        (("lstm", 4, 4), {"forget_bias": "big"}, "range", "model.options.forget_bias", ""),
        (("rnn", 4, 4), {"activation": "tahn"}, "unknown", "model.options.activation", "tanh"),
    ],
)
def test_the_registry_names_what_is_wrong(arguments, options, kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        seriatim.layer(*arguments, **options)


def test_a_stack_refuses_widths_that_do_not_meet() -> None:
    with refused("mismatch", "layers"):
        seriatim.Stack([seriatim.layer("gru", 4, 6), seriatim.layer("gru", 5, 4)])
    with refused("required", "layers"):
        seriatim.Stack([])


def test_parameters_of_norms_are_reset_with_the_others() -> None:
    cell = seriatim.layer("lstm-layernorm", 3, 4, forget_bias=2.0).cell
    fresh = {name: value.clone() for name, value in cell.named_parameters() if name.startswith("norm")}
    with torch.no_grad():
        for value in cell.parameters():
            value.fill_(7.0)
    cell.reset_parameters()
    for name, value in fresh.items():
        torch.testing.assert_close(cell.get_parameter(name), value)
    assert not any((value == 7).any() for value in cell.parameters())
