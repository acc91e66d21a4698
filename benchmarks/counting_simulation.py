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


def phases(tokens: float, machines: int, figures: Mapping[str, float], mergers: int) -> list[Phase]:
    """Return the phases of counting a text of so many tokens; ``mergers`` machines merge and smooth.

    The figures are those of one core of one machine; see `scaling_estimate.measure_counting`. A text as ids has four
    bytes a token. Windows are written once where they are counted and once where they are merged, and read in between.
    """
    each = tokens / machines
    shard_windows = each * figures["windows_per_token"]
    windows = tokens * figures["windows_per_token"] / mergers
    grams = tokens * figures["ngrams_per_token"] / mergers
    shard_bytes, merged_bytes = shard_windows * figures["window_bytes"], windows * figures["window_bytes"]
    model_bytes = grams * figures["ngram_bytes"]
    travels = 1 - 1 / machines
    return [
        Phase("count shards", machines, each / figures["counted_per_second"], 4 * each + shard_bytes, 0.0),
        Phase(
            "send and merge windows",
            mergers,
            windows / figures["merged_per_second"],
            2 * merged_bytes,
            travels * merged_bytes,
        ),
        Phase(
            "find suffixes, smooth, write",
            mergers,
            grams / figures["smoothed_per_second"],
            merged_bytes + 2 * model_bytes,
            (travels * model_bytes) if mergers > 1 else 0.0,
        ),
    ]
