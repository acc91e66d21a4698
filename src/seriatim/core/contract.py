"""The contract: what every sequence layer, and every cell of a recurrence, must offer."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .lengths import check_lengths, zero_padding
from .state import OutputsAndState, State, fits, state_leaves

Wrap: TypeAlias = Literal["none", "residual", "block"]
"""What surrounds a layer: nothing; a norm and a residual connection; or these and a feed-forward network."""
LEARNING_RATES: Mapping[str, float] = {"lm": 1e-2, "mlm": 1e-2, "classify": 3e-3, "tag": 3e-3, "seq2seq": 1e-2}
"""The default learning rate of each task with AdamW, for layers that declare no other.

`benchmarks/learning_rates.py` measures them; `benchmarks/RESULTS.md` has the figures of every layer for every task.
Those of taggers and classifiers are the best over whole trainings, which are longer than the 150 steps of that script.
"""


class Stateful(nn.Module):
    """What layers and cells have in common."""

    keeps: ClassVar[str] = ""
    """What the state holds, in words, for the table of architectures."""
    parallel: ClassVar[bool] = False
    """Whether training runs in parallel over time."""
    paper: ClassVar[str] = ""
    """The source of the equations: authors and year."""
    learning_rates: ClassVar[Mapping[str, float]] = {}
    """Learning rates for AdamW by task, where they differ from `LEARNING_RATES`; see `learning_rate_for`."""
    gate_names: ClassVar[tuple[str, ...]] = ()
    """What each sigmoid (or softplus, for a step size) of the equations decides, in the order of computation."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters of two or more dimensions that weight decay must leave unchanged, as it does vectors."""

    input_size: int
    output_size: int

    @classmethod
    def learning_rate_for(cls, task: str) -> float:
        """Return the default learning rate with AdamW; for tasks without one, the smallest of `LEARNING_RATES`."""
        return {**LEARNING_RATES, **cls.learning_rates}.get(task, min(LEARNING_RATES.values()))

    def zeros(self, batch_size: int, *sizes: int) -> Tensor:
        """Return zeros ``(batch, *sizes)`` with the type and device of the layer's parameters and constants."""
        like = next(itertools.chain(self.parameters(), self.buffers()), torch.zeros(()))
        return torch.zeros(batch_size, *sizes, dtype=like.dtype, device=like.device)


