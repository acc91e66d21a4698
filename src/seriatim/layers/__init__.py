"""Every architecture, one a file, behind one contract."""

from .containers import Bidirectional, Residual, Stack
from .experts import count_experts
from .registry import REGISTRY, check_options, describe, find, layer, names, options_of, register, split_names
from .torch_nn import from_torch, to_torch

__all__ = [
    "REGISTRY",
    "Bidirectional",
    "Residual",
    "Stack",
    "check_options",
    "count_experts",
    "describe",
    "find",
    "from_torch",
    "layer",
    "names",
    "options_of",
    "register",
    "split_names",
    "to_torch",
]
