"""The simulation of counting n-grams on many machines behind `docs/scaling.md`.

Every phase moves data through the processors, the disk and the network of each machine at the same time, as pipelines
do; the slowest of the three determines its time. The processors divide a share of the work (Amdahl's law). The disk
moves every array once in each direction; scattered reads of arrays that do not fit into memory are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

ID_BYTES = 4


@dataclass(frozen=True)
class Machine:
    """One machine: its cores, its memory in bytes, and bytes a second of its disk and of its network."""

    cores: int
    memory: float
    disk: float
    network: float


@dataclass(frozen=True)
class Phase:
    """A phase: the machines that do it, and what each does.

    It takes seconds of one core, of which ``parallel`` is the share that cores divide, moves bytes of the disk and
    network, and occupies ``space`` bytes of the disk, the files that the phase before left included.
    """

    name: str
    machines: int
    core_seconds: float
    parallel: float
    disk_bytes: float
    network_bytes: float
    space: float

    def times(self, machine: Machine) -> dict[str, float]:
        """Return the seconds that each resource of a machine is busy."""
        return {
            "processors": self.core_seconds * (1 - self.parallel + self.parallel / machine.cores),
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

    The figures are those of `counting_measurement.measure_counting`. All machines encode and count their own part of
    the text, and all merge, each a range of the windows. Windows are written where they are counted and where they are
    merged, and are read in between. The machines that smooth hold the merged windows, the arrays and the model.
    """
    each = tokens / machines
    text, ids = each * figures["counted_bytes"], each * ID_BYTES
    shard_windows = each * figures["shard_windows"]
    shard_bytes = shard_windows * figures["shard_window_bytes"]
    merged_bytes = each * figures["windows"] * figures["window_bytes"]
    grams, read_bytes = tokens * figures["ngrams"] / smoothers, merged_bytes * machines / smoothers
    arrays, model_bytes = grams * figures["all_array_bytes"], grams * figures["model_bytes"]
    travels = 1 - 1 / machines

    def phase(name: str, step: str, number: int, work: float, disk: float, network: float, space: float) -> Phase:
        seconds = work / figures[f"{step}_per_second"]
        return Phase(name, number, seconds, figures[f"{step}_parallel"], disk, network, space)

    return [
        phase("encode the text", "encoded", machines, each, text + ids, 0.0, text + ids),
        phase("count shards", "counted", machines, each, ids + shard_bytes, 0.0, ids + shard_bytes),
        phase(
            "send and merge windows",
            "merged",
            machines,
            shard_windows,
            shard_bytes + merged_bytes,
            travels * shard_bytes,
            shard_bytes + merged_bytes,
        ),
        phase(
            "find suffixes, smooth, write",
            "smoothed",
            smoothers,
            grams,
            read_bytes + 2 * arrays + model_bytes,
            travels * (read_bytes if smoothers == 1 else model_bytes),
            read_bytes + grams * figures["array_bytes"] + model_bytes,
        ),
    ]