class SequenceLayer(Stateful):
    """A function of a sequence that carries an explicit state.

    A subclass sets ``input_size`` and ``output_size`` and writes `initial_state` and `forward`; `step` follows.
    Modules hold parameters and constants only, and the state that the caller gives is never changed.
    """

    causal: bool = True
    """Whether no output depends on a later input."""
    wrap: ClassVar[Wrap] = "none"
    """What `seriatim.layer` puts around the layer by default."""
    square: ClassVar[bool] = False
    """Whether outputs must have the width of inputs; `seriatim.layer` then puts a linear map before the layer."""

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first input, for ``batch_size`` rows."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run over a sequence.

        Args:
            inputs: ``(batch, time, input_size)``.
            state: the state before the first input; None for the initial state.
            lengths: ``(batch,)``, the number of valid inputs of each row, 0 allowed; None where every row is full.

        Returns:
            Outputs ``(batch, time, output_size)``, zero on padding, and the state after each row's last valid input.

        Raises:
            ValueError: shapes that do not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Process one input of each row: ``(batch, input_size)`` to ``(batch, output_size)``, and the next state.

        Raises:
            ValueError: shapes that do not fit, or a layer that is not causal.
        """
        if not self.causal:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs the whole sequence and cannot step; use a causal layer to stream or generate"
            )
        self.check_input(inputs)
        outputs, state = self(inputs.unsqueeze(1), state)
        return outputs.squeeze(1), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the number of sequential operations along time from earlier inputs to the present output.

        In a recurrence this is one operation for every step in between. A layer that sees earlier inputs directly,
        such as attention or a window, overrides this method; see `seriatim.layers.path_lengths`.

        Returns:
            float64 ``(distance + 1,)``; entry d is for the input d steps back, infinite where there is no path.
        """
        return torch.arange(distance + 1, dtype=torch.float64)

    def begin(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State, Tensor | None]:
        """Check shapes, supply the initial state and set padding to zero; a `forward` calls this first."""
        state, lengths = self.admit(inputs, state, lengths)
        return zero_padding(inputs, lengths), state, lengths

    def admit(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[State, Tensor | None]:
        """Check shapes and supply the initial state, for a layer that never reads padding; otherwise see `begin`."""
        if inputs.dim() != 3 or inputs.shape[2] != self.input_size:
            raise ValueError(f"inputs must have shape (batch, time, {self.input_size}); got {tuple(inputs.shape)}")
        lengths = check_lengths(lengths, inputs.shape[0], inputs.shape[1])
        if state is None:
            state = self.initial_state(inputs.shape[0])
        else:
            self.check_state(state, inputs.shape[0])
        return state, lengths

    def check_step(self, inputs: Tensor, state: State) -> None:
        """Raise ValueError where the inputs or the state of a step do not fit the layer."""
        self.check_input(inputs)
        self.check_state(state, inputs.shape[0])

    def check_input(self, inputs: Tensor) -> None:
        """Raise ValueError where the inputs of a step have the wrong shape."""
        if inputs.dim() != 2 or inputs.shape[1] != self.input_size:
            raise ValueError(f"inputs of a step must have shape (batch, {self.input_size}); got {tuple(inputs.shape)}")

    def check_state(self, state: State, batch_size: int) -> None:
        """Raise ValueError where a state belongs to another layer or has another number of rows than the batch."""
        expected = _initial_shapes.get(self)
        if expected is None:
            expected = _initial_shapes[self] = _leaf_shapes(self.initial_state(1))
        shapes = _leaf_shapes(state)
        if len(shapes) != len(expected) or not all(map(fits, shapes, expected)):
            right = [(batch_size, *shape[1:]) for shape in expected]
            raise ValueError(
                f"the state belongs to another layer: the state of {type(self).__name__} has shapes "
                f"{_shape_list(right)} (dimensions of size 0 grow); got {_shape_list(shapes)}"
            )
        _check_rows(shapes, batch_size)


_initial_shapes: WeakKeyDictionary[SequenceLayer, list[torch.Size]] = WeakKeyDictionary()
"""Shapes of the leaves of initial states; computing these at every step would take longer than checking them."""


class MemoryLayer(SequenceLayer):
    """A layer that attends to the outputs of an encoder, which are part of its state.

    Attributes:
        reads_encoder_state: whether `initial_state` needs ``encoder_state``; if not, it need not have this argument.
    """

    reads_encoder_state: bool = False

    def initial_state(
        self,
        batch_size: int,
        memory: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        *,
        encoder_state: State | None = None,
    ) -> State:
        """Return the state before the first input.

        Args:
            batch_size: rows of the batch.
            memory: an encoder's outputs ``(batch, memory_time, memory_size)``.
            memory_lengths: ``(batch,)``, 0 allowed; None where every row is full.
            encoder_state: the encoder's state after its last input; used by decoders that copy it.

        Raises:
            ValueError: no memory, or one that does not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    def check_memory(
        self, batch_size: int, memory: Tensor | None, memory_lengths: Tensor | None, memory_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return a memory of width ``memory_size`` with zeros on padding, and its lengths; see `initial_state`."""
        if memory is None:
            name = type(self).__name__
            raise ValueError(f"{name} needs a memory; give initial_state(batch_size, memory, memory_lengths)")
        if memory.dim() != 3 or (memory.shape[0], memory.shape[2]) != (batch_size, memory_size):
            raise ValueError(
                f"memory must have shape ({batch_size}, memory_time, {memory_size}); got {tuple(memory.shape)}"
            )
        lengths = check_lengths(memory_lengths, batch_size, memory.shape[1])
        memory = zero_padding(memory, lengths)
        if lengths is None:
            lengths = torch.full((batch_size,), memory.shape[1])
        return memory, lengths.to(memory.device, copy=True)

    def check_encoder(self, encoder: SequenceLayer) -> None:
        """Raise InputError where this layer cannot attend to the outputs, or use the state, of ``encoder``."""

    def check_state(self, state: State, batch_size: int) -> None:
        """Raise ValueError where a state has another number of rows than the batch."""
        _check_rows(_leaf_shapes(state), batch_size)


def begin_state(
    layer: SequenceLayer,
    batch_size: int,
    memory: Tensor | None = None,
    memory_lengths: Tensor | None = None,
    *,
    encoder_state: State | None = None,
) -> State:
    """Return the initial state of a part of another layer, whose `initial_state` received these arguments.

    Only a `MemoryLayer` receives the memory; no part receives the encoder's state.
    """
    if isinstance(layer, MemoryLayer):
        return layer.initial_state(batch_size, memory, memory_lengths)
    return layer.initial_state(batch_size)


Kernel: TypeAlias = Callable[[Tensor, State, Mapping[str, Tensor]], OutputsAndState]
"""Maps inputs, the state before them, and parameters to use instead of a cell's own, to outputs and the next state."""


class VendorKernel(NamedTuple):
    """Kernels of PyTorch that compute a cell."""

    sequence: Kernel  # of inputs (batch, time, input_size), without padding
    step: Kernel | None  # of inputs (batch, input_size), without gradients; None where there is none


class RecurrentCell(Stateful):
    """One step of a recurrence, written as its equations."""

    recurrent_weights: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that act on the state; weight dropout applies to them."""

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first input."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    def forward(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step: inputs ``(batch, input_size)`` to outputs ``(batch, output_size)`` and the next state."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def vendor_kernel(self) -> VendorKernel | None:
        """Return a kernel such as cuDNN's, which runs on GPUs and where the equations cannot be compiled, or None."""
        return None

    def recurrent_matrix(self) -> Tensor | None:
        """Return the matrix U ``(n, n)`` of a cell h_t = g(W x_t + U h_{t−1} + b); None for other cells.

        The page of `inspect` names its spectral radius, the textbook's criterion for a vanishing gradient.
        """
        return None


Architecture: TypeAlias = type[SequenceLayer] | type[RecurrentCell]


def _check_rows(shapes: list[torch.Size], batch_size: int) -> None:
    if any(shape[0] != batch_size for shape in shapes):
        raise ValueError(
            f"inputs have {batch_size} rows and the state has another number of rows; got {_shape_list(shapes)}"
        )


def _leaf_shapes(state: State) -> list[torch.Size]:
    return [leaf.shape for leaf in state_leaves(state)]


def _shape_list(shapes: Iterable[Sequence[int]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)
