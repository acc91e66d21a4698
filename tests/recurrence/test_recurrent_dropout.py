"""What is dropped in a recurrence: zoneout, which holds values of the state back, and dropped weights."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.contract import RecurrentCell, SequenceLayer
from seriatim.core.random_masks import dropout_mask
from seriatim.core.state import State, map_state, state_to_dict
from seriatim.layers import options_of
from seriatim.layers.registry import REGISTRY
from seriatim.recurrence.recurrent import Zoneout

from ..exhaustive import parameters
from ..layers.recurrences import CELLS, FUSED, D, H, N, build, sequence
from ..quick_compiler import quickly
from ..refusals import refused

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


NAMES = parameters([*FUSED, *CELLS], everyday=[*FUSED, "mgu", "lstm-peephole"])
"""Every cell; those with the same operations as others are left to the exhaustive tests."""


@pytest.mark.parametrize("name", NAMES)
def test_zoneout_is_its_expectation_in_evaluation(name: str) -> None:
    plain, held = build(name), build(name, zoneout=0.3)
    state = plain(sequence(4))[1]
    x = sequence(1)[:, 0]
    _, new = plain.step(x, state)
    output, found = held.step(x, state)
    expected = map_state(lambda old, fresh: 0.3 * old + 0.7 * fresh, state, new)
    map_state(lambda a, b: torch.testing.assert_close(a, b) or a, found, expected)
    torch.testing.assert_close(output, next(iter(state_to_dict(expected).values())))


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
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
    with refused("unsupported"):
        seriatim.Recurrent(Doubled(), weight_dropout=0.5)


def recurrent_matrices(layer: SequenceLayer) -> list[nn.Parameter]:
    return [layer.cell.get_parameter(name) for name in layer.recurrent_weights]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("zoneout", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_weight_dropout_holds_one_mask_over_a_whole_call(name: str, zoneout: float, ragged: bool) -> None:
    layer = build(name, weight_dropout=0.5, zoneout=zoneout).train()
    matrices, x = recurrent_matrices(layer), sequence(8)
    lengths = torch.tensor([8, 0, 5]) if ragged else None
    torch.manual_seed(7)
    found, _ = layer(x, lengths=lengths)
    gradients = torch.autograd.grad(found.sum(), matrices)

    torch.manual_seed(7)
    masks = [dropout_mask(tuple(matrix.shape), 0.5, matrix) for matrix in matrices]
    layer.weight_dropout = 0.0
    with torch.no_grad():
        for matrix, mask in zip(matrices, masks, strict=True):
            matrix *= mask
    expected, _ = layer(x, lengths=lengths)
    torch.testing.assert_close(found, expected)
    for gradient, mask in zip(gradients, masks, strict=True):
        assert 0.2 < (mask == 0).double().mean() < 0.8
        assert torch.all(gradient[mask == 0] == 0)


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
def test_rates_of_zero_change_nothing(name: str) -> None:
    plain, other = build(name).train(), build(name, zoneout=0.0, weight_dropout=0.0).train()
    assert torch.equal(plain(sequence(5))[0], other(sequence(5))[0])
    assert plain.state_dict().keys() == other.state_dict().keys()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
@pytest.mark.parametrize("option", ["weight_dropout", "zoneout"])
@pytest.mark.parametrize("name", ["lstm", "mgu"])
def test_rates_out_of_range_are_named(name: str, option: str, rate: float) -> None:
    with refused("range", option):
        seriatim.layer(name, D, H, **{option: rate})


class Nameless(RecurrentCell):
    """h_t = tanh(W x_t + h_{t-1}); it names no weights that could be dropped."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> State:
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        h = torch.tanh(self.w(inputs) + state)
        return h, h


def test_weight_dropout_is_an_option_of_cells_that_name_weights() -> None:
    name = "nameless-cell"
    REGISTRY[name] = Nameless
    try:
        assert "weight_dropout" in options_of("gru")
        assert "weight_dropout" not in options_of(name)
        assert "zoneout" in options_of(name)
        with refused("unknown"):
            seriatim.layer(name, 3, 4, weight_dropout=0.1)
        mixed = seriatim.layer(f"{name},gru", 4, 4, weight_dropout=0.1)
        assert [layer.weight_dropout for layer in mixed.layers] == [0.0, 0.1]
    finally:
        del REGISTRY[name]
