"""A recurrent decoder with attention in the compiled loop is the loop as it is written, in values and gradients."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.compiler.fallback_reasons import UnsupportedError
from seriatim.core.contract import RecurrentCell
from seriatim.core.state import state_leaves
from seriatim.models.attention_decoder import AttentionDecoder, bahdanau_decoder, luong_decoder
from seriatim.recurrence import compiled_loop, explain
from seriatim.recurrence.compiled_loop import CompiledLoop
from seriatim.recurrence.conditions import uncompiled
from seriatim.recurrence.fast_path import PROGRAMS
from seriatim.recurrence.triton_runner import TritonLoop

from ..exhaustive import parameters
from ..quick_compiler import quickly

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)

LOOPS = {
    "input feeding": (luong_decoder, {"score": "bilinear", "input_feeding": True}),
    "direct input feeding": (luong_decoder, {"score": "dot", "input_feeding": True, "readout": "direct"}),
    "additive input feeding": (luong_decoder, {"score": "additive", "input_feeding": True}),
    "before the recurrence": (bahdanau_decoder, {}),
    "before, bilinear": (bahdanau_decoder, {"score": "bilinear"}),
    "before, scaled dot": (bahdanau_decoder, {"score": "scaled-dot", "readout": "direct"}),
    "location": (luong_decoder, {"score": "dot", "location": True}),
    "location, additive": (bahdanau_decoder, {"location": True}),
    "location, input feeding": (luong_decoder, {"score": "bilinear", "location": True, "input_feeding": True}),
}
BATCH, TIME, ENTRIES, WIDTH = 4, 5, 6, 8


def decoder(case: str, recurrence: str = "lstm", **options: object) -> AttentionDecoder:
    torch.manual_seed(0)
    kind, arguments = LOOPS[case]
    made = kind(lambda width: seriatim.layer(recurrence, width, WIDTH, **options), 6, WIDTH, **arguments)
    if made.attend.location is not None:
        nn.init.normal_(made.attend.location)
    return made.double()


def results(made: AttentionDecoder, *, entries: int = ENTRIES, lengths: list[int] | None = None) -> list[Tensor]:
    """Return outputs, the state after them, and all gradients of a random direction."""
    torch.manual_seed(1)
    dtype = next(made.parameters()).dtype
    inputs = torch.randn(BATCH, TIME, 6, dtype=dtype).requires_grad_()
    memory_lengths = torch.tensor([entries, entries // 2, 0, min(entries, 1)])
    memory = torch.randn(BATCH, entries, WIDTH, dtype=dtype)
    for row, length in zip(memory, memory_lengths, strict=True):
        row[length:] = torch.nan
    memory.requires_grad_()
    state, sources = made.initial_state(BATCH, memory, memory_lengths), [inputs, memory, *made.parameters()]
    if isinstance(state.weights, Tensor):  # as after some steps
        weights = torch.rand(BATCH, entries, dtype=dtype)
        weights *= torch.arange(entries) < memory_lengths.unsqueeze(1)
        state = state._replace(weights=weights.requires_grad_())
        sources.append(weights)
    outputs, end = made(inputs, state, lengths=None if lengths is None else torch.tensor(lengths))
    values = [outputs, *state_leaves(end[:3])]
    total = sum((value * torch.randn(value.shape, dtype=dtype)).sum() for value in values)
    return [*values, *torch.autograd.grad(total, sources, materialize_grads=True)]


def programs(made: nn.Module) -> list[object]:
    return list(PROGRAMS.of(made).entries.values())


def agree(made: AttentionDecoder, tolerance: float = 1e-10, **arguments: object) -> None:
    compiled = results(made, **arguments)
    assert programs(made)
    assert all(isinstance(program, CompiledLoop) for program in programs(made))
    with uncompiled():
        expected = results(made, **arguments)
    for value, other in zip(compiled, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [None, [3, 5, 0, 2]])
@pytest.mark.parametrize("case", LOOPS)
def test_values_and_gradients_are_those_of_the_loop(case: str, lengths: list[int] | None) -> None:
    agree(decoder(case).eval(), lengths=lengths)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["input feeding", "location, additive"])
def test_threads_share_the_rows(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_loop, "WORTH_SHARING", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        agree(decoder(case, "gru").eval(), lengths=[3, 5, 0, 2])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("case", ["additive input feeding", "location, input feeding"])
def test_single_precision(case: str) -> None:
    agree(decoder(case).float().eval(), 1e-4, lengths=[3, 5, 0, 2])


def test_one_program_serves_memories_of_any_length() -> None:
    made = decoder("location, additive").eval()
    for entries in (6, 2, 90):
        agree(made, entries=entries)
    assert len(programs(made)) == 1
    with uncompiled():
        expected = results(made, entries=0)
    torch.testing.assert_close(results(made, entries=0), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("recurrence", ["gru", "lstm-peephole", "mingru"])
def test_two_layers_with_dropout_are_compiled(recurrence: str) -> None:
    """With widths that are multiples of four, random masks of all steps are those of the steps one after another."""
    agree(decoder("before the recurrence", recurrence, num_layers=2, dropout=0.4).train())


def test_a_recurrence_that_is_not_compiled_runs_as_written() -> None:
    for recurrence in ("mamba", "transformer"):
        made = decoder("input feeding", recurrence).eval()
        with uncompiled():
            expected = results(made)
        torch.testing.assert_close(results(made), expected)
        assert not any(isinstance(program, CompiledLoop) for program in programs(made))


def test_gradients_can_be_taken_again() -> None:
    made, memory = decoder("before the recurrence").eval(), torch.randn(2, 3, WIDTH).double().requires_grad_()
    outputs, _ = made(torch.randn(2, 4, 6).double(), made.initial_state(2, memory))
    assert all(isinstance(program, CompiledLoop) for program in programs(made))
    first, second = (torch.autograd.grad(outputs.sum(), memory, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize(
    "changed",
    [
        lambda state: {"weights": state.weights[:, :3]},
        lambda state: {"weights": torch.cat([state.weights] * 2, 1)},
        lambda state: {"keys": state.keys[:, :2]},
        lambda state: {"memory": state.memory[:, :2]},
    ],
)
def test_parts_of_a_state_that_do_not_fit_are_refused(changed) -> None:
    made, memory = decoder("location, additive").eval(), torch.randn(BATCH, ENTRIES, WIDTH).double()
    state, inputs = made.initial_state(BATCH, memory), torch.randn(BATCH, TIME, 6).double()
    made(inputs, state)
    with pytest.raises(RuntimeError):
        made(inputs, state._replace(**changed(state)))
    with torch.no_grad(), pytest.raises(RuntimeError):
        made.step(inputs[:, 0], state._replace(**changed(state)))


def test_a_negative_length_is_an_empty_memory() -> None:
    made, memory = decoder("location, additive").eval(), torch.randn(BATCH, ENTRIES, WIDTH).double()
    inputs, state = torch.randn(BATCH, TIME, 6).double(), made.initial_state(BATCH, memory)
    for lengths in (torch.tensor([-1000, -1, 0, 3]), torch.tensor([1000, 6, 7, 3])):
        given = state._replace(lengths=lengths)
        outputs, _ = made(inputs, given)
        with torch.no_grad():
            step, _ = made.step(inputs[:, 0], given)
        with uncompiled():
            expected, _ = made(inputs, given)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(step, expected[:, 0])


def test_weight_dropout_in_a_decoder_runs_as_a_loop() -> None:
    made = decoder("before the recurrence", "lstm", weight_dropout=0.5).train()
    outputs = results(made)[0]
    assert outputs.isfinite().all()
    assert "dropout draws random numbers" in explain(made)


def test_autocast_keeps_memories_in_single_precision() -> None:
    made = decoder("input feeding").float().eval()
    expected = results(made)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = results(made)
        assert len(programs(made)) == 2
        assert all(isinstance(program, CompiledLoop) for program in programs(made))
        assert not torch.equal(reduced[0], expected[0])
    for value, other in zip(reduced, expected, strict=True):
        assert (value.float() - other).abs().max() <= 0.1 * (1 + other.abs().max())


def test_attention_is_refused_on_a_gpu() -> None:
    made = decoder("input feeding").eval()
    results(made)
    (program,) = programs(made)
    with pytest.raises(UnsupportedError, match="attention to a memory is not compiled for a GPU"):
        TritonLoop(program.traced, program.numbers)


def test_explain_says_how_a_decoder_runs() -> None:
    lines = explain(decoder("before the recurrence", "gru")).splitlines()
    assert lines[0] == "AttentionDecoder runs in compiled code"
    assert any("attention to a memory" in line for line in lines)
    assert explain(decoder("input feeding", "mamba")).startswith("AttentionDecoder runs as a loop: ")


class Joined(RecurrentCell):
    """A cell that multiplies inputs and state, side by side, by one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size, self.output_size = 3, 5
        self.map = nn.Linear(8, 5)

    def initial_state(self, batch_size: int) -> Tensor:
        return self.zeros(batch_size, 5)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        after = torch.tanh(self.map(torch.cat([inputs, state], dim=1)))
        return after, after


