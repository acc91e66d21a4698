"""Time: runs a cell over a sequence."""

from .recurrent import Recurrent
from .reference import unroll

__all__ = ["Recurrent", "unroll"]
