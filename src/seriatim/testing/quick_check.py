"""The check before a training, with one short batch: shapes, nothing changed in place, rows independent, causality."""

import copy
from typing import Any

import torch
from torch import Tensor

from ..core.contract import RecurrentCell, SequenceLayer
from ..core.state import State, map_state, state_leaves
from .broken_laws import (
    BATCH,
    LawError,
    Part,
    compare,
    initial_state,
    is_state,
    kind_of,
    one_line,
    require_same_bits,
    shapes_of,
)


def check_quickly(part: Part, *, memory: Tensor | None = None, memory_lengths: Tensor | None = None) -> None:
    """Check what a training relies on in every step, with one short batch: shapes, laws 6 and 7, and causality.

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


def _check_one_mode(part: Part, subject: Part, memory: Tensor | None, memory_lengths: Tensor | None) -> None:
    """Check a copy of a part, ``subject``, in the mode that it is in."""
    weight = next((x for x in subject.parameters() if x.is_floating_point()), torch.zeros(()))
    torch.manual_seed(1)
    shape = (BATCH, part.input_size) if isinstance(part, RecurrentCell) else (BATCH, 3, part.input_size)
    inputs = torch.randn(shape).to(weight)
    with torch.no_grad():
        state = initial_state(subject, memory if memory is None else memory.to(weight), memory_lengths)
        _check_contract(part, subject, inputs, state)


def _check_contract(part: Part, subject: Part, inputs: Tensor, state: State) -> None:
    """Check a copy of a part, ``subject``, from an initial state on."""
    if not is_state(state):
        raise LawError(part, None, f"initial_state returns {kind_of(state)}; return a tensor or a tuple of tensors")
    if any(not leaf.dim() or len(leaf) != BATCH for leaf in state_leaves(state)):
        shapes = f"initial_state({BATCH}) has shapes {shapes_of(state)}"
        raise LawError(part, None, f"{shapes}; dimension 0 must be the batch, {BATCH}")
    for _ in range(2):  # the initial state, often zeros, hides some changes in place
        before, given = map_state(Tensor.clone, state), inputs.clone()
        outputs, end = _run(part, subject, inputs, state)
        if not torch.equal(given, inputs):
            raise LawError(part, None, "forward changes its inputs in place; compute new tensors")
        require_same_bits(part, state, before, "forward changes its state in place; return new tensors")
        if isinstance(part, RecurrentCell) and shapes_of(end) != shapes_of(state):
            shapes = f"{shapes_of(state)} before a step and {shapes_of(end)} after it"
            raise LawError(part, None, f"the state has shapes {shapes}")
        earlier, state = state, end
    state = earlier
    expected = (*inputs.shape[:-1], part.output_size)
    if tuple(outputs.shape) != expected:
        raise LawError(part, None, f"inputs {tuple(inputs.shape)} give outputs {tuple(outputs.shape)}, not {expected}")
    others = inputs.clone()
    others[1:] += 1
    changed, changed_end = _run(part, subject, others, state)
    compare(part, 7, "outputs of row 0, after other rows changed,", changed[:1], outputs[:1])
    for leaf, other in zip(state_leaves(end), state_leaves(changed_end), strict=True):
        compare(part, 7, "the state of row 0, after other rows changed,", other[:1], leaf[:1])
    if isinstance(part, SequenceLayer) and part.causal:
        later = inputs.clone()
        later[:, -1] += 1
        changed, _ = _run(part, subject, later, state)
        compare(part, 5, "outputs before a changed input", changed[:, :-1], outputs[:, :-1])


def _run(part: Part, subject: Part, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """Run a copy of a part, with the same random numbers at every call, and check that it returns a pair."""
    torch.manual_seed(2)
    returned: Any = subject(inputs, state)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Tensor):
        raise LawError(part, None, f"forward returns {kind_of(returned)}; return the pair (outputs, state)")
    if not is_state(returned[1]):
        raise LawError(part, None, f"forward returns {kind_of(returned[1])} as its state; return a tensor or a tuple")
    return returned[0], returned[1]
