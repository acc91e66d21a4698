"""The eight laws of every layer, in values and gradients, in float64 and in evaluation mode, on a copy of the layer."""

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.contract import RecurrentCell, SequenceLayer
from ..core.errors import InputError
from ..core.state import (
    State,
    detach_state,
    join_states,
    kind_in_words,
    kind_of,
    map_state,
    select_state,
    state_from_dict,
    state_leaves,
    state_to_dict,
)
from ..recurrence import Recurrent
from .broken_laws import BATCH, LAWS, LawError, compare, initial_state, one_line, require_same_bits
from .quick_check import check_quickly

STEPWISE = (1, 2, 5, 7, 8)
"""Laws that only a causal layer must keep."""
Way: TypeAlias = Callable[[Tensor, State], tuple[Tensor, State]]
"""A way to compute outputs and a final state from inputs and a state."""


def check_cell(cell: RecurrentCell, *, times: Sequence[int] = (1, 7, 63)) -> None:
    """Check a recurrent cell: its shapes, that it changes nothing in place, and the eight laws of its layer.

    The arguments and errors are those of `check_layer`.
    """
    _require(cell, RecurrentCell, "check_cell")
    check_quickly(cell)
    check_layer(Recurrent(cell), times=times)


def check_layer(
    layer: SequenceLayer,
    *,
    times: Sequence[int] = (1, 7, 63),
    memory: Tensor | None = None,
    memory_lengths: Tensor | None = None,
) -> None:
    """Check a layer: its shapes and the eight laws. A layer that is not causal is checked for laws 3, 4 and 6.

    Args:
        layer: the layer; it is not changed.
        times: lengths of the sequences that the laws are checked on.
        memory: for a `MemoryLayer`, what it attends to ``(4, memory_time, memory_size)``.
        memory_lengths: the number of valid entries of each row of ``memory`` ``(4,)``.

    Raises:
        LawError: the layer breaks the contract. The message names the law, the shapes and the largest deviation.
    """
    _require(layer, SequenceLayer, "check_layer")
    check_quickly(layer, memory=memory, memory_lengths=memory_lengths)
    for law in (6, *(law for law in LAWS if law != 6)):  # the other laws give one state to several calls
        for time in times if law in (1, 2, 3, 5) else (7,):
            check_law(layer, law, time=time, memory=memory, memory_lengths=memory_lengths)


def _require(part: object, kind: type, call: str) -> None:
    """Raise InputError where ``part`` is not what a check takes."""
    if isinstance(part, kind):
        return
    name = part.__name__ if isinstance(part, type) else type(part).__name__
    if isinstance(part, type):
        raise InputError(f"{call} takes a {kind.__name__}, not a class; give for instance {call}({name}(5, 6))")
    problem = f"not a {kind.__name__}; derive its class from seriatim.{kind.__name__}"
    if isinstance(part, SequenceLayer | RecurrentCell):
        problem = "a layer; use check_layer" if isinstance(part, SequenceLayer) else "a cell; use check_cell"
    raise InputError(f"{call} takes a {kind.__name__}, but {name} is {problem}")


def check_law(
    layer: SequenceLayer,
    law: int,
    *,
    time: int = 7,
    memory: Tensor | None = None,
    memory_lengths: Tensor | None = None,
) -> None:
    """Check one law of `LAWS`; arguments as for `check_layer`. A law that does not concern the layer holds.

    Raises:
        LawError: the layer breaks the law.
    """
    if law in STEPWISE and not layer.causal:
        return
    subject = _Subject(layer, memory, memory_lengths)
    with one_line(layer, law), torch.random.fork_rng():
        _CHECKS[law](subject, *subject.example(time))


