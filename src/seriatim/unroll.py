"""The former name of `seriatim.recurrence`, for code that imports it."""

from .recurrence import Recurrent, UncompiledWarning, Zoneout, explain, uncompiled, unroll

__all__ = ["Recurrent", "UncompiledWarning", "Zoneout", "explain", "uncompiled", "unroll"]
