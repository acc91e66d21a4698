"""The contract: what every sequence layer, and every cell of a recurrence, must offer."""

import itertools
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import ClassVar, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .errors import MismatchError, NotSupportedError, RangeError, RequiredError, enough_memory, shown
from .lengths import check_lengths, require_dense, zero_padding
from .state import Kind, OutputsAndState, S, State, fits, kind_in_words, kind_of, require_kind, state_leaves

Wrap: TypeAlias = Literal["none", "residual", "block"]
"""What surrounds a layer: nothing; a norm and a residual connection; or these and a feed-forward network."""


CONVERTED = frozenset((torch.float32, torch.float16, torch.bfloat16))
"""The types of numbers that autocast converts to one another."""


def check_batch_size(batch_size: object) -> None:
    """Raise InputError for a number of rows that is not an integer from 0 to 2^63 - 1."""
    if isinstance(batch_size, torch.SymInt):  # of an exported program
        return
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or not 0 <= int(batch_size) < 1 << 63:
        raise RangeError(f"initial_state: batch_size is {shown(batch_size)}; give an integer from 0 to 2^63 - 1")


class UnitUpdate(NamedTuple):
    """How each unit of a state changes in a step, for pages that show its numbers.

    Attributes:
        results: the symbols of the results of sigmoid and tanh, in the order in which `forward` computes them.
        state: the symbols of the leaves of the state.
        equations: sums of products of these symbols, such as ``c = f · c′ + i · g``. A prime marks the state before the
            step; ``(1 − z)`` may be a factor.
    """

    results: tuple[str, ...]
    state: tuple[str, ...]
    equations: tuple[str, ...]


class Stateful(nn.Module):
    """What layers and cells have in common."""

    keeps: ClassVar[str] = ""
    """What the state holds, in words, for the table of architectures."""
    parallel: ClassVar[bool] = False
    """Whether training runs in parallel over time."""
    paper: ClassVar[str] = ""
    """The source of the equations: authors and year."""
    learning_rates: ClassVar[Mapping[str, float]] = {}
    """Learning rates for AdamW by task, where they differ from the defaults of the tasks."""
    gate_names: ClassVar[tuple[str, ...]] = ()
    """What each sigmoid (or softplus, for a step size) of the equations decides, in the order of computation."""
    unit_update: ClassVar[UnitUpdate | None] = None
    """The last equations of a step, where they hold for each unit by itself."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters of two or more dimensions that weight decay must leave unchanged, as it does vectors."""

    input_size: int
    output_size: int

    def zeros(self, batch_size: int, *sizes: int) -> Tensor:
        """Return zeros ``(batch, *sizes)`` with the type and device of the layer's parameters and constants."""
        check_batch_size(batch_size)
        like = next(itertools.chain(self.parameters(), self.buffers()), torch.zeros(()))
        with enough_memory(f"a state of {batch_size} rows of {self.class_name()}"):
            return torch.zeros(batch_size, *sizes, dtype=like.dtype, device=like.device)

    def class_name(self) -> str:
        """Return the name of the class, for messages."""
        return type(self).__name__

    def check_numbers(self, name: str, values: object) -> None:
        """Raise InputError unless an argument is a tensor of the type and on the device of the layer's weights.

        Under autocast, activations of every type that it converts are accepted.
        """
        owner = self.class_name()
        if not isinstance(values, Tensor):
            kind = type(values).__name__
            raise RangeError(f"{name}: {owner} takes a torch.Tensor, not a {kind}; convert it with torch.as_tensor")
        require_dense(name, values)

        # The weights say which numbers fit; PyTorch itself would fail later, without the name of the argument.
        like = next(filter(Tensor.is_floating_point, itertools.chain(self.parameters(), self.buffers())), None)
        if like is None:  # a layer without weights takes every type of floating-point numbers
            like = values if values.is_floating_point() else torch.zeros((), device=values.device)
        if values.device != like.device:
            raise MismatchError(
                f"{name}: the device is {values.device}, but the weights of {owner} are on {like.device}; move one "
                f"of them, as with {name}.to({str(like.device)!r})"
            )
        if not _agree(values, like.dtype):
            raise MismatchError(
                f"{name}: the type is {values.dtype}, but the weights of {owner} have {like.dtype}; convert one "
                f"of them, as with {name}.to({like.dtype})"
            )


