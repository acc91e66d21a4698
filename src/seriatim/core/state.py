"""What a model keeps of the past.

A state is a tensor, or a tuple (usually a ``NamedTuple``) of states. Dimension 0 of every leaf is the batch.
A leaf that grows with time grows along one dimension, which is 0 in the initial state; the newest entry is last, and
a row that has kept less than the longest is zero in front. These functions are written once, for every architecture; a
state is never changed in place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

State: TypeAlias = Tensor | tuple["State", ...]
S = TypeVar("S", bound=State)


def map_state(fn: Callable[..., Tensor], state: S, *rest: State) -> S:
    """Applies ``fn`` to every leaf of ``state`` and to the matching leaves of ``rest``.

    Raises:
        ValueError: the states differ in structure.
    """
    if isinstance(state, Tensor):
        if not all(isinstance(other, Tensor) for other in rest):
            raise ValueError("states differ in structure: a tensor stands against a tuple")
        return fn(state, *rest)  # type: ignore[return-value]
    for other in rest:
        if not isinstance(other, tuple) or len(other) != len(state):
            raise ValueError(f"states differ in structure: expected a tuple of {len(state)} states")
    return _rebuild(state, [map_state(fn, *parts) for parts in zip(state, *rest, strict=True)])


def select_state(state: S, index: Tensor) -> S:
    """Keeps the rows of the batch that ``index`` names: integers ``(rows,)`` or booleans ``(batch,)``.

    Rows may be repeated or reordered, as beam search does.
    """
    return map_state(lambda leaf: leaf[index], state)


def join_states(states: list[S]) -> S:
    """Joins the rows of several states of one structure into one batch, in order.

    Leaves that have grown to different sizes are filled up with zeros in front.
    """
    return map_state(lambda *leaves: torch.cat(_level(leaves)), *states)


def detach_state(state: S) -> S:
    """Cuts the state from the graph that made it, as truncated backpropagation through time does."""
    return map_state(Tensor.detach, state)


def state_leaves(state: State) -> list[Tensor]:
    """The tensors of the state, in order."""
    if isinstance(state, Tensor):
        return [state]
    return [leaf for part in state for leaf in state_leaves(part)]


def state_bytes(state: State) -> int:
    """Bytes the state's values take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in state_leaves(state))


def state_to_dict(state: State) -> dict[str, Tensor]:
    """Names every leaf by its path (``"0.cell"``), contiguous, ready for a file of named tensors."""
    if isinstance(state, Tensor):
        return {"": state.contiguous()}
    return {
        f"{name}.{path}" if path else name: leaf
        for name, part in zip(_names(state), state, strict=True)
        for path, leaf in state_to_dict(part).items()
    }


def state_from_dict(tensors: Mapping[str, Tensor], like: S) -> S:
    """Puts copies of the leaves written by `state_to_dict` back into the structure of ``like``.

    Copies, because the tensors of a file may lie at any address, and on the address of its factors hang the last bits
    of a matrix product.

    Raises:
        ValueError: a leaf is missing, left over, or of another type or shape (the batch, and what has size 0 in
            ``like`` and grows, aside).
    """
    expected = state_to_dict(like)
    if set(expected) != set(tensors):
        odd = ", ".join(name or "the state" for name in sorted(set(expected) ^ set(tensors)))
        raise ValueError(f"the saved state does not belong to this model: it differs in {odd}")
    for name, leaf in expected.items():
        found = tensors[name]
        if not fits(found.shape, leaf.shape) or found.dtype != leaf.dtype:
            raise ValueError(
                f"the saved state does not belong to this model: {name!r} holds {tuple(found.shape)} "
                f"{found.dtype}, this model keeps {tuple(leaf.shape)} {leaf.dtype}"
            )
    return _fill(like, tensors, "")


def fits(shape: Sequence[int], like: Sequence[int]) -> bool:
    """Whether a leaf may have a shape, the batch aside: what has size 0 in the initial state may have grown."""
    return shape[1:] == like[1:] or (
        len(shape) == len(like) and all(size in (0, given) for size, given in zip(like[1:], shape[1:], strict=True))
    )


def _level(leaves: tuple[Tensor, ...]) -> list[Tensor]:
    """Gives leaves that differ in a dimension its largest size, with zeros in front."""
    sizes = [max(found) for found in zip(*(leaf.shape[1:] for leaf in leaves), strict=True)]
    return [
        leaf
        if list(leaf.shape[1:]) == sizes
        else F.pad(leaf, [n for size, has in zip(sizes, leaf.shape[1:], strict=True) for n in (0, size - has)][::-1])
        for leaf in leaves
    ]


def _fill(like: S, tensors: Mapping[str, Tensor], prefix: str) -> S:
    if isinstance(like, Tensor):
        return tensors[prefix].to(like.device, copy=True)  # type: ignore[return-value]
    parts = [
        _fill(part, tensors, f"{prefix}.{name}" if prefix else name)
        for name, part in zip(_names(like), like, strict=True)
    ]
    return _rebuild(like, parts)


def _names(state: tuple[State, ...]) -> tuple[str, ...]:
    return getattr(state, "_fields", tuple(str(i) for i in range(len(state))))


def _rebuild(like: S, parts: list[State]) -> S:
    """Makes a tuple of the same type as ``like``, named fields included."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)  # type: ignore[return-value]