class _Subject:
    """A copy of a layer in float64, in evaluation mode, with inputs and states to check a law on."""

    def __init__(self, layer: SequenceLayer, memory: Tensor | None, memory_lengths: Tensor | None) -> None:
        self.original = layer
        self.layer = copy.deepcopy(layer).double().eval()
        self.memory = None if memory is None else memory.double()
        self.memory_lengths = memory_lengths

    def initial(self) -> State:
        return initial_state(self.layer, self.memory, self.memory_lengths)

    def example(self, time: int) -> tuple[Tensor, State]:
        """Return inputs and a state whose rows have read different numbers of inputs."""
        torch.manual_seed(2)
        size = self.layer.input_size
        inputs, before = (torch.randn(BATCH, length, size, dtype=torch.float64) for length in (time, 6))
        with torch.no_grad():
            _, state = self.layer(before[:, :3], self.initial())
            _, state = self.layer(before[:, 3:], state, lengths=torch.tensor([3, 0, 1, 2]))
        return inputs, state

    def compare(self, law: int, what: str, values: Tensor, expected: Tensor) -> None:
        compare(self.original, law, what, values, expected)

    def compare_states(self, law: int, state: State, expected: State) -> None:
        for leaf, other in zip(*map(state_leaves, _level(state, expected)), strict=True):
            self.compare(law, "the state", leaf, other)

    def compare_ways(self, law: int, way: Way, expected: Way, inputs: Tensor, state: State) -> None:
        """Compare two ways of computing outputs and a final state, in values and in gradients."""
        sources, results = [], []
        for compute in (way, expected):
            leaf = inputs.clone().requires_grad_()
            start = map_state(lambda x: x.clone().requires_grad_(x.is_floating_point()), state)
            sources.append([leaf, *filter(Tensor.is_floating_point, state_leaves(start))])
            results.append(compute(leaf, start))
        (outputs, end), (others, other_end) = results
        self.compare(law, "outputs", outputs, others)
        self.compare_states(law, end, other_end)
        level, other_level = _level(end, detach_state(other_end))[0], _level(detach_state(end), other_end)[1]
        gradients = self.gradients([outputs, *state_leaves(level)], sources[0])
        other_gradients = self.gradients([others, *state_leaves(other_level)], sources[1])
        names = ["inputs", *(["the state"] * (len(sources[0]) - 1)), *dict(self.layer.named_parameters())]
        for name, gradient, other in zip(names, gradients, other_gradients, strict=True):
            self.compare(law, f"gradients of {name}", gradient, other)

    def gradients(self, results: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor]:
        """Return gradients of a fixed random function of the results by the sources and every parameter."""
        torch.manual_seed(3)
        weighted = [(result * _weights(result)).sum() for result in results if result.is_floating_point()]
        total, every = torch.stack(weighted).sum(), [*sources, *self.layer.parameters()]
        if not total.requires_grad:  # a layer whose outputs depend on nothing
            return [torch.zeros_like(x) for x in every]
        return list(torch.autograd.grad(total, every, materialize_grads=True))


def _weights(result: Tensor) -> Tensor:
    """Return random weights that are zero where a state is: the zeros before a short row have no gradient."""
    return torch.randn(result.shape, dtype=result.dtype) * (result.detach() != 0)


def _level(first: State, second: State) -> tuple[State, State]:
    """Return two states with leaves of one size, however long the longest row of each batch is."""
    rows = next((len(leaf) for leaf in state_leaves(first)), 0)
    joined = join_states([first, second])
    return select_state(joined, torch.arange(rows)), select_state(joined, torch.arange(rows) + rows)


