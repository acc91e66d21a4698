"""Time: runs a cell over a sequence."""

from .recurrent import Recurrent
from .reference import unroll
from .zoneout import Zoneout

__all__ = ["Recurrent", "Zoneout", "unroll"]
