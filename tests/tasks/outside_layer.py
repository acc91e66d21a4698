"""A cell as a user would write it outside the package; importing this module registers it and the task.

A comparison imports this module in other processes. `tests/conftest.py` removes both for the tests that do not ask.
"""

import torch
from torch import Tensor, nn

import seriatim
from seriatim import RecurrentCell
from seriatim.layers.registry import REGISTRY
from seriatim.tasks import TASKS, register

from .outside_task import RATE


class Leaky(RecurrentCell):
    """h_t = a h_{t-1} + (1 - a) W x_t."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.in_proj = nn.Linear(input_size, hidden_size)
        self.decay = nn.Parameter(torch.zeros(hidden_size))

    def initial_state(self, batch_size: int) -> Tensor:
        return self.decay.new_zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.sigmoid(self.decay)
        h = a * state + (1 - a) * self.in_proj(inputs)
        return h, h


def register_both() -> None:
    """Register the layer and the task."""
    seriatim.register("leaky", Leaky)
    register("rate", RATE)


def remove_both() -> None:
    """Undo `register_both`, for tests of every registered layer and task of the library."""
    REGISTRY.pop("leaky", None)
    TASKS.pop("rate", None)


register_both()
