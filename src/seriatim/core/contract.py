"""The one contract: what every sequence layer, and every cell of a recurrence, must offer."""

import itertools
from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .lengths import check_lengths, zero_padding
from .state import State, fits, state_leaves

Wrap: TypeAlias = Literal["none", "residual", "block"]
"""Around a layer: nothing; a norm and a residual connection; these, and a feed-forward network likewise."""
LEARNING_RATES: Mapping[str, float] = {"lm": 1e-2, "mlm": 1e-2, "classify": 1e-2, "tag": 1e-2, "seq2seq": 1e-2}
"""The default learning rate of each task with AdamW, for layers that declare no other.

`benchmarks/learning_rates.py` measures them; `benchmarks/RESULTS.md` says which layers are measured for each task.
"""


class Stateful(nn.Module):
    """What layers and cells share."""

    keeps: ClassVar[str] = ""
    """What the state holds, in words, for the table of architectures."""
    parallel: ClassVar[bool] = False
    """Whether training runs in parallel over time."""
    paper: ClassVar[str] = ""
    learning_rates: ClassVar[Mapping[str, float]] = {}
    """Learning rates for AdamW by task, where they differ from `LEARNING_RATES`; see `learning_rate_for`."""
    gate_names: ClassVar[tuple[str, ...]] = ()
    """What each sigmoid (or softplus, for a step size) of its equations decides, in the order they are computed."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters of two dimensions or more that weight decay must leave alone, as it does vectors."""

    input_size: int
    output_size: int

    @classmethod
    def learning_rate_for(cls, task: str) -> float:
        """The default learning rate for a task (``lm``, ``mlm``, ``classify``, ``tag``, ``seq2seq``) with AdamW."""
        return {**LEARNING_RATES, **cls.learning_rates}[task]

    def zeros(self, batch_size: int, *sizes: int) -> Tensor:
        """Zeros ``(batch, *sizes)`` of the type and on the device of the layer's parameters and constants."""
        like = next(itertools.chain(self.parameters(), self.buffers()), torch.zeros(()))
        return like.new_zeros(batch_size, *sizes)


class SequenceLayer(Stateful):
    """A function of a sequence that says what it keeps of the past.

    A subclass sets ``input_size`` and ``output_size`` and writes `initial_state` and `forward`; `step` follows.
    Modules hold parameters and constants only: state goes in and comes out, and the given state is never changed.
    """

    causal: bool = True
    takes_memory: bool = False
    """Whether `initial_state` needs a memory to attend to."""
    takes_encoder_state: bool = False
    """Whether `initial_state` also takes ``encoder_state``, what an encoder of the memory ended with."""
    wrap: ClassVar[Wrap] = "none"
    """What `seriatim.layer` puts around it unless told otherwise."""
    square: ClassVar[bool] = False
    """Whether it gives as many features as it takes, so that other inputs need a linear map first."""
    _state_shapes: list[torch.Size] | None = None

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """The state before the first input.

        Args:
            batch_size: rows of the batch.
            memory: an encoder's outputs ``(batch, memory_time, memory_size)``, for layers that attend to one.
            memory_lengths: ``(batch,)``.

        Raises:
            ValueError: a memory is given to a layer that takes none.
        """
        raise NotImplementedError

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs over a sequence.

        Args:
            inputs: ``(batch, time, input_size)``.
            state: the state to go on from; None for the initial one.
            lengths: ``(batch,)`` valid inputs of each row, 0 allowed; None where every row is full.

        Returns:
            Outputs ``(batch, time, output_size)``, zero on padding, and the state after each row's last valid input.

        Raises:
            ValueError: shapes that do not fit; the message names the right ones.
        """
        raise NotImplementedError

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One input a row: ``(batch, input_size)`` to ``(batch, output_size)``.

        Raises:
            ValueError: shapes that do not fit.
        """
        self.check_input(inputs)
        outputs, state = self(inputs.unsqueeze(1), state)
        return outputs.squeeze(1), state

    def path_lengths(self, distance: int) -> Tensor:
        """How many operations along time, one after another, lead from earlier inputs to the present output.

        As in a recurrence, it is one for every step in between. A layer that sees earlier inputs directly, such as
        attention or a window, overrides this; see `seriatim.layers.paths`.

        Args:
            distance: steps back of the furthest input, 0 or more.

        Returns:
            float64 ``(distance + 1,)``; entry d is for the input d steps back, infinite where there is no path.
        """
        return torch.arange(distance + 1, dtype=torch.float64)

    def check_encoder(self, encoder: "SequenceLayer") -> None:
        """Raises ValueError where a layer that takes an encoder's state cannot take that of ``encoder``."""

    def begin(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State, Tensor | None]:
        """What a `forward` does first: checks shapes, supplies the initial state, clears padding."""
        state, lengths = self.admit(inputs, state, lengths)
        return zero_padding(inputs, lengths), state, lengths

    def admit(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[State, Tensor | None]:
        """`begin` for a layer that never reads padding: checks shapes, supplies the initial state."""
        if inputs.dim() != 3 or inputs.shape[2] != self.input_size:
            raise ValueError(f"inputs must have shape (batch, time, {self.input_size}); got {tuple(inputs.shape)}")
        lengths = check_lengths(lengths, inputs.shape[0], inputs.shape[1])
        if state is None:
            state = self.initial_state(inputs.shape[0])
        else:
            self.check_state(state, inputs.shape[0])
        return state, lengths

    def check_step(self, inputs: Tensor, state: State) -> None:
        """What a `step` that computes something does first: raises ValueError where inputs or state do not fit."""
        self.check_input(inputs)
        self.check_state(state, inputs.shape[0])

    def check_input(self, inputs: Tensor) -> None:
        """Raises ValueError where the inputs of a step have not their shape."""
        if inputs.dim() != 2 or inputs.shape[1] != self.input_size:
            raise ValueError(f"inputs of a step must have shape (batch, {self.input_size}); got {tuple(inputs.shape)}")

    def check_state(self, state: State, batch_size: int) -> None:
        """Raises ValueError where a state has not one row for each of the batch, or is another layer's."""
        found = [leaf.shape for leaf in state_leaves(state)]
        if self._state_shapes is None and not self.takes_memory:
            self._state_shapes = [leaf.shape for leaf in state_leaves(self.initial_state(1))]
        expected = found if self._state_shapes is None else self._state_shapes
        if len(found) != len(expected) or not all(map(fits, found, expected)):
            raise ValueError(
                f"the state is another layer's: {type(self).__name__} keeps {_shapes(expected, batch_size)} (what is 0 "
                f"grows); got {_shapes(found)}"
            )
        if any(shape[0] != batch_size for shape in found):
            raise ValueError(f"inputs have {batch_size} rows and the state another number; got {_shapes(found)}")


class RecurrentCell(Stateful):
    """One step of a recurrence, written as its equations."""

    recurrent_weights: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that act on the state, which weight dropout drops."""

    def initial_state(self, batch_size: int) -> State:
        """The state before the first input."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: inputs ``(batch, input_size)`` to outputs ``(batch, output_size)`` and the next state."""
        raise NotImplementedError


def refuse_memory(memory: Tensor | None) -> None:
    """Raises ValueError where a memory is given to a layer that takes none."""
    if memory is not None:
        raise ValueError("this layer attends to no memory; initial_state takes the batch size alone")


def _shapes(shapes: list[torch.Size], batch_size: int | None = None) -> str:
    return ", ".join(str(tuple(shape) if batch_size is None else (batch_size, *shape[1:])) for shape in shapes)
