"""Runs a cell over sequences: in compiled code if possible, else as a loop."""

from ..compiler.cpp.toolchain import UncompiledWarning
from .explain import explain
from .fast_path import uncompiled
from .recurrent import Recurrent, unroll
from .zoneout import Zoneout

__all__ = ["Recurrent", "UncompiledWarning", "Zoneout", "explain", "uncompiled", "unroll"]
