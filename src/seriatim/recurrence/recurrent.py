"""Runs a recurrent cell over sequences: the plain loop over time, zoneout, and the sequence layer around both.

Compiled code is compared with the loop. With zoneout, random values of the state keep their previous value (D. Krueger
et al., "Zoneout: regularizing RNNs by randomly preserving hidden activations", ICLR 2017):

    h_t = m_t ⊙ h_{t−1} + (1 − m_t) ⊙ f(x_t, h_{t−1}),  m_t ~ Bernoulli(p)   in training
    h_t = p h_{t−1} + (1 − p) f(x_t, h_{t−1})                                 in evaluation

p ``rate`` · m a mask, drawn at every step for every value of every leaf of the state.
"""

import functools
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor
from torch.func import functional_call

from ..core.contract import RecurrentCell, SequenceLayer, check_batch_size
from ..core.errors import NotSupportedError, RangeError, shown
from ..core.lengths import run_by_length
from ..core.random_masks import dropout_mask
from ..core.state import OutputsAndState, State, kind_of, map_state, state_leaves
from .conditions import functional_step, tracing
from .fast_path import run_kept, run_sequence, run_step

Advance = Callable[[Tensor, State], tuple[Tensor, State]]
"""One step: inputs ``(batch, input_size)`` and state to outputs ``(batch, output_size)`` and the next state."""


def loop(
    advance: Advance,
    inputs: Tensor,
    state: State,
    lengths: Tensor | None,
    *,
    output_size: int,
    name: str = "the cell",
) -> tuple[Tensor, State]:
    """Run one step after another; inputs, state, lengths and results are those of `SequenceLayer.forward`.

    Raises:
        ValueError: a step of the cell ``name`` changes its state in place; also the errors of `check_returned`.
    """
    if lengths is not None:
        run = functools.partial(loop, advance, lengths=None, output_size=output_size, name=name)
        return run_by_length(run, inputs, state, lengths)
    outputs = []
    leaves = state_leaves(state)
    versions = [None if leaf.is_inference() else leaf._version for leaf in leaves]
    for t in range(inputs.shape[1]):
        output, state = check_returned(advance(inputs[:, t], state), name, inputs[:, t], state, output_size)
        outputs.append(output)
        if not t and [None if leaf.is_inference() else leaf._version for leaf in leaves] != versions:
            raise ValueError(f"{name}: a step changes its state in place; return new tensors")
    if not outputs:
        return inputs.new_zeros(inputs.shape[0], 0, output_size), state
    return torch.stack(outputs, dim=1), state


def check_returned(returned: object, name: str, inputs: Tensor, state: State, output_size: int) -> tuple[Tensor, State]:
    """Return the outputs and the state that a step of the cell ``name`` returned for inputs and a state.

    Raises:
        ValueError: the value is not a pair, the outputs are not ``(batch, output_size)``, or the state differs in
            structure, shape or type from the state before the step.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ValueError(f"{name}: a step must return a pair (outputs, state); it returns {describe(returned)}")
    outputs, new = returned
    outputs = check_outputs(outputs, name, inputs.shape[0], output_size)
    any_type = torch.is_autocast_enabled(inputs.device.type)  # which changes the types of what a cell computes
    if kind_of(new) != kind_of(state) or not all(
        leaf.shape == before.shape and (any_type or leaf.dtype == before.dtype)
        for leaf, before in zip(state_leaves(new), state_leaves(state), strict=True)
    ):
        raise ValueError(
            f"{name}: a step must return a state of the structure, shape and type it is given: {describe(state)}; "
            f"it returns {describe(new)}"
        )
    return outputs, new


def check_outputs(outputs: object, name: str, batch: int, output_size: int) -> Tensor:
    """Return the outputs of a step; raise ValueError if they are not a tensor ``(batch, output_size)``."""
    if not isinstance(outputs, Tensor):
        raise ValueError(f"{name}: the outputs of a step must be a tensor; it returns {describe(outputs)}")
    shape = tuple(outputs.shape)
    if shape != (batch, output_size):
        problem = "the outputs of a step must have the batch first,"
        if shape[:1] == (batch,):
            problem = f"output_size is {output_size}, so the outputs of a step must have shape"
        raise ValueError(f"{name}: {problem} ({batch}, {output_size}); it returns {shape}")
    return outputs


def check_initial(state: object, name: str, batch_size: int) -> None:
    """Raise ValueError if an initial state does not consist of tensors with one row for each row of the batch."""
    pending = [state]
    while pending:
        value = pending.pop()
        if isinstance(value, tuple):
            pending.extend(value)
        elif not isinstance(value, Tensor) or value.shape[:1] != (batch_size,):
            raise ValueError(
                f"{name}: initial_state({batch_size}) must return tensors whose first dimension is {batch_size}, or "
                f"tuples of them; it returns {describe(state)}"
            )


def describe(value: object) -> str:
    """Return structure, shapes and types in words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if not isinstance(value, tuple | list):
        return type(value).__name__
    return f"{type(value).__name__}({', '.join(map(describe, value))})"


