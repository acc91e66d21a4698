"""The simulation of counting n-grams on many machines behind `docs/scaling.md`.

Every phase moves data through the processors, the disk and the network of each machine at the same time, as pipelines
do; the slowest of the three determines its time.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One machine: its cores, and bytes a second of its disk and of its network."""

    cores: int
    disk: float
    network: float


@dataclass(frozen=True)
class Phase:
    """A phase: the machines that do it, and what each moves: seconds of one core, and bytes of the disk and network."""

    name: str
    machines: int
    core_seconds: float
    disk_bytes: float
    network_bytes: float

    def times(self, machine: Machine) -> dict[str, float]:
        """Return the seconds that each resource of a machine is busy."""
        return {
            "processors": self.core_seconds / machine.cores,
            "disk": self.disk_bytes / machine.disk,
            "network": self.network_bytes / machine.network,
        }

    def seconds(self, machine: Machine) -> float:
        """Return the seconds of the phase."""
        return max(self.times(machine).values())

    def limit(self, machine: Machine) -> str:
        """Return the resource that determines the time."""
        times = self.times(machine)
        return max(times, key=times.__getitem__)


def phases(tokens: float, machines: int, figures: Mapping[str, float], smoothers: int) -> list[Phase]:
    """Return the phases of counting a text of so many tokens; ``smoothers`` machines find suffixes and smooth.

    The figures are those of one core of one machine; see `scaling_estimate.measure_counting`. A text as ids has four
    bytes a token. All machines count, and all merge, each a range of the windows. Windows are written where they are
    counted, where they are merged, and into the arrays of the machines that smooth, and are read in between.
    """
    each = tokens / machines
    windows, grams = each * figures["windows_per_token"], tokens * figures["ngrams_per_token"] / smoothers
    window_bytes, model_bytes = windows * figures["window_bytes"], grams * figures["ngram_bytes"]
    read_bytes = window_bytes * machines / smoothers
    travels = 1 - 1 / machines
    return [
        Phase("count shards", machines, each / figures["counted_per_second"], 4 * each + window_bytes, 0.0),
        Phase(
            "send and merge windows",
            machines,
            windows / figures["merged_per_second"],
            2 * window_bytes,
            travels * window_bytes,
        ),
        Phase(
            "find suffixes, smooth, write",
            smoothers,
            grams / figures["smoothed_per_second"],
            2 * read_bytes + 2 * model_bytes,
            travels * (read_bytes if smoothers == 1 else model_bytes),
        ),
    ]
