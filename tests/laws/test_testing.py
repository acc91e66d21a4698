"""`seriatim.testing` accepts layers that keep the contract, and names the law that a layer breaks."""

import copy
import re

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.contract import RecurrentCell, SequenceLayer
from seriatim.core.state import State
from seriatim.testing import LAWS, LawError, check_cell, check_law, check_layer, check_quickly

from ..refusals import refused
from .eight_laws import Decay


class Mean(SequenceLayer):
    """The mean of the inputs so far, which keeps every law; subclasses break one each."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.output_size = 3
        self.weight = torch.nn.Parameter(torch.eye(3))

    def initial_state(self, batch_size: int) -> State:
        return self.zeros(batch_size, 3), self.zeros(batch_size)

    def forward(self, inputs, state=None, *, lengths=None):
        inputs, state, lengths = self.begin(inputs, state, lengths)
        total, count = state
        sums = total.unsqueeze(1) + (inputs @ self.weight).cumsum(1)
        counts = count.unsqueeze(1) + torch.arange(1, inputs.shape[1] + 1).to(inputs)
        outputs = sums / counts.unsqueeze(2)
        time = inputs.shape[1]
        ends = torch.full((len(inputs),), time) if lengths is None else lengths
        outputs = outputs * (torch.arange(time) < ends.unsqueeze(1)).unsqueeze(2)
        last = (ends - 1).clamp(min=0)
        rows = torch.arange(len(inputs))
        if time == 0:
            return outputs, state
        full = (ends > 0).unsqueeze(1)
        return outputs, (torch.where(full, sums[rows, last], total), count + ends.to(count))


class Forgetful(Mean):
    """Starts again at every call."""

    def forward(self, inputs, state=None, *, lengths=None):
        _, end = super().forward(inputs, state, lengths=lengths)
        return super().forward(inputs, lengths=lengths)[0], end


class OtherStep(Mean):
    def step(self, inputs, state):
        outputs, state = super().step(inputs, state)
        return outputs * 1.01, state


class ReadsPadding(Mean):
    def begin(self, inputs, state, lengths):
        state, lengths = self.validate_inputs(inputs, state, lengths)
        return inputs, state, lengths


class CountsEmptyRows(Mean):
    def forward(self, inputs, state=None, *, lengths=None):
        outputs, (total, count) = super().forward(inputs, state, lengths=lengths)
        return outputs, (total, count + 1 if lengths is not None else count)


class LooksAhead(Mean):
    def forward(self, inputs, state=None, *, lengths=None):
        return super().forward(inputs + inputs.flip(1).cumsum(1).flip(1) * 1e-3, state, lengths=lengths)


class ChangesState(Mean):
    def forward(self, inputs, state=None, *, lengths=None):
        outputs, end = super().forward(inputs, state, lengths=lengths)
        if state is not None:
            state[1].add_(1)
        return outputs, end


class MixesRows(Mean):
    def step(self, inputs, state):
        outputs, state = super().step(inputs, state)
        return outputs - outputs.mean(0) * 1e-3, state


class KeepsStateOnTheModule(Mean):
    calls = 0

    def forward(self, inputs, state=None, *, lengths=None):
        self.calls += 1
        outputs, end = super().forward(inputs, state, lengths=lengths)
        return outputs + self.calls, end


class TakesOtherStates(Mean):
    def check_state(self, state, inputs): ...


BROKEN = {
    1: Forgetful,
    2: OtherStep,
    3: ReadsPadding,
    4: CountsEmptyRows,
    5: LooksAhead,
    6: ChangesState,
    7: MixesRows,
    8: TakesOtherStates,
}


@pytest.mark.exhaustive
def test_a_layer_that_keeps_the_laws_is_accepted() -> None:
    check_layer(Mean())
    check_layer(seriatim.layer("gru", 5, 6, bidirectional=True))
    check_cell(Decay(5, 6))


@pytest.mark.parametrize("law", BROKEN)
def test_the_law_that_is_broken_is_named(law: int) -> None:
    message = f"{BROKEN[law].__name__} breaks law {law} ({LAWS[law]})"
    with pytest.raises(LawError, match=re.escape(message)) as raised:
        check_law(BROKEN[law](), law)
    assert raised.value.law == law
    assert isinstance(raised.value, AssertionError)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("layer", [*BROKEN.values(), KeepsStateOnTheModule])
def test_check_layer_finds_every_broken_law(layer: type[Mean]) -> None:
    with pytest.raises(LawError, match=f"{layer.__name__} breaks"):
        check_layer(layer())


def test_the_message_gives_shapes_and_the_largest_deviation() -> None:
    with pytest.raises(LawError, match=r"outputs of shape \(4, 7, 3\) differ by up to \d"):
        check_law(OtherStep(), 2)


def test_a_broken_gradient_is_found() -> None:
    class Detached(Mean):
        def step(self, inputs, state):
            return super().step(inputs.detach(), state)

    with pytest.raises(LawError, match=r"gradients of inputs of shape \(4, 7, 3\) differ by"):
        check_law(Detached(), 2)


@pytest.mark.exhaustive
def test_the_layer_is_not_changed() -> None:
    layer = seriatim.layer("lstm", 5, 6).train()
    before = copy.deepcopy(layer.state_dict())
    check_layer(layer, times=(7,))
    assert layer.training
    for name, value in layer.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


class Cell(RecurrentCell):
    """A cell that keeps the contract; subclasses break it."""

    def __init__(self, input_size: int = 3, hidden_size: int = 4) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = torch.nn.Linear(input_size + hidden_size, hidden_size)

    def initial_state(self, batch_size: int) -> State:
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        state = torch.tanh(self.w(torch.cat([inputs, state], 1)))
        return state, state


class NoPair(Cell):
    def forward(self, inputs, state):
        return super().forward(inputs, state)[0]


class ThreeParts(Cell):
    def forward(self, inputs, state):
        return (*super().forward(inputs, state), state)


class WrongWidth(Cell):
    def forward(self, inputs, state):
        outputs, state = super().forward(inputs, state)
        return outputs[:, 1:], state


class GrowingState(Cell):
    def forward(self, inputs, state):
        outputs, _ = super().forward(inputs, state)
        return outputs, torch.cat([outputs, outputs], 1)


class InPlace(Cell):
    def forward(self, inputs, state):
        return super().forward(inputs, state.mul_(0.5))


class ChangesInputs(Cell):
    def forward(self, inputs, state):
        return super().forward(inputs.mul_(0.5), state)


class Batchwise(Cell):
    def forward(self, inputs, state):
        return super().forward(inputs - inputs.mean(0), state)


class BatchNormed(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, inputs, state):
        return super().forward(self.norm(inputs), state)


class NotFinite(Cell):
    def forward(self, inputs, state):
        outputs, state = super().forward(inputs, state)
        return outputs / 0, state


class Counts(Cell):
    count = 0

    def forward(self, inputs, state):
        self.count += 1
        return super().forward(inputs + self.count, state)


class Exits(Cell):
    def forward(self, inputs, state):
        raise SystemExit(3)


class StateOfOneRow(Cell):
    def initial_state(self, batch_size):
        return self.zeros(1, self.output_size)


class ListState(Cell):
    def initial_state(self, batch_size):
        return [self.zeros(batch_size, self.output_size)]


class Fails(Cell):
    def forward(self, inputs, state):
        return super().forward(inputs[:, 1:], state)


class Unsized(Cell):
    def __init__(self) -> None:
        super().__init__()
        del self.output_size


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (NoPair, "breaks the contract: forward returns a Tensor; return the pair (outputs, state)"),
        (ThreeParts, "breaks the contract: forward returns a tuple of 3; return the pair (outputs, state)"),
        (WrongWidth, "breaks the contract: inputs (4, 3) give outputs (4, 3), not (4, 4)"),
        (GrowingState, "breaks the contract: the state has shapes (4, 4) before a step and (4, 8) after it"),
        (InPlace, f"breaks law 6 ({LAWS[6]}): forward changes its state in place; return new tensors"),
        (ChangesInputs, "breaks the contract: forward changes its inputs in place"),
        (Batchwise, f"breaks law 7 ({LAWS[7]}): outputs of row 0, after other rows changed, of shape (1, 4) differ by"),
        (StateOfOneRow, "breaks the contract: initial_state(4) has shapes (1, 4); dimension 0 must be the batch, 4"),
        (ListState, "breaks the contract: initial_state returns a list; return a tensor or a tuple of tensors"),
        (Fails, "breaks the contract: it raises RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (NotFinite, "breaks the contract: its outputs are NaN or infinite; look for a division or a logarithm"),
        (Counts, "breaks the contract: two equal calls have different outputs; keep all state in the returned state"),
        (Exits, "breaks the contract: it raises SystemExit: 3"),
        (Unsized, "breaks the contract: it must set output_size, the width of one step, as an integer"),
    ],
)
def test_a_cell_that_breaks_the_contract_is_named(cell: type[Cell], message: str) -> None:
    for check in (check_quickly, check_cell):
        with pytest.raises(LawError, match=re.escape(f"{cell.__name__} {message}")) as raised:
            check(cell())
        assert len(str(raised.value).splitlines()) == 1


def test_a_layer_without_lengths_is_refused_before_a_training() -> None:
    class WithoutLengths(Mean):
        def forward(self, inputs, state=None):
            return super().forward(inputs, state)

    class IgnoresLengths(Mean):
        def forward(self, inputs, state=None, *, lengths=None):
            return super().forward(inputs, state)

    with pytest.raises(LawError, match=r"breaks the contract: it raises TypeError: .*'lengths'"):
        check_quickly(WithoutLengths())
    with pytest.raises(LawError, match=r"breaks law 3 .*; begin forward with self\.begin"):
        check_quickly(IgnoresLengths())


def test_batch_statistics_are_found_in_training_mode() -> None:
    for check in (check_quickly, check_cell):
        with pytest.raises(LawError, match=r"BatchNormed breaks law 7 .* differ by up to .* in training mode$"):
            check(BatchNormed())


@pytest.mark.parametrize(
    ("check", "part", "kind", "place"),
    [
        (check_layer, Cell(), "range", "check_layer"),
        (check_cell, Mean(), "range", "check_cell"),
        (
            check_cell,
            Cell,
            "range",
            "check_cell",
        ),
        (
            check_layer,
            torch.nn.LSTM(2, 3),
            "range",
            "check_layer",
        ),
    ],
)
def test_what_is_neither_a_layer_nor_a_cell_is_refused(check, part: object, kind: str, place: str) -> None:
    with refused(kind, place):
        check(part)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_numbers_do_not_look_like_a_broken_law(dtype: torch.dtype) -> None:
    class Noisy(Cell):
        def forward(self, inputs, state):
            return super().forward(inputs + torch.randn_like(inputs), state)

    check_quickly(Cell().to(dtype))
    check_quickly(Noisy().to(dtype))