def _law_1(subject: _Subject, inputs: Tensor, state: State) -> None:
    layer, time = subject.layer, inputs.shape[1]
    for cut in sorted({0, 1, time // 2, time - 1, time}):

        def split(x: Tensor, start: State, cut: int = cut) -> tuple[Tensor, State]:
            first, middle = layer(x[:, :cut], start)
            second, end = layer(x[:, cut:], middle)
            return torch.cat([first, second], dim=1), end

        subject.compare_ways(1, split, layer, inputs, state)


def _law_2(subject: _Subject, inputs: Tensor, state: State) -> None:
    def steps(x: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for t in range(x.shape[1]):
            output, state = subject.layer.step(x[:, t], state)
            outputs.append(output)
        return torch.stack(outputs, dim=1), state

    subject.compare_ways(2, steps, subject.layer, inputs, state)


def _law_3(subject: _Subject, inputs: Tensor, state: State) -> None:
    layer, time = subject.layer, inputs.shape[1]
    lengths = torch.tensor([time, 0, (time + 1) // 2, 1])
    padded = inputs.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = float("nan")

    def batched(x: Tensor, start: State) -> tuple[Tensor, State]:
        outputs, end = layer(x + (padded - inputs), start, lengths=lengths)
        return outputs, end

    def row_by_row(x: Tensor, start: State) -> tuple[Tensor, State]:
        outputs, ends = [], []
        for row, length in enumerate(lengths.tolist()):
            output, end = layer(x[row : row + 1, :length], select_state(start, torch.tensor([row])))
            outputs.append(torch.cat([output, output.new_zeros(1, time - length, layer.output_size)], dim=1))
            ends.append(end)
        return torch.cat(outputs), join_states(ends)

    subject.compare_ways(3, batched, row_by_row, inputs, state)


def _law_4(subject: _Subject, inputs: Tensor, state: State) -> None:
    time = inputs.shape[1]
    for lengths in ([min(3, time), 0, time, 0], [0, 0, 0, 0]):
        outputs, end = subject.layer(inputs, state, lengths=torch.tensor(lengths))
        expected = (BATCH, time, subject.layer.output_size)
        if tuple(outputs.shape) != expected:
            raise LawError(subject.original, 4, f"outputs have shape {tuple(outputs.shape)}, not {expected}")
        empty = torch.tensor(lengths) == 0
        subject.compare_states(4, select_state(end, empty), select_state(state, empty))


def _law_5(subject: _Subject, inputs: Tensor, state: State) -> None:
    time = inputs.shape[1]
    expected, _ = subject.layer(inputs, state)
    for t in sorted({0, time // 2, time - 1}):
        changed = inputs.clone()
        changed[:, t:] += 1
        outputs, _ = subject.layer(changed, state)
        subject.compare(5, f"outputs before input {t} of {time}", outputs[:, :t], expected[:, :t])


def _law_6(subject: _Subject, inputs: Tensor, state: State) -> None:
    layer, time = subject.layer, inputs.shape[1]
    before = map_state(Tensor.clone, state)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            layer(inputs, state)
            require_same_bits(subject.original, state, before, "forward changes it")
            layer(inputs, state, lengths=torch.tensor([time, 0, min(3, time), 1]))
            require_same_bits(subject.original, state, before, "forward with lengths changes it")
            if layer.causal:
                layer.step(inputs[:, 0], state)
                require_same_bits(subject.original, state, before, "step changes it")


def _law_7(subject: _Subject, inputs: Tensor, state: State) -> None:
    layer = subject.layer
    index = torch.tensor([2, 0, 0, 3, 1])

    def select_then_step(x: Tensor, start: State) -> tuple[Tensor, State]:
        return layer.step(x[index, 0], select_state(start, index))

    def step_then_select(x: Tensor, start: State) -> tuple[Tensor, State]:
        outputs, end = layer.step(x[:, 0], start)
        return outputs[index], select_state(end, index)

    subject.compare_ways(7, select_then_step, step_then_select, inputs, state)
    with torch.inference_mode():
        _compare_branches(subject, *subject.example(inputs.shape[1]))


def _compare_branches(subject: _Subject, inputs: Tensor, state: State) -> None:
    """Continue every state of a text with another text: without gradients, states may share memory."""
    layer = subject.layer
    other, index = inputs.flip(0), torch.tensor([3, 0, 0, 2])
    expected, end = layer(inputs, state)
    states, copies = [state], [map_state(Tensor.clone, state)]
    for t in range(inputs.shape[1]):
        output, after = layer.step(inputs[:, t], states[-1])
        subject.compare(2, "outputs of steps without gradients", output, expected[:, t])
        states.append(after)
        copies.append(map_state(Tensor.clone, after))
    subject.compare_states(2, states[-1], end)
    for cut, (begin, before) in enumerate(zip(states, copies, strict=True)):
        branch, _ = layer(other[:, cut:], begin)
        again, _ = layer(inputs[:, cut:], begin)
        subject.compare(1, "outputs of a text after another used its state", again, expected[:, cut:])
        subject.compare(1, "outputs of another text", branch, layer(other[:, cut:], before)[0])
        output, _ = layer.step(other[index, 0], select_state(begin, index))
        subject.compare(7, "outputs", output, layer.step(other[index, 0], select_state(before, index))[0])
    for begin, before in zip(states, copies, strict=True):
        require_same_bits(subject.original, begin, before, "a later call without gradients changes it")


def _law_8(subject: _Subject, inputs: Tensor, state: State) -> None:
    from safetensors.torch import load, save

    tensors = {name: leaf.detach().clone().contiguous() for name, leaf in state_to_dict(state).items()}
    loaded = state_from_dict(load(save(tensors)) if tensors else {}, subject.initial())
    if kind_of(loaded) != kind_of(state):
        kinds = f"{kind_in_words(kind_of(loaded))} instead of {kind_in_words(kind_of(state))}"
        raise LawError(subject.original, 8, f"the state is {kinds}")
    layer = subject.layer
    outputs, end = layer(inputs, state)
    again, end_again = layer(inputs, loaded)
    subject.compare(8, "outputs", again, outputs)
    if not torch.equal(outputs, again):
        raise LawError(subject.original, 8, "outputs differ in their last bits")
    if not all(map(torch.equal, state_leaves(end), state_leaves(end_again))):
        raise LawError(subject.original, 8, "the final state differs")
    _require_refusal(subject, inputs, state)


def _require_refusal(subject: _Subject, inputs: Tensor, state: State) -> None:
    """Raise LawError where a layer accepts the parts of its state as the state of another kind of layer."""
    if not isinstance(state, tuple) or not state:
        return  # a single tensor does not say what it is
    kind: Callable[..., State] = type("Another", (type(state),), {})
    other = kind(*state) if hasattr(state, "_fields") else kind(state)
    for call, begin in (("forward", "begin(inputs, state, lengths)"), ("step", "check_step(inputs, state)")):
        try:
            subject.layer(inputs, other) if call == "forward" else subject.layer.step(inputs[:, 0], other)
        except Exception:  # in whatever way
            continue
        problem = f"{call} accepts the state of another kind of layer"
        raise LawError(subject.original, 8, f"{problem}; begin it with self.{begin}")


_CHECKS = dict(enumerate((_law_1, _law_2, _law_3, _law_4, _law_5, _law_6, _law_7, _law_8), start=1))