class SequenceLayer(Stateful):
    """A function of a sequence that carries an explicit state.

    A subclass sets ``input_size`` and ``output_size`` and writes `initial_state` and `forward`; `step` follows.
    Modules hold parameters and constants only, and the state that the caller gives is never changed.
    """

    causal: bool = True
    """Whether no output depends on a later input."""
    wrap: ClassVar[Wrap] = "none"
    """What `seriatim.layer` puts around the layer by default."""
    grows: ClassVar[bool] = True
    """Whether a leaf of the state of size 0 may grow with time; if not, it stays empty."""
    square: ClassVar[bool] = False
    """Whether outputs must have the width of inputs; `seriatim.layer` then puts a linear map before the layer."""

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first input, for ``batch_size`` rows."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    def example_state(self, batch_size: int = 1, memory_time: int = 0) -> State | None:
        """Return an initial state, for its kind and shapes; None if they are not known.

        A `MemoryLayer` attends to a memory of ``memory_time`` entries.
        """
        return self.initial_state(batch_size)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run over a sequence.

        Args:
            inputs: ``(batch, time, input_size)``.
            state: the state before the first input; None for the initial state.
            lengths: ``(batch,)``, the number of valid inputs of each row, 0 allowed; None where every row is full.

        Returns:
            Outputs ``(batch, time, output_size)``, zero on padding, and the state after each row's last valid input.

        Raises:
            InputError: inputs, a state or lengths that do not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Process one input of each row: ``(batch, input_size)`` to ``(batch, output_size)``, and the next state.

        Raises:
            InputError: inputs or a state that do not fit, or a layer that is not causal.
        """
        if not self.causal:
            name = type(self).__name__
            raise NotSupportedError(
                f"{name} needs the whole sequence and cannot step; use a causal layer to stream or generate"
            )
        self.check_step(inputs, state)
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
        state, lengths = self.validate_inputs(inputs, state, lengths)
        return zero_padding(inputs, lengths), state, lengths

    def validate_inputs(
        self, inputs: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[State, Tensor | None]:
        """Check shapes and supply the initial state, for a layer that never reads padding; otherwise see `begin`."""
        self.check_numbers("inputs", inputs)
        if inputs.dim() != 3 or inputs.shape[2] != self.input_size:
            raise MismatchError(f"inputs: the shape is {tuple(inputs.shape)}; give (batch, time, {self.input_size})")
        lengths = check_lengths(lengths, inputs.shape[0], inputs.shape[1])
        if state is None:
            state = self.initial_state(inputs.shape[0])
        else:
            self.check_state(state, inputs)
        return state, lengths

    def check_step(self, inputs: Tensor, state: State) -> None:
        """Raise InputError where the inputs or the state of a step do not fit the layer."""
        self.check_input(inputs)
        self.check_state(state, inputs)

    def check_input(self, inputs: Tensor) -> None:
        """Raise InputError where the inputs of a step do not fit the layer."""
        self.check_numbers("inputs", inputs)
        if inputs.dim() != 2 or inputs.shape[1] != self.input_size:
            raise MismatchError(f"inputs: the shape is {tuple(inputs.shape)}; give (batch, {self.input_size})")

    def check_state(self, state: State, inputs: Tensor) -> None:
        """Raise InputError where a state is of another kind, or does not fit the layer or the inputs beside it."""
        leaves = state_leaves(state)
        for leaf in leaves:
            require_dense("state", leaf)
        if self not in _forms:
            _forms[self] = _form_of(self)

        # the kind first: a state of another architecture may have the right shapes
        form, name, rows = _forms[self], self.class_name(), inputs.shape[0]
        shapes = [leaf.shape for leaf in leaves]
        if form is not None:
            require_kind(kind_of(state), form.kind, name)
            pairs = zip(shapes, form.shapes, strict=True)
            if not all(fits(shape, like) if self.grows else shape[1:] == like[1:] for shape, like in pairs):
                right = [(rows, *shape[1:]) for shape in form.shapes]
                growth = " (dimensions of size 0 grow)" if self.grows else ""
                raise MismatchError(
                    f"state: the state belongs to another layer, with shapes {_shape_list(shapes)}; give that of "
                    f"{name}, with shapes {_shape_list(right)}{growth}"
                )

        # what does not depend on the layer, and holds for layers whose form is not known, too
        if any(shape[:1] != (rows,) for shape in shapes):
            raise MismatchError(f"state: its shapes are {_shape_list(shapes)}; give {rows} rows, as inputs have")
        for leaf, dtype in zip(leaves, [None] * len(leaves) if form is None else form.types, strict=True):
            _check_leaf(leaf, dtype, inputs, name)


class _Form(NamedTuple):
    """What all states of a layer have in common."""

    kind: Kind
    shapes: list[torch.Size]
    types: list[torch.dtype | None]  # None for that of the inputs


_forms: WeakKeyDictionary[SequenceLayer, _Form | None] = WeakKeyDictionary()
"""The forms of the states of layers; computing them at every step would take longer than checking them."""


def _form_of(layer: SequenceLayer) -> _Form | None:
    like = layer.zeros(0)
    with torch.no_grad(), torch.autocast(like.device.type, enabled=False):  # which would change the types of leaves
        state = layer.example_state()
    if state is None:
        return None
    leaves, own = state_leaves(state), like.dtype
    return _Form(
        kind_of(state), [leaf.shape for leaf in leaves], [None if leaf.dtype == own else leaf.dtype for leaf in leaves]
    )


def _check_leaf(leaf: Tensor, dtype: torch.dtype | None, inputs: Tensor, name: str) -> None:
    """Raise InputError where a leaf of a state of the layer ``name`` has another type or device than it should have."""
    if leaf.device != inputs.device:
        raise MismatchError(
            f"state: that of {name} is on {leaf.device}, but the inputs are on {inputs.device}; move one of them"
        )
    if not _agree(leaf, wanted := inputs.dtype if dtype is None else dtype):
        raise MismatchError(f"state: a part of that of {name} has the type {leaf.dtype}; convert it to {wanted}")


def _agree(values: Tensor, dtype: torch.dtype) -> bool:
    """Return whether values have a type, or one that autocast converts to it."""
    if values.dtype == dtype:
        return True
    device = values.device.type
    return (
        {values.dtype, dtype} <= CONVERTED
        and torch.amp.is_autocast_available(device)
        and torch.is_autocast_enabled(device)
    )


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
            InputError: no memory, or one that does not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    def example_state(self, batch_size: int = 1, memory_time: int = 0) -> State | None:
        """Return a state with a memory of zeros; None without the attribute ``memory_size``, or if it is not enough."""
        sizes = (vars(module).get("memory_size") for module in self.modules())
        size = next((size for size in sizes if isinstance(size, int)), None)
        if size is None or self.reads_encoder_state:
            return None
        return self.initial_state(batch_size, self.zeros(batch_size, memory_time, size))

    def check_memory(
        self, batch_size: int, memory: Tensor | None, memory_lengths: Tensor | None, memory_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return a memory of width ``memory_size`` with zeros on padding, and its lengths; see `initial_state`."""
        if memory is None:
            name = type(self).__name__
            raise RequiredError(f"{name} needs a memory; give initial_state(batch_size, memory, memory_lengths)")
        check_batch_size(batch_size)
        self.check_numbers("memory", memory)
        if memory.dim() != 3 or (memory.shape[0], memory.shape[2]) != (batch_size, memory_size):
            raise MismatchError(f"memory: the shape is {tuple(memory.shape)}; give ({batch_size}, time, {memory_size})")
        lengths = check_lengths(memory_lengths, batch_size, memory.shape[1])
        memory = zero_padding(memory, lengths)
        if lengths is None:
            lengths = torch.full((batch_size,), memory.shape[1])
        return memory, lengths.to(memory.device, copy=True)

    def check_encoder(self, encoder: SequenceLayer) -> None:
        """Raise InputError where this layer cannot attend to the outputs, or use the state, of ``encoder``."""


