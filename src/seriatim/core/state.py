"""The state: what a model remembers of the inputs it has read.

A state is a tensor, or a tuple (usually a ``NamedTuple``) of states, its children. Dimension 0 of every leaf is the
batch. A leaf that grows with time grows along one dimension, whose size is 0 in the initial state. The newest entry is
last, and a row with fewer entries than the longest row starts with zeros. These functions work for every architecture
and never change a state in place.

The kind of a state is its structure with the types of its tuples. A layer whose state has several tensors has a
``NamedTuple`` of its own, so that no other layer takes its state, also where the shapes agree; one made of other layers
has one for each choice of these (see `seriatim.core.contract.joined_type`). The kind of a single tensor is not known;
in a file it stands beside the names of the layers (see `seriatim.core.contract.saved_kind`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .errors import MismatchError, RangeError

State: TypeAlias = Tensor | tuple["State", ...]
OutputsAndState: TypeAlias = tuple[Tensor, State]
"""What a sequence, or one step of it, computes."""
FunctionalStep: TypeAlias = Callable[[Sequence[Tensor], Tensor, State], OutputsAndState]
"""One step as a function of (weights, inputs ``(batch, ...)``, state)."""
S = TypeVar("S", bound=State)
Kind: TypeAlias = type | tuple["Kind", ...]
"""The type of a state, followed by the kinds of its children if it is a tuple."""


def kind_of(state: object) -> Kind:
    """Return the kind of a state; that of every tensor is `Tensor`."""
    if isinstance(state, Tensor):
        return Tensor
    return (type(state), *map(kind_of, state)) if isinstance(state, tuple) else type(state)


def kind_in_words(kind: Kind) -> str:
    """Return a kind as text, such as ``Stack[LSTM, GRU](LSTMState(Tensor, Tensor), Tensor)``."""
    if not isinstance(kind, tuple):
        return kind.__qualname__
    first, *children = map(kind_in_words, kind)
    return f"{first}({', '.join(children)})"


def require_kind(found: Kind | str, expected: Kind | str, owner: str) -> None:
    """Raise InputError where the kind of a state is not the one that its ``owner``, a layer or a model, needs.

    Both are kinds, or both are texts from files.
    """
    if found != expected:
        prefix = "" if isinstance(found, str) else "state: "  # of a file: the caller names it
        found, expected = (kind if isinstance(kind, str) else kind_in_words(kind) for kind in (found, expected))
        raise MismatchError(
            f"{prefix}the state belongs to another layer ({owner} keeps {expected}, not {found}); give one of {owner}"
        )


def map_state(fn: Callable[..., Tensor], state: S, *rest: State) -> S:
    """Apply ``fn`` to the matching leaves of some states; raise InputError if they differ in structure."""
    if isinstance(state, Tensor):
        if not all(isinstance(other, Tensor) for other in rest):
            raise MismatchError("states: a tensor in one is a tuple in another; give states of one layer")
        return fn(state, *rest)  # type: ignore[return-value]
    for other in rest:
        if not isinstance(other, tuple) or len(other) != len(state):
            raise MismatchError(f"states: not all are tuples of {len(state)} states; give states of one layer")
    return with_children(state, [map_state(fn, *children) for children in zip(state, *rest, strict=True)])


def select_state(state: S, index: Tensor) -> S:
    """Select rows of the batch, repeated or reordered: integers ``(rows,)`` or booleans ``(batch,)``."""
    return map_state(lambda leaf: leaf[index], state)


def join_states(states: list[S]) -> S:
    """Join the rows of several states into one batch; leaves of different sizes are padded with zeros in front."""
    return map_state(lambda *leaves: torch.cat(_pad_to_largest(leaves)), *states)


def detach_state(state: S) -> S:
    """Detach the state from the autograd graph, as truncated backpropagation through time does."""
    return map_state(Tensor.detach, state)


def state_leaves(state: State) -> list[Tensor]:
    """Return the tensors of the state, in order."""
    if isinstance(state, Tensor):
        return [state]
    if not isinstance(state, tuple):
        raise RangeError(f"state: got a {type(state).__name__}; give a tensor or a tuple of states")
    return [leaf for child in state for leaf in state_leaves(child)]


def with_leaves(state: S, leaves: Iterable[Tensor]) -> S:
    """Return a state of the same structure with other leaves, in order."""
    remaining = iter(leaves)
    return map_state(lambda _: next(remaining), state)


def with_children(state: S, children: Iterable[State]) -> S:
    """Return a tuple of the same type as a state, named fields included, that holds other states."""
    return type(state)(*children) if hasattr(state, "_fields") else tuple(children)  # type: ignore[return-value]


def state_bytes(state: State) -> int:
    """Return the size of the state's values in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in state_leaves(state))


