"""Time: runs a cell over a sequence, in compiled code where that can be and as a loop where it cannot."""

from ..compiler.cpp.toolchain import UncompiledWarning
from .explain import explain
from .fast_path import uncompiled
from .recurrent import Recurrent
from .unrolling import unroll
from .zoneout import Zoneout

__all__ = ["Recurrent", "UncompiledWarning", "Zoneout", "explain", "uncompiled", "unroll"]