Rate = Annotated[float, Interval(ge=0, le=0.99)]
"""A rate of dropout or zoneout; higher rates would drop everything."""


class Zoneout(RecurrentCell):
    """A cell with zoneout at rate p, which also applies to the cell's output if that is a leaf of its new state."""

    def __init__(self, cell: RecurrentCell, rate: float) -> None:
        super().__init__()
        self.cell, self.rate = cell, check_rate("zoneout", rate)
        self.input_size, self.output_size = cell.input_size, cell.output_size

    def initial_state(self, batch_size: int) -> State:
        """Return the initial state of the cell."""
        return self.cell.initial_state(batch_size)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of the cell and apply zoneout."""
        returned = self.cell(inputs, state)
        outputs, new = check_returned(returned, type(self.cell).__name__, inputs, state, self.output_size)
        mixed = map_state(self.mix, new, state)
        for leaf, mixed_leaf in zip(state_leaves(new), state_leaves(mixed), strict=True):
            if outputs is leaf:
                return mixed_leaf, mixed
        return outputs, mixed

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Return h_t for a leaf of the state."""
        if self.training:
            return torch.where(torch.rand_like(new) < self.rate, old, new)
        return self.rate * old + (1 - self.rate) * new

    def extra_repr(self) -> str:
        """Return the rate, for ``print``."""
        return f"rate={self.rate}"


def check_rate(name: str, rate: float) -> float:
    """Return ``rate``, or raise InputError outside the range of `Rate`."""
    if not isinstance(rate, Real) or not 0 <= rate <= 0.99:
        raise RangeError(f"{name}: {shown(rate)} is out of range; give a number from 0 to 0.99")
    return rate


