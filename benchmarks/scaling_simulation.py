"""The simulations behind `docs/scaling.md`: one step of training on many GPUs, and counting on many machines.

A step of training has two queues that run at the same time, computation and communication, as PyTorch's engines have
them. In ``fsdp`` the parameters of a layer must be gathered before it computes, forward and again backward; those of
the next layer are gathered while one computes; gradients are scattered after it. In ``data`` the gradients of buckets
are added up as soon as they exist. A collective over N ranks moves (N − 1) / N of its bytes through every link (twice
for an all-reduce), and each of its N − 1 rounds has a latency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PARAMETER_BYTES = 4  # float32, also of a gradient and of each of Adam's two moments
BUCKET_BYTES = 25 << 20  # of DistributedDataParallel


@dataclass(frozen=True)
class Network:
    """Links between ranks: bytes a second of the slowest link of a ring, and seconds of one round."""

    bandwidth: float
    latency: float

    def gather(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-gather or a reduce-scatter of ``size`` bytes in all."""
        return size * (ranks - 1) / ranks / self.bandwidth + (ranks - 1) * self.latency

    def reduce(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce of ``size`` bytes."""
        return 2 * self.gather(size, ranks)


@dataclass(frozen=True)
class Layer:
    """A part of a model that is gathered at once: its parameters, and the seconds of its forward pass on one rank."""

    parameters: float
    forward_seconds: float


@dataclass(frozen=True)
class Step:
    """A simulated step: seconds in all, seconds of computation and communication, bytes through the link of a rank."""

    seconds: float
    compute_seconds: float
    network_seconds: float
    network_bytes: float

    @property
    def efficiency(self) -> float:
        """The share of the time in which a rank computes."""
        return self.compute_seconds / self.seconds


def simulate_step(layers: Sequence[Layer], ranks: int, network: Network, parallel: str) -> Step:
    """Simulate one step of training; the backward pass takes twice the time of the forward pass."""
    simulate = {"data": _data_parallel, "fsdp": _fully_sharded}[parallel]
    seconds, network_seconds = simulate(layers, ranks, network)
    compute = 3 * sum(layer.forward_seconds for layer in layers)
    size = PARAMETER_BYTES * sum(layer.parameters for layer in layers)
    passes = 2 if parallel == "data" else 3
    return Step(seconds, compute, network_seconds, passes * size * (ranks - 1) / ranks)


def _fully_sharded(layers: Sequence[Layer], ranks: int, network: Network) -> tuple[float, float]:
    """Return the seconds of a step and those of its communication."""
    order = [*[(layer, 1) for layer in layers], *[(layer, 2) for layer in reversed(layers)]]
    compute_free = network_free = busy = 0.0
    started = 0.0  # when the layer before started to compute, from which on the next one is gathered
    for layer, factor in order:
        duration = network.gather(PARAMETER_BYTES * layer.parameters, ranks)
        gathered = max(network_free, started) + duration
        network_free, busy = gathered, busy + duration
        started = max(compute_free, gathered)
        compute_free = started + factor * layer.forward_seconds
        if factor == 2:
            network_free, busy = max(network_free, compute_free) + duration, busy + duration
    return max(compute_free, network_free), busy


def _data_parallel(layers: Sequence[Layer], ranks: int, network: Network) -> tuple[float, float]:
    """Return the seconds of a step and those of its communication."""
    compute_free = sum(layer.forward_seconds for layer in layers)
    network_free = busy = waiting = 0.0
    for i, layer in enumerate(reversed(layers)):
        compute_free += 2 * layer.forward_seconds
        waiting += PARAMETER_BYTES * layer.parameters
        if waiting >= BUCKET_BYTES or i == len(layers) - 1:
            duration = network.reduce(waiting, ranks)
            network_free, busy = max(network_free, compute_free) + duration, busy + duration
            waiting = 0.0
    return max(compute_free, network_free), busy


def memory_of_rank(
    layers: Sequence[Layer], ranks: int, parallel: str, tokens: float, activation_bytes: float
) -> dict[str, float]:
    """Return the bytes that a rank needs for parameters, gradients and Adam, for gathered layers and for activations.

    ``activation_bytes`` are those that the backward pass needs of a token, over all layers; ``tokens`` are read by the
    rank in one step.
    """
    parameters = sum(layer.parameters for layer in layers)
    kept = 4 * PARAMETER_BYTES * parameters / (ranks if parallel == "fsdp" else 1)
    largest = max(layer.parameters for layer in layers)
    gathered = 0.0 if parallel == "data" else 3 * PARAMETER_BYTES * largest  # two layers, and a gradient
    return {"parameters, gradients, Adam": kept, "gathered layers": gathered, "activations": tokens * activation_bytes}
