"""The contract of every layer as checks: the eight laws in words, a quick check before a training, and all of the laws.

The laws are checked in values and gradients, in float64 and in evaluation mode, on a copy of the layer. The quick check
takes one short batch: shapes, nothing changed in place, rows independent, causality.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..core.contract import MemoryLayer, RecurrentCell, SequenceLayer
from ..core.errors import RangeError, first_line
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

LAWS = {
    1: "splitting a sequence anywhere and carrying the state gives the same outputs and final state",
    2: "T steps equal one forward",
    3: "padding may hold NaN: valid outputs, state and gradients are unaffected",
    4: "a row of length 0 keeps its state",
    5: "no output depends on a later input",
    6: "the given state is never changed in place",
    7: "rows are independent: select_state commutes with step",
    8: "a state saved and loaded continues identically",
}
BATCH = 4
TOLERANCE, TOLERANCE_FLOAT32 = 1e-7, 1e-5
LayerOrCell: TypeAlias = SequenceLayer | RecurrentCell
ALONE = "; compute every row from its own inputs and state alone"
"""What to do about rows that influence each other."""
STEPWISE = (1, 2, 5, 7, 8)
"""Laws that only a causal layer must keep."""
Way: TypeAlias = Callable[[Tensor, State], tuple[Tensor, State]]
"""A way to compute outputs and a final state from inputs and a state."""


class LawError(AssertionError):
    """A layer or a cell breaks the contract. The message is one line.

    Attributes:
        law: the number of the law in `LAWS`; None for the shapes and types that the laws build on.
    """

    def __init__(self, subject: object, law: int | None, problem: str) -> None:
        rule = "the contract" if law is None else f"law {law} ({LAWS[law]})"
        super().__init__(f"{type(subject).__name__} breaks {rule}: {problem}")
        self.law = law


@contextlib.contextmanager
def one_line(original: object, law: int | None, mode: str = "") -> Iterator[None]:
    """Report whatever a layer raises as a broken law, and end the message with ``mode``."""
    try:
        yield
    except LawError as error:
        error.args = (f"{error}{mode}",)
        raise
    except (Exception, SystemExit) as error:
        reason = ": ".join(filter(None, [type(error).__name__, first_line(error)]))
        raise LawError(original, law, f"it raises {reason}{mode}") from error


def compare(original: object, law: int, what: str, values: Tensor, expected: Tensor, remedy: str = "") -> None:
    """Raise LawError where two tensors differ by more than rounding."""
    if values.shape != expected.shape:
        raise LawError(original, law, f"{what} have shape {tuple(values.shape)}, not {tuple(expected.shape)}")
    tolerance = TOLERANCE if values.dtype == torch.float64 else TOLERANCE_FLOAT32
    if torch.allclose(values, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return
    difference = (values.double() - expected.double()).abs()
    largest = "NaN" if bool(difference.isnan().any()) else f"up to {float(difference.max()):.3g}"
    raise LawError(original, law, f"{what} of shape {tuple(values.shape)} differ by {largest}{remedy}")


def require_same_bits(original: object, state: State, before: State, problem: str) -> None:
    """Raise LawError for law 6 unless a state is exactly what it was before, where NaN is the same as NaN."""
    for leaf, old in zip(state_leaves(state), state_leaves(before), strict=True):
        if not torch.equal(leaf.isnan(), old.isnan()) or not torch.equal(leaf.nan_to_num(), old.nan_to_num()):
            raise LawError(original, 6, problem)


def is_state(value: object) -> bool:
    """Return whether a value is a tensor or a tuple of states."""
    return isinstance(value, Tensor) or (isinstance(value, tuple) and all(map(is_state, value)))


def type_in_words(value: object) -> str:
    """Return the type of a value in words, for messages."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def shapes_of(state: State) -> str:
    """Return the shapes of all tensors of a state, for messages."""
    return ", ".join(str(tuple(leaf.shape)) for leaf in state_leaves(state)) or "none"


def initial_state(module: LayerOrCell, memory: Tensor | None, memory_lengths: Tensor | None) -> State:
    """Return the initial state of ``BATCH`` rows; raise LawError for a `MemoryLayer` without a memory."""
    if not isinstance(module, MemoryLayer):
        return module.initial_state(BATCH)
    if memory is None:
        raise LawError(module, None, "it attends to a memory; give check_layer a memory (4, memory_time, memory_size)")
    return module.initial_state(BATCH, memory, memory_lengths)


# ---- the quick check


def check_quickly(part: LayerOrCell, *, memory: Tensor | None = None, memory_lengths: Tensor | None = None) -> None:
    """Check what a training relies on in every step, with one short batch: shapes, finite outputs, laws 3, 5, 6 and 7.

    Laws 5 and 7 are checked in training mode, too; law 3, that padding is never read, concerns layers only.

    Args:
        part: a layer or a cell, of any number type; it is not changed.
        memory: as for `check_layer`.
        memory_lengths: as for `check_layer`.

    Raises:
        LawError: the layer or the cell breaks the contract.
    """
    for name in ("input_size", "output_size"):
        if not isinstance(getattr(part, name, None), int):
            raise LawError(part, None, f"it must set {name}, the width of one step, as an integer")
    for training in (False, True):
        with one_line(part, None, " in training mode" if training else ""), torch.random.fork_rng():
            _check_one_mode(part, copy.deepcopy(part).train(training), memory, memory_lengths)