def state_to_dict(state: State) -> dict[str, Tensor]:
    """Name every leaf by its path (``"0.cell"``), contiguous, ready for a file of named tensors."""
    if isinstance(state, Tensor):
        return {"": state.contiguous()}
    return {
        f"{name}.{path}" if path else name: leaf
        for name, child in zip(_names(state), state, strict=True)
        for path, leaf in state_to_dict(child).items()
    }


def state_from_dict(tensors: Mapping[str, Tensor], like: S) -> S:
    """Restore a state with the structure of ``like`` from copies of the leaves written by `state_to_dict`.

    Raises:
        InputError: a leaf is missing or unknown, or has another type or shape. The batch may differ, and so may
            dimensions of size 0 in ``like``, which grow.
    """
    expected = state_to_dict(like)
    if set(expected) != set(tensors):
        different = ", ".join(name or "the state" for name in sorted(set(expected) ^ set(tensors)))
        raise MismatchError(
            f"the saved state does not belong to this model (it differs in {different}); give one of this model"
        )
    for name, leaf in expected.items():
        saved = tensors[name]
        if not fits(saved.shape, leaf.shape) or saved.dtype != leaf.dtype:
            raise MismatchError(
                f"the saved state does not belong to this model ({name!r} has shape {tuple(saved.shape)} and type "
                f"{saved.dtype}, this model needs {tuple(leaf.shape)} and {leaf.dtype}); give one of this model"
            )
    return _fill(like, tensors, "")


def fits(shape: Sequence[int], like: Sequence[int]) -> bool:
    """Tell whether shapes are equal but for the batch and for dimensions of size 0 in ``like``, which grow."""
    return shape[1:] == like[1:] or (
        len(shape) == len(like) and all(initial in (0, size) for initial, size in zip(like[1:], shape[1:], strict=True))
    )


def _pad_to_largest(leaves: tuple[Tensor, ...]) -> list[Tensor]:
    """Pad leaves with zeros in front so that all dimensions but the batch have the largest size of any leaf."""
    largest = [max(sizes) for sizes in zip(*(leaf.shape[1:] for leaf in leaves), strict=True)]
    return [
        F.pad(leaf, [n for goal, size in zip(largest, leaf.shape[1:], strict=True) for n in (0, goal - size)][::-1])
        if list(leaf.shape[1:]) != largest
        else leaf
        for leaf in leaves
    ]


def _fill(like: S, tensors: Mapping[str, Tensor], prefix: str) -> S:
    if isinstance(like, Tensor):
        # copied, because the last bits of a matrix product depend on the addresses of its factors
        return tensors[prefix].to(like.device, copy=True)  # type: ignore[return-value]
    children = [
        _fill(child, tensors, f"{prefix}.{name}" if prefix else name)
        for name, child in zip(_names(like), like, strict=True)
    ]
    return with_children(like, children)


def _names(state: tuple[State, ...]) -> tuple[str, ...]:
    names = getattr(state, "_fields", map(str, range(len(state))))
    return tuple(name.removeprefix("_") for name in names)  # only fields named by their numbers begin with it
