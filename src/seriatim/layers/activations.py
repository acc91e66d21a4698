"""Pointwise functions by name."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError, nearest
from .option_types import OneOf

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "elu": F.elu,
    "selu": F.selu,
    "leaky-relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "sin": torch.sin,
    "identity": lambda x: x,
}

Activation = Annotated[str, OneOf(ACTIVATIONS)]


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The pointwise function of that name.

    Raises:
        ValueError: no such function; the message names the nearest.
    """
    if name not in ACTIVATIONS:
        raise InputError(f"unknown activation {name!r}; {nearest(name, list(ACTIVATIONS))}")
    return ACTIVATIONS[name]
