"""The size of a model, and the memory that it takes in training, estimated before it is allocated."""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..config import BATCH_SIZE, Config
from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError, SizeError, is_out_of_memory
from ..core.state import state_bytes
from ..data.vocabulary import Vocabulary
from ..layers import options_of, split_names
from ..processes.executors import machine_memory
from ..storage.weights import TooLargeError, bounded
from .task import ModelBuilder

MOMENTS = {"sgd": 0, "adam": 2, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter."""
STATES_PER_STEP = 6
"""States that a step holds: before and after it, joined with the inputs, and the gradients of these."""
STATES_OF_BATCH = "states of a batch"
MAX_COUNTED_LAYERS = 8
"""Number of layers up to which the size of a model is counted instead of extrapolated."""
MAX_VALUES = 1 << 60
"""Number of values whose bytes PyTorch can still count."""
BYTES_PER_NUMBER = 4
SIZES = ("hidden_size", "embedding_size", "num_layers")
"""Fields of the model that its memory depends on, besides the options of its layer."""
ASSUMED_DEFAULT = 16
"""Stands for the default of an option that has none, when the most unusual option is searched."""


def build_model(builder: ModelBuilder, vocabulary: Vocabulary) -> nn.Module:
    """Build a new model; raise InputError if this machine has too little memory to train it."""
    check_memory(builder, vocabulary)
    return _build_in_memory(builder, vocabulary)


def count_parameters(builder: ModelBuilder, vocabulary: Vocabulary) -> int:
    """Return the number of parameters of a model without allocating them.

    Raises:
        ValueError: a layer does not accept the sizes or the options of the configuration.
    """
    return sum(parameter.numel() for parameter in _model_of_shapes(builder, vocabulary).parameters())


def _build_in_memory(builder: ModelBuilder, vocabulary: Vocabulary) -> nn.Module:
    """Build a model, or raise InputError as soon as its parameters cannot be trained in the memory of this machine."""
    memory, per_value = machine_memory(), _bytes_per_value(builder.config)
    values = 2 * memory // per_value  # some values are temporary, such as parameters that are then tied
    try:
        with bounded(values, calls=values):
            model: nn.Module = builder.build(vocabulary)
    except TooLargeError as error:
        raise _too_large(builder.config, "parameters", error.values * per_value, memory) from None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise _too_large(builder.config, "parameters, while they are computed,", memory, memory) from None
    return model


def check_memory(builder: ModelBuilder, vocabulary: Vocabulary) -> None:
    """Raise InputError if training a model needs more memory than this machine has; nothing is allocated."""
    config, memory, per_value = builder.config, machine_memory(), _bytes_per_value(builder.config)
    size = size_of(builder, vocabulary)
    parameters = size.parameters * per_value
    total = parameters + STATES_PER_STEP * (config.training.batch_size or BATCH_SIZE) * size.state_bytes
    if parameters > memory:
        raise _too_large(config, "parameters", parameters, memory)
    if total > memory:
        raise _too_large(config, STATES_OF_BATCH, total, memory)


class Size(NamedTuple):
    """The number of parameters of a model, and the bytes of the states of one sequence."""

    parameters: int
    state_bytes: int


def size_of(builder: ModelBuilder, vocabulary: Vocabulary) -> Size:
    """Return the size of a model, of which nothing is allocated.

    Raises:
        InputError: no machine could hold it.
    """
    try:
        with warnings.catch_warnings(), bounded(MAX_VALUES, calls=MAX_VALUES):
            warnings.simplefilter("ignore")  # they have already been given
            return _size(builder, vocabulary)
    except TooLargeError as error:
        needed = error.values * _bytes_per_value(builder.config)
        raise _too_large(builder.config, "parameters", needed, machine_memory()) from None


def _size(builder: ModelBuilder, vocabulary: Vocabulary) -> Size:
    """Return the size of a model; that of a deep one is extrapolated from two and three layers."""
    num_layers = builder.config.model.num_layers
    if num_layers <= MAX_COUNTED_LAYERS:
        return _counted_size(builder, vocabulary)

    def with_layers(number: int) -> Size:
        model = builder.config.model.model_copy(update={"num_layers": number})
        return _counted_size(type(builder)(builder.config.model_copy(update={"model": model})), vocabulary)

    two, three = with_layers(2), with_layers(3)
    return Size(*(more + (num_layers - 3) * (more - less) for less, more in zip(two, three, strict=True)))


def _counted_size(builder: ModelBuilder, vocabulary: Vocabulary) -> Size:
    model = _model_of_shapes(builder, vocabulary)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(parameters, sum(state_bytes(layer.initial_state(1)) for layer in _outermost_layers(model)))


def _model_of_shapes(builder: ModelBuilder, vocabulary: Vocabulary) -> nn.Module:
    """Build a model on PyTorch's ``meta`` device, where tensors have shapes and no values."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                model: nn.Module = builder.build(vocabulary)
        except RuntimeError:  # a user's layer that reads values
            model = _build_in_memory(builder, vocabulary)
    return model


def _bytes_per_value(config: Config) -> int:
    """Return the bytes of a parameter in training, with its gradient and the moments of the optimizer."""
    return BYTES_PER_NUMBER * (2 + MOMENTS[config.training.optimizer])


def _outermost_layers(module: nn.Module) -> Iterator[SequenceLayer]:
    """Yield the layers whose states a training holds: those that are not parts of other layers."""
    for child in module.children():
        if not isinstance(child, SequenceLayer):
            yield from _outermost_layers(child)
        elif not isinstance(child, MemoryLayer):
            yield child


def _too_large(config: Config, what: str, needed: int, memory: int) -> InputError:
    """Return an error that names the size furthest above its default, including the batch if its states are large."""
    model = config.model
    fields = {f"model.{name}": (getattr(model, name), type(model).model_fields[name].default) for name in SIZES}
    for layer in split_names(model.layer):
        for name, parameter in options_of(layer, model.options).items():
            fields[f"model.options.{name}"] = (model.options.get(name), parameter.default)
    if what == STATES_OF_BATCH:
        fields["training.batch_size"] = (config.training.batch_size or BATCH_SIZE, BATCH_SIZE)
    sizes = {name: (value, default) for name, (value, default) in fields.items() if type(value) is int and value > 0}

    def excess(name: str) -> float:
        value, default = sizes[name]
        return float(value / (default if isinstance(default, int) and default > 0 else ASSUMED_DEFAULT))

    worst = max(sizes, key=excess)
    return SizeError(
        f"{worst}: with {sizes[worst][0]:,}, the {what} take at least {needed / 1e9:,.1f} GB in training, and "
        f"this machine has {memory / 1e9:,.1f} GB; give a smaller number"
    )