class Constants(Joined):
    """A cell that multiplies constants beside inputs and a state, in some order, by one matrix."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.map = nn.Linear(sum({"x": 3, "h": 5, "1": 1, "0": 3, "c": 2}[part] for part in order), 5)
        self.c = nn.Parameter(torch.randn(2))

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        rows = len(inputs)
        parts = {"x": inputs, "h": state, "1": inputs.new_ones(rows, 1), "0": torch.zeros_like(inputs)}
        parts["c"] = self.c.expand(rows, -1)
        joined = torch.cat([parts[part] for part in self.order], dim=1)
        after = torch.tanh(self.map(joined) + state) * torch.sigmoid(inputs[:, :1])
        return after, after


@pytest.mark.parametrize(
    "order",
    parameters(
        ["h1", "1h", "hc", "0h", "1hx", "xh1", "1xh", "chxc", "x1h", "1", "xc", "h"],
        everyday=["h1", "0h", "chxc", "1"],
    ),
)
def test_constants_beside_a_state(order: str) -> None:
    torch.manual_seed(0)
    layer = seriatim.Recurrent(Constants(order)).double()
    inputs = torch.randn(3, 5, 3).double().requires_grad_()
    sources = [inputs, *layer.parameters()]
    lengths = torch.tensor([5, 0, 2])
    compiled, _ = layer(inputs, lengths=lengths)
    assert all(isinstance(program, CompiledLoop) for program in programs(layer.cell))
    assert programs(layer.cell)
    with uncompiled():
        expected, _ = layer(inputs, lengths=lengths)
    torch.testing.assert_close(compiled, expected, rtol=1e-10, atol=1e-10)
    ours, theirs = (
        torch.autograd.grad(value.square().sum(), sources, materialize_grads=True, allow_unused=True)
        for value in (compiled, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_inputs_beside_a_state_are_multiplied_before_the_loop() -> None:
    layer = seriatim.Recurrent(Joined()).double()
    inputs = torch.randn(2, 6, 3).double().requires_grad_()
    sources = [inputs, *layer.parameters()]
    compiled, _ = layer(inputs)
    with uncompiled():
        expected, _ = layer(inputs)
    torch.testing.assert_close(compiled, expected)
    ours, theirs = (torch.autograd.grad(value.square().sum(), sources) for value in (compiled, expected))
    torch.testing.assert_close(ours, theirs)
    plan = programs(layer.cell)[0].program
    assert [group.leaves[0].attribute.products[0][0].width for group in plan.groups] == [3]
    assert [product.depth for phase in plan.forward.phases for product in phase.products] == [5]
