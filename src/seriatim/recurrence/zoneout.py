"""Zoneout: random values of the state keep their previous value.

D. Krueger et al., "Zoneout: regularizing RNNs by randomly preserving hidden activations", ICLR 2017.

    h_t = m_t ⊙ h_{t−1} + (1 − m_t) ⊙ f(x_t, h_{t−1}),  m_t ~ Bernoulli(p)   in training
    h_t = p h_{t−1} + (1 − p) f(x_t, h_{t−1})                                 in evaluation

p ``rate`` · m a mask, drawn at every step for every value of every part of the state.
"""

from numbers import Real
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from ..core.contract import RecurrentCell
from ..core.errors import RangeError, shown
from ..core.state import State, map_state, state_leaves
from .reference import check_returned

Rate = Annotated[float, Interval(ge=0, le=0.99)]
"""A rate of dropout or zoneout; higher rates would drop everything."""


class Zoneout(RecurrentCell):
    """A cell with zoneout at rate p, which also applies to the cell's output if that is a part of its new state."""

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
        """Return h_t for a part of the state."""
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
