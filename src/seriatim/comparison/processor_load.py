"""How busy the processors were during some work: seconds of this process, and of all other programs."""

import os
import time
from pathlib import Path
from typing import NamedTuple

IDLE = (3, 4)
"""Columns of idle time in the first line of ``/proc/stat``: doing nothing, and waiting for a disk."""
COUNTED = 8
"""Columns of that line that add up to all of the time; the later ones are part of the first."""


class Load(NamedTuple):
    """Seconds of the clock, of all processors for this process and its children, and for all other programs.

    The last is None where the system does not tell.
    """

    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float | None

    @classmethod
    def now(cls) -> "Load":
        """Return the counters at this moment, whose differences are a load."""
        own, busy = sum(os.times()[:4]), _busy_seconds()  # with children, such as the compiler
        return cls(time.perf_counter(), own, None if busy is None else busy - own)

    def since(self, before: "Load") -> "Load":
        """Return the load between two moments."""
        other: float | None = None
        if self.other_cpu_seconds is not None and before.other_cpu_seconds is not None:
            other = max(0.0, self.other_cpu_seconds - before.other_cpu_seconds)
        return Load(self.seconds - before.seconds, self.cpu_seconds - before.cpu_seconds, other)


def _busy_seconds() -> float | None:
    """Return the seconds that all processors together were busy since the system started."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
        ticks = [int(value) for value in first[1 : 1 + COUNTED]]
        return sum(value for i, value in enumerate(ticks) if i not in IDLE) / float(os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None
