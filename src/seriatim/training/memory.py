"""Memory that a model takes in training, estimated before it is allocated."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..config import Config
from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError
from ..core.state import state_bytes
from ..data.vocabulary import Vocabulary
from ..layers import options_of, split_names
from ..models.bounds import TooLargeError, bounded
from .task import AnyTask

GRADIENT, MOMENTS = 1, {"sgd": 0, "adam": 2, "adamw": 2}
"""Numbers kept for each parameter beside its value: the gradient, and what the optimizer remembers."""
STATES = 6
"""States that a step holds: before and after it, joined with the inputs, and the gradients of these."""
STATES_OF_BATCH = "states of a batch"
DEEP = 8
"""Number of layers up to which the size of a model is counted, not extrapolated."""
COUNTABLE = 1 << 60
"""Values whose number of bytes PyTorch can still count."""
BYTES = 4
"""Of a number."""
SIZES = ("hidden_size", "embedding_size", "num_layers")
"""Fields of the model that its memory depends on, beside the options of its layer."""
UNSET = 16
"""What stands for the default of an option that has none, where the most unusual option is looked for."""


@contextlib.contextmanager
def fitting_memory(config: Config) -> Iterator[None]:
    """Within it a new model is built, unless its parameters cannot be trained in the memory of this machine.

    Raises:
        InputError: they cannot; the message names the field that is furthest above its default.
    """
    memory, per_value = machine_memory(), _bytes_per_value(config)
    values = 2 * memory // per_value  # some values come and go, such as those of parameters that are tied
    try:
        with bounded(values, calls=values):
            yield
    except TooLargeError as error:
        raise _too_large(config, "parameters", error.values * per_value, memory) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise _too_large(config, "parameters, while they are computed,", memory, memory) from None


def build_model(task: AnyTask, vocabulary: Vocabulary) -> nn.Module:
    """A new model of a task, if it can be trained in the memory of this machine.

    Raises:
        InputError: it cannot, or the configuration does not fit.
    """
    check_memory(task, vocabulary)
    with fitting_memory(task.config):
        model: nn.Module = task.make_model(vocabulary)
    return model


def count_parameters(task: AnyTask, vocabulary: Vocabulary) -> int:
    """The number of parameters of a task's model, which is not built in memory for it.

    Raises:
        ValueError: sizes or options that the layer refuses.
    """
    return _parameters(_shapes(task, vocabulary))


def check_memory(task: AnyTask, vocabulary: Vocabulary) -> None:
    """Checks the size of a task's model before any of its values are allocated.

    Raises:
        InputError: its parameters, and the states of a batch, take more than the memory of this machine in training, or
            the configuration does not fit.
    """
    config, memory = task.config, machine_memory()
    rows = STATES * config.training.batch_size
    try:
        with warnings.catch_warnings(), bounded(COUNTABLE, calls=COUNTABLE):
            warnings.simplefilter("ignore")  # the task has already given them
            size = _size(task, vocabulary)
    except TooLargeError as error:
        raise _too_large(config, "parameters", error.values * _bytes_per_value(config), memory) from None
    needed = size.parameters * _bytes_per_value(config)
    if needed > memory:
        raise _too_large(config, "parameters", needed, memory)
    needed += rows * size.state_bytes
    if needed > memory:
        raise _too_large(config, STATES_OF_BATCH, needed, memory)


class _Size(NamedTuple):
    """The size of a model: its parameters, and the bytes of the states of one sequence."""

    parameters: int
    state_bytes: int


def _size(task: AnyTask, vocabulary: Vocabulary) -> _Size:
    """The size of a task's model; that of a deep one follows from those of two and of three layers, to save time."""
    num_layers = task.config.model.num_layers
    if num_layers <= DEEP:
        return _size_of(task, vocabulary)

    def of(number: int) -> _Size:
        model = task.config.model.model_copy(update={"num_layers": number})
        return _size_of(type(task)(task.config.model_copy(update={"model": model})), vocabulary)

    two, three = of(2), of(3)
    return _Size(*(more + (num_layers - 3) * (more - less) for less, more in zip(two, three, strict=True)))


def _size_of(task: AnyTask, vocabulary: Vocabulary) -> _Size:
    model = _shapes(task, vocabulary)
    return _Size(_parameters(model), sum(state_bytes(layer.initial_state(1)) for layer in _outermost(model)))


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _shapes(task: AnyTask, vocabulary: Vocabulary) -> nn.Module:
    """A task's model on PyTorch's ``meta`` device, where tensors have shapes and no values.

    A layer of the user's own that cannot be built there, because it looks at values, is built in memory instead.
    """
    model: nn.Module
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                model = task.make_model(vocabulary)
        except RuntimeError:
            with fitting_memory(task.config):
                model = task.make_model(vocabulary)
    return model


def _bytes_per_value(config: Config) -> int:
    """Bytes of a parameter in training."""
    return BYTES * (1 + GRADIENT + MOMENTS[config.training.optimizer])


def machine_memory() -> int:
    """Bytes of memory: those of the machine, or of the container where it has fewer."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(path).read_text(encoding="ascii")))
    return min(found, default=1 << 60)


def _outermost(module: nn.Module) -> Iterator[SequenceLayer]:
    """The layers whose states a training holds: those that are not parts of other layers."""
    for part in module.children():
        if not isinstance(part, SequenceLayer):
            yield from _outermost(part)
        elif not isinstance(part, MemoryLayer):
            yield part


def _too_large(config: Config, what: str, needed: int, memory: int) -> InputError:
    """Names the size that is furthest above its default; the batch is one of them where its states are too large."""
    model = config.model
    fields = {f"model.{name}": (getattr(model, name), type(model).model_fields[name].default) for name in SIZES}
    for one in split_names(model.layer):
        for name, parameter in options_of(one, model.options).items():
            fields[f"model.options.{name}"] = (model.options.get(name), parameter.default)
    if what == STATES_OF_BATCH:
        usual_batch = type(config.training).model_fields["batch_size"].default
        fields["training.batch_size"] = (config.training.batch_size, usual_batch)
    sizes = {name: (value, usual) for name, (value, usual) in fields.items() if type(value) is int and value > 0}

    def excess(name: str) -> float:
        value, usual = sizes[name]
        return float(value / (usual if isinstance(usual, int) and usual > 0 else UNSET))

    worst = max(sizes, key=excess)
    return InputError(
        f"{worst}: with {sizes[worst][0]:,}, the {what} take at least {needed / 1e9:,.1f} GB in training, and "
        f"this machine has {memory / 1e9:,.1f} GB; give a smaller number"
    )
