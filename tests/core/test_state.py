"""States: structure is kept, whatever it is."""

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seriatim.core.lengths import check_lengths, reverse, valid_mask, zero_padding
from seriatim.core.state import (
    detach_state,
    join_states,
    map_state,
    select_state,
    state_bytes,
    state_from_dict,
    state_to_dict,
)

from ..refusals import refused


class Pair(NamedTuple):
    left: Tensor
    right: tuple


leaf = st.integers(0, 100).map(lambda seed: torch.randn(3, 2, generator=torch.Generator().manual_seed(seed)))
states = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.tuples(leaf, st.tuples(inner)).map(lambda p: Pair(*p))
    ),
    max_leaves=6,
)


def structure(state):
    return "x" if isinstance(state, Tensor) else (type(state), *map(structure, state))


@settings(deadline=None, max_examples=60)
@given(states)
def test_every_function_keeps_the_structure_and_the_values(state) -> None:
    assert structure(map_state(lambda x: x + 1, state)) == structure(state)
    assert structure(detach_state(state)) == structure(state)
    tensors = state_to_dict(state)
    again = state_from_dict(tensors, map_state(torch.zeros_like, state))
    assert structure(again) == structure(state)
    assert all(torch.equal(a, b) for a, b in zip(tensors.values(), state_to_dict(again).values(), strict=True))
    assert state_bytes(state) == 24 * len(tensors)
    rows = [select_state(state, torch.tensor([i])) for i in range(3)]
    joined = state_to_dict(join_states(rows))
    assert all(torch.equal(joined[name], value) for name, value in tensors.items())


def test_a_state_of_another_model_is_refused() -> None:
    state = Pair(torch.zeros(2, 3), (torch.zeros(2, 4),))
    tensors = state_to_dict(state)
    assert set(tensors) == {"left", "right.0"}
    with refused("mismatch", value="right.0"):
        state_from_dict({"left": tensors["left"]}, state)
    with refused("mismatch", value="left"):
        state_from_dict({**tensors, "left": torch.zeros(2, 5)}, state)
    with refused("mismatch", "states"):
        map_state(lambda a, b: a, state, torch.zeros(2))
    with refused("mismatch", "states"):
        map_state(lambda a, b: a, torch.zeros(2), state)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_lengths(lengths: list[int]) -> None:
    inputs = torch.arange(len(lengths) * 6.0).view(len(lengths), 6, 1) + 1
    given_lengths = torch.tensor(lengths)
    assert valid_mask(given_lengths, 6).sum(1).tolist() == lengths
    mirrored = reverse(inputs, given_lengths)
    for row, length in enumerate(lengths):
        assert torch.equal(mirrored[row, :length], inputs[row, :length].flip(0))
        assert torch.equal(mirrored[row, length:], inputs[row, length:])
    assert torch.equal(reverse(mirrored, given_lengths), inputs)
    padded = inputs.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = float("nan")
    assert not zero_padding(padded, given_lengths).isnan().any()
    full = check_lengths(lengths, len(lengths), 6)
    assert (full is None) == (min(lengths) == 6)
