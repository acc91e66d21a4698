"""Every architecture, one a file, behind one contract."""

from .containers import Bidirectional, Residual, Stack
from .experts import count_experts
from .factory import check_options, describe, layer, options_of
from .registry import REGISTRY, current, find, names, register, split_names
from .torch_nn import from_torch, to_torch

__all__ = [
    "REGISTRY",
    "Bidirectional",
    "Residual",
    "Stack",
    "check_options",
    "count_experts",
    "current",
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
