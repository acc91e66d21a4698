"""Runs a cell over sequences: in compiled code if possible, else as a loop."""

from typing import TYPE_CHECKING

from ..compiler.cpp.toolchain import UncompiledWarning
from .conditions import uncompiled
from .recurrent import Recurrent, Zoneout, unroll

if TYPE_CHECKING:
    from .explanation import explain

__all__ = ["Recurrent", "UncompiledWarning", "Zoneout", "explain", "uncompiled", "unroll"]


def __getattr__(name: str) -> object:
    if name == "explain":  # which needs the whole compiler
        from .explanation import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