def initial_state_of(
    layer: SequenceLayer,
    batch_size: int,
    memory: Tensor | None = None,
    memory_lengths: Tensor | None = None,
    *,
    encoder_state: State | None = None,
) -> State:
    """Return the initial state of a layer inside another one, whose `initial_state` received these arguments.

    Only a `MemoryLayer` receives the memory; no inner layer receives the encoder's state.
    """
    if isinstance(layer, MemoryLayer):
        return layer.initial_state(batch_size, memory, memory_lengths)
    return layer.initial_state(batch_size)


KIND = "kind"
"""The name of the result of `saved_kind` among the metadata of a file."""


def saved_kind(model: nn.Module, state: State) -> str:
    """Return the kind of a model's state for a file: its structure, and the layers that it belongs to."""
    return f"{kind_in_words(kind_of(state))} of {', '.join(_innermost(model)) or _class_name(model)}"


def joined_type(
    owner: "SequenceLayer", layers: Sequence["SequenceLayer"], fields: type[S] | type[tuple[State, ...]] = tuple
) -> Callable[..., S]:
    """Return the type of the state of a layer made of others, which is another one for other architectures in it.

    The states of these may be tensors, which do not say whose they are; the type around them says it.

    Args:
        owner: the layer.
        layers: those whose states it holds.
        fields: the ``NamedTuple`` that it extends; tuple for the states of the layers, named by their numbers.
    """
    names = (_class_name(owner), *(name for layer in layers for name in _innermost(layer)))
    return _joined_type(fields, len(layers), names)


_joined_types: dict[tuple[type, int, tuple[str, ...]], type] = {}


def _joined_type(fields: type, count: int, names: tuple[str, ...]) -> Callable[..., S]:
    key = fields, count, names
    if key not in _joined_types:
        base = namedtuple("Numbered", map(str, range(count)), rename=True) if fields is tuple else fields  # _0, _1, ...
        restored = {"__reduce__": lambda state: (_joined_state, (*key, *state))}  # pickle finds no type made here
        _joined_types[key] = type(f"{names[0]}[{', '.join(names[1:])}]", (base,), {"__slots__": (), **restored})
    return _joined_types[key]


def _joined_state(fields: type, count: int, names: tuple[str, ...], *children: State) -> State:
    make: Callable[..., State] = _joined_type(fields, count, names)
    return make(*children)


def _innermost(model: nn.Module) -> list[str]:
    """Return the classes of the layers and cells in a model that have no others in them, in order."""
    layers = [module for module in model.modules() if isinstance(module, Stateful)]
    return [_class_name(layer) for layer in layers if sum(isinstance(each, Stateful) for each in layer.modules()) == 1]


def _class_name(module: nn.Module) -> str:
    """Return the class of a module, without the one that PyTorch derives from it to divide or reparametrize it."""
    return next(kind.__name__ for kind in type(module).__mro__ if not kind.__module__.startswith("torch."))


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


Architecture: TypeAlias = type[SequenceLayer] | type[RecurrentCell]


def _shape_list(shapes: Iterable[Sequence[int]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)
