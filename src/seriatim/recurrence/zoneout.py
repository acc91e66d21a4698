"""Zoneout: random values of the state keep their previous value.

D. Krueger et al., "Zoneout: regularizing RNNs by randomly preserving hidden activations", ICLR 2017.

    h_t = m_t ⊙ h_{t−1} + (1 − m_t) ⊙ f(x_t, h_{t−1}),  m_t ~ Bernoulli(p)   in training
    h_t = p h_{t−1} + (1 − p) f(x_t, h_{t−1})                                 in evaluation

p ``rate`` · m a mask, drawn at every step for every value of every part of the state.
"""

import torch
from torch import Tensor

from ..core.contract import RecurrentCell
from ..core.errors import InputError
from ..core.state import State, map_state, state_leaves
from .reference import check_returned


class Zoneout(RecurrentCell):
    """A cell with zoneout.

    If the cell's output is a part of its new state, zoneout applies to the output, too.

    Args:
        cell: computes the new state.
        rate: p, the probability that a value keeps its previous one.

    Raises:
        ValueError: a rate outside [0, 1).
    """

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
        return hold_back(outputs, new, state, rate=self.rate, training=self.training)

    def extra_repr(self) -> str:
        """Return the rate, for ``print``."""
        return f"rate={self.rate}"


def hold_back(outputs: Tensor, new: State, old: State, *, rate: float, training: bool) -> tuple[Tensor, State]:
    """Mix the state before a step into the state after it, and into the outputs if they are a part of the state.

    Args:
        outputs: of the step, ``(batch, output_size)``.
        new: the state after the step.
        old: the state before it.
        rate: the probability that a value keeps its previous one.
        training: whether to draw masks or to use their expectation.
    """

    def mix(new: Tensor, old: Tensor) -> Tensor:
        if training:
            return torch.where(torch.rand_like(new) < rate, old, new)
        return rate * old + (1 - rate) * new

    mixed = map_state(mix, new, old)
    for leaf, held in zip(state_leaves(new), state_leaves(mixed), strict=True):
        if outputs is leaf:
            return held, mixed
    return outputs, mixed


def check_rate(name: str, rate: float) -> float:
    """Return ``rate``.

    Raises:
        InputError: the rate is outside [0, 0.99]; the message names it ``name``. Higher rates would drop everything.
    """
    if not 0 <= rate <= 0.99:
        raise InputError(f"model.options.{name} must be between 0 and 0.99; got {rate}")
    return rate