def unroll(
    cell: RecurrentCell,
    inputs: Tensor,
    state: State,
    lengths: Tensor | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> OutputsAndState:
    """Run ``cell`` over a sequence: compiled, in a vendor's kernel, or as a loop (`explain` says which and why).

    On a GPU a vendor's kernel comes first. Values and gradients are the same up to rounding. Compiled code can be
    differentiated once, not twice. Results are those of `SequenceLayer.forward`.

    Args:
        cell: one step of the recurrence.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: ``(batch,)``, or None if every row is full. Padding is never computed.
        weights: values to use instead of the cell's own parameters, by name.

    Raises:
        ValueError: a step changes its state in place, returns a state of another structure, shape or type, or outputs
            that are not ``(batch, output_size)``.
    """
    kernel, name = None if inputs.device.type == "cpu" else cell.vendor_kernel(), cell_name(cell)
    if kernel is None:
        result = run_sequence(cell, cell, inputs, state, lengths, weights)
        if result is not None:
            check_outputs(result[0][:, 0], name, len(inputs), cell.output_size)
            return result
        kernel = cell.vendor_kernel()
    if kernel is not None and 0 not in inputs.shape[:2]:
        run_kernel = kernel.sequence

        def run(rows: Tensor, start: State) -> OutputsAndState:
            return run_kernel(rows, start, weights or {})

        return run(inputs, state) if lengths is None else run_by_length(run, inputs, state, lengths)
    advance: Advance = cell
    if weights is not None:
        step, values = functional_step(cell, weights)
        advance = functools.partial(step, values)
    return loop(advance, inputs, state, lengths, output_size=cell.output_size, name=name)


def cell_name(cell: RecurrentCell) -> str:
    """Return the class of a cell, without zoneout around it, for messages."""
    return type(cell.cell if isinstance(cell, Zoneout) else cell).__name__


class Recurrent(SequenceLayer):
    """Runs a `RecurrentCell` over sequences, with the contract of every layer.

    Args:
        cell: one step.
        weight_dropout: rate at which recurrent weights are dropped in training, with one mask per call (S. Merity,
            N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models", ICLR 2018). The cell names
            these weights in its class attribute ``recurrent_weights``, such as ``("u.weight",)``.
        zoneout: rate at which values of the state keep their previous value; see `seriatim.recurrence.recurrent`.

    Raises:
        ValueError: the cell does not set its sizes, a rate is outside [0, 0.99], or weight dropout is given and the
            cell names no weights.
    """

    def __init__(self, cell: RecurrentCell, *, weight_dropout: Rate = 0.0, zoneout: Rate = 0.0) -> None:
        super().__init__()
        if not isinstance(cell, RecurrentCell):
            raise RangeError(f"Recurrent: {shown(cell)} is not a RecurrentCell; give one, such as MyCell(8, 16)")
        for name in ("input_size", "output_size"):
            if not isinstance(getattr(cell, name, None), int):
                raise ValueError(f"{type(cell).__name__} must set {name}, the width of one step, as an integer")
        recurrent = cell.recurrent_weights
        self.weight_dropout = check_rate("weight_dropout", weight_dropout)
        self.zoneout = check_rate("zoneout", zoneout)
        if weight_dropout and not recurrent:
            raise NotSupportedError(
                f"{type(cell).__name__} names no weights to drop; give weight_dropout 0, or the class an attribute "
                "recurrent_weights"
            )

        # with zoneout, the cell and its weights lie one module deeper
        self.cell = Zoneout(cell, zoneout) if zoneout else cell
        self.recurrent_weights = tuple(f"cell.{name}" for name in recurrent) if zoneout else recurrent
        self.input_size = cell.input_size
        self.output_size = cell.output_size

    def class_name(self) -> str:
        """Return the name of the class of the cell, for messages."""
        return cell_name(self.cell)

    def initial_state(self, batch_size: int) -> State:
        """Return the initial state of the cell."""
        check_batch_size(batch_size)
        state = self.cell.initial_state(batch_size)
        check_initial(state, cell_name(self.cell), batch_size)
        return state

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run the cell over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        if lengths is None and state is not None and (kept := run_kept(self.cell, inputs, state, None)):
            return kept
        state, lengths = self.validate_inputs(inputs, state, lengths)
        return unroll(self.cell, inputs, state, lengths, weights=self.dropped_weights() or None)

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Run one step of the cell; in evaluation mode and without gradients in compiled code if possible."""
        self.check_input(inputs)
        result, name = run_step(self, inputs, state), cell_name(self.cell)
        if result is not None:
            check_outputs(result[0], name, len(inputs), self.output_size)
            return result
        self.check_state(state, inputs)
        kernel = None if torch.is_grad_enabled() or tracing() else self.cell.vendor_kernel()
        if kernel is not None and kernel.step is not None:
            return kernel.step(inputs, state, self.dropped_weights())
        weights = self.dropped_weights()
        output = functional_call(self.cell, weights, (inputs, state)) if weights else self.cell(inputs, state)
        return check_returned(output, name, inputs, state, self.output_size)

    def dropped_weights(self) -> dict[str, Tensor]:
        """Return the cell's recurrent weights under a new mask, by name; empty if this call drops none."""
        rate = self.weight_dropout
        if not self.training or not rate:
            return {}
        parameters = dict(self.cell.named_parameters())  # get_parameter refuses the tensors of functional_call
        weights = {name: parameters[name] for name in self.recurrent_weights}
        return {name: weight * dropout_mask(tuple(weight.shape), rate, weight) for name, weight in weights.items()}