def _check_one_mode(
    original: LayerOrCell, subject: LayerOrCell, memory: Tensor | None, memory_lengths: Tensor | None
) -> None:
    """Check a copy of a layer or a cell, ``subject``, in the mode that it is in."""
    weight = next((x for x in subject.parameters() if x.is_floating_point()), torch.zeros(()))
    torch.manual_seed(1)
    shape = (BATCH, original.input_size) if isinstance(original, RecurrentCell) else (BATCH, 3, original.input_size)
    inputs = torch.randn(shape).to(weight)
    with torch.no_grad():
        state = initial_state(subject, memory if memory is None else memory.to(weight), memory_lengths)
        _check_contract(original, subject, inputs, state)


def _check_contract(original: LayerOrCell, subject: LayerOrCell, inputs: Tensor, state: State) -> None:
    """Check a copy of a layer or a cell, ``subject``, from an initial state on."""
    if not is_state(state):
        raise LawError(
            original, None, f"initial_state returns {type_in_words(state)}; return a tensor or a tuple of tensors"
        )
    if any(not leaf.dim() or len(leaf) != BATCH for leaf in state_leaves(state)):
        shapes = f"initial_state({BATCH}) has shapes {shapes_of(state)}"
        raise LawError(original, None, f"{shapes}; dimension 0 must be the batch, {BATCH}")

    for _ in range(2):  # the initial state, often zeros, hides some changes in place
        before, given = map_state(Tensor.clone, state), inputs.clone()
        outputs, end = _run(original, subject, inputs, state)
        if not torch.equal(given, inputs):
            raise LawError(original, None, "forward changes its inputs in place; compute new tensors")
        require_same_bits(original, state, before, "forward changes its state in place; return new tensors")
        if isinstance(original, RecurrentCell) and shapes_of(end) != shapes_of(state):
            shapes = f"{shapes_of(state)} before a step and {shapes_of(end)} after it"
            raise LawError(original, None, f"the state has shapes {shapes}; return a state of the same shapes")
        earlier, state = state, end

    # from here on with a state that has read something, and its outputs
    state = earlier
    expected = (*inputs.shape[:-1], original.output_size)
    if tuple(outputs.shape) != expected:
        shapes = f"inputs {tuple(inputs.shape)} give outputs {tuple(outputs.shape)}, not {expected}"
        raise LawError(original, None, f"{shapes}; return outputs of this shape")
    if not outputs.isfinite().all():
        raise LawError(original, None, "its outputs are NaN or infinite; look for a division or a logarithm")
    if not subject.training and not torch.equal(outputs, _run(original, subject, inputs, state)[0]):
        raise LawError(original, None, "two equal calls have different outputs; keep all state in the returned state")

    # rows: whatever the others hold, row 0 stays as it is
    others = inputs.clone()
    others[1:] += 1
    changed, changed_end = _run(original, subject, others, state)
    compare(original, 7, "outputs of row 0, after other rows changed,", changed[:1], outputs[:1], ALONE)
    for leaf, other in zip(state_leaves(end), state_leaves(changed_end), strict=True):
        compare(original, 7, "the state of row 0, after other rows changed,", other[:1], leaf[:1], ALONE)

    # causality: the last input changes the last output alone
    if isinstance(original, SequenceLayer) and original.causal:
        later = inputs.clone()
        later[:, -1] += 1
        changed, _ = _run(original, subject, later, state)
        remedy = "; read no later input, or set causal = False"
        compare(original, 5, "outputs before a changed input", changed[:, :-1], outputs[:, :-1], remedy)
    if isinstance(original, SequenceLayer) and not subject.training:
        _check_padding(original, subject, inputs, state)


def _check_padding(original: LayerOrCell, subject: LayerOrCell, inputs: Tensor, state: State) -> None:
    """Check that a layer accepts ``lengths`` and never reads padding."""
    lengths = torch.tensor([inputs.shape[1], 0, 1, 2])
    padded = inputs.clone()
    for row, length in enumerate(lengths.tolist()):
        padded[row, length:] = float("nan")
    remedy = "; begin forward with self.begin(inputs, state, lengths)"
    outputs, end = _run(original, subject, padded, state, lengths=lengths)
    if not all(leaf.isfinite().all() for leaf in state_leaves(end)):
        raise LawError(original, 3, f"the state after rows with NaN in their padding is not finite{remedy}")
    for row, length in enumerate(lengths.tolist()):
        alone, _ = _run(original, subject, inputs[row : row + 1, :length], select_state(state, torch.tensor([row])))
        compare(original, 3, "outputs of a row beside longer ones", outputs[row : row + 1, :length], alone, remedy)


def _run(
    original: LayerOrCell, subject: LayerOrCell, inputs: Tensor, state: State, **lengths: Tensor
) -> tuple[Tensor, State]:
    """Run a copy of a layer or a cell, with the same random numbers at every call, and check that it returns a pair."""
    torch.manual_seed(2)
    returned: Any = subject(inputs, state, **lengths)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Tensor):
        raise LawError(original, None, f"forward returns {type_in_words(returned)}; return the pair (outputs, state)")
    if not is_state(returned[1]):
        raise LawError(
            original, None, f"forward returns {type_in_words(returned[1])} as its state; return a tensor or a tuple"
        )
    return returned[0], returned[1]


# ---- the eight laws


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


def _require(given: object, kind: type, call: str) -> None:
    """Raise InputError where ``given`` is not what a check takes."""
    if isinstance(given, kind):
        return
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if isinstance(given, type):
        raise RangeError(f"{call}: {name} is a class, not a {kind.__name__}; give for instance {call}({name}(5, 6))")
    remedy = f"derive its class from seriatim.{kind.__name__}"
    if isinstance(given, SequenceLayer | RecurrentCell):
        remedy = "use check_layer" if isinstance(given, SequenceLayer) else "use check_cell"
    raise RangeError(f"{call}: {name} is not a {kind.__name__}; {remedy}")


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
    """Raise LawError where a layer accepts the leaves of its state as the state of another kind of layer."""
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
