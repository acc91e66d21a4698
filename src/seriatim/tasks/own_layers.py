"""Check the layers of a user before they are trained, so that a mistake in one is a single line."""

import inspect
from collections.abc import Iterable

import torch

from ..config import Model
from ..core.contract import MemoryLayer, RecurrentCell, SequenceLayer
from ..core.errors import InputError
from ..layers import find
from ..layers.declared_options import accepted
from ..layers.origins import outside_names
from ..layers.registry import REGISTRY
from ..testing import LawError, check_quickly


def check_own_layers(stacks: Iterable[str], model: Model) -> None:
    """Build each layer from outside the library once, and check the contract with one short batch.

    Args:
        stacks: names of layers, or several with commas between them.
        model: gives the width and the options.

    Raises:
        InputError: a layer cannot be built or breaks the contract; the message names the file, the class and the law.
    """
    for name in outside_names(stacks):
        if name not in REGISTRY:
            continue
        architecture = find(name)
        try:
            with torch.random.fork_rng():
                size = model.hidden_size
                part = architecture(size, size, **accepted(architecture, model.options))
        except InputError:
            raise
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), "")
            raise InputError(
                f"{_place(architecture, '__init__')}: {architecture.__qualname__}({size}, {size}) cannot be built "
                f"({type(error).__name__}: {reason})"
            ) from None
        if isinstance(part, MemoryLayer):
            continue
        try:
            check_quickly(part)
        except LawError as error:
            raise InputError(f"{_place(architecture, 'forward')}: {error}") from None


def _place(architecture: type[SequenceLayer] | type[RecurrentCell], method: str) -> str:
    """Return where a class defines a method, or the class itself, as ``FILE:LINE``."""
    for part in (vars(architecture).get(method), architecture):
        try:
            return f"{inspect.getsourcefile(part)}:{inspect.getsourcelines(part)[1]}"  # type: ignore[arg-type]
        except (TypeError, OSError):
            continue
    return f"layer {architecture.__qualname__}"
