"""The check before a training, with one short batch: shapes, nothing changed in place, rows independent, causality."""

import copy
from typing import Any

import torch
from torch import Tensor

from ..core.contract import RecurrentCell, SequenceLayer
from ..core.state import State, map_state, select_state, state_leaves
from .broken_laws import (
    BATCH,
    LawError,
    Part,
    compare,
    initial_state,
    is_state,
    one_line,
    require_same_bits,
    shapes_of,
    type_in_words,
)

ALONE = "; compute every row from its own inputs and state alone"
"""What to do about rows that influence each other."""


def check_quickly(part: Part, *, memory: Tensor | None = None, memory_lengths: Tensor | None = None) -> None:
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
        raise LawError(
            part, None, f"initial_state returns {type_in_words(state)}; return a tensor or a tuple of tensors"
        )
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
            raise LawError(part, None, f"the state has shapes {shapes}; return a state of the same shapes")
        earlier, state = state, end
    state = earlier
    expected = (*inputs.shape[:-1], part.output_size)
    if tuple(outputs.shape) != expected:
        shapes = f"inputs {tuple(inputs.shape)} give outputs {tuple(outputs.shape)}, not {expected}"
        raise LawError(part, None, f"{shapes}; return outputs of this shape")
    if not outputs.isfinite().all():
        raise LawError(part, None, "its outputs are NaN or infinite; look for a division or a logarithm")
    if not subject.training and not torch.equal(outputs, _run(part, subject, inputs, state)[0]):
        raise LawError(part, None, "two equal calls have different outputs; keep all state in the returned state")
    others = inputs.clone()
    others[1:] += 1
    changed, changed_end = _run(part, subject, others, state)
    compare(part, 7, "outputs of row 0, after other rows changed,", changed[:1], outputs[:1], ALONE)
    for leaf, other in zip(state_leaves(end), state_leaves(changed_end), strict=True):
        compare(part, 7, "the state of row 0, after other rows changed,", other[:1], leaf[:1], ALONE)
    if isinstance(part, SequenceLayer) and part.causal:
        later = inputs.clone()
        later[:, -1] += 1
        changed, _ = _run(part, subject, later, state)
        remedy = "; read no later input, or set causal = False"
        compare(part, 5, "outputs before a changed input", changed[:, :-1], outputs[:, :-1], remedy)
    if isinstance(part, SequenceLayer) and not subject.training:
        _check_padding(part, subject, inputs, state)


def _check_padding(part: Part, subject: Part, inputs: Tensor, state: State) -> None:
    """Check that a layer accepts ``lengths`` and never reads padding."""
    lengths = torch.tensor([inputs.shape[1], 0, 1, 2])
    padded = inputs.clone()
    for row, length in enumerate(lengths.tolist()):
        padded[row, length:] = float("nan")
    remedy = "; begin forward with self.begin(inputs, state, lengths)"
    outputs, end = _run(part, subject, padded, state, lengths=lengths)
    if not all(leaf.isfinite().all() for leaf in state_leaves(end)):
        raise LawError(part, 3, f"the state after rows with NaN in their padding is not finite{remedy}")
    for row, length in enumerate(lengths.tolist()):
        alone, _ = _run(part, subject, inputs[row : row + 1, :length], select_state(state, torch.tensor([row])))
        compare(part, 3, "outputs of a row beside longer ones", outputs[row : row + 1, :length], alone, remedy)


def _run(part: Part, subject: Part, inputs: Tensor, state: State, **lengths: Tensor) -> tuple[Tensor, State]:
    """Run a copy of a part, with the same random numbers at every call, and check that it returns a pair."""
    torch.manual_seed(2)
    returned: Any = subject(inputs, state, **lengths)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Tensor):
        raise LawError(part, None, f"forward returns {type_in_words(returned)}; return the pair (outputs, state)")
    if not is_state(returned[1]):
        raise LawError(
            part, None, f"forward returns {type_in_words(returned[1])} as its state; return a tensor or a tuple"
        )
    return returned[0], returned[1]
