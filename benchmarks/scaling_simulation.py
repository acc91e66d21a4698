"""The simulation of one step of training on many GPUs behind `docs/scaling.md`.

A step has two queues that run at the same time, computation and communication, as PyTorch's engines have them.

In ``fsdp`` the parameters of a layer are gathered before it computes, forward and again backward. As PyTorch's
``fully_shard`` does, the gather of the next layer is put into the queue when a layer begins to compute, before the
reduce-scatter of the gradients of that layer, and the parameters of the root (what belongs to no layer, such as the
embedding) stay gathered from the beginning of a forward pass to the end of its backward pass. All micro-batches gather;
gradients are scattered in the backward pass of the last one.

In ``data`` the gradients of buckets are added up as soon as they exist, in the backward pass of the last micro-batch;
those of the root come last, because a tied embedding is used first.

A collective over N ranks moves (N − 1) / N of its bytes through every link (twice for an all-reduce), and each of its
N − 1 rounds has a latency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PARAMETER_BYTES = 4  # float32, also of a gradient and of each of Adam's two moments
CAST_BYTES = 2  # of a parameter in bfloat16, as products read it
BUCKET_BYTES = 25 << 20  # of DistributedDataParallel
LOGITS_BYTES = 2 * 4 * (1 << 22)  # the loss computes 2²² logits at a time, and holds two arrays of them


@dataclass(frozen=True)
class Network:
    """Links between ranks: bytes a second of the slowest link of a ring, and seconds of one round."""

    bandwidth: float
    latency: float

    def gather(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-gather or a reduce-scatter of ``size`` bytes in all."""
        return size * (ranks - 1) / ranks / self.bandwidth + (ranks - 1) * self.latency if size else 0.0

    def reduce(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce of ``size`` bytes."""
        return 2 * self.gather(size, ranks)


@dataclass(frozen=True)
class Layer:
    """A part of a model that is gathered at once: its parameters, and the seconds of its forward pass on one rank."""

    parameters: float
    forward_seconds: float


@dataclass(frozen=True)
class Model:
    """Layers, and the root, which computes the logits from what the last layer returns.

    The seconds of all are those of one micro-batch; the backward pass takes twice as long.
    """

    layers: Sequence[Layer]
    root: Layer = Layer(0.0, 0.0)

    @property
    def parameters(self) -> float:
        """The number of parameters."""
        return self.root.parameters + sum(layer.parameters for layer in self.layers)

    @property
    def forward_seconds(self) -> float:
        """The seconds of a forward pass."""
        return self.root.forward_seconds + sum(layer.forward_seconds for layer in self.layers)


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


class _Queue:
    """Work that is done one after another: when it is free, and how long it worked."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def add(self, earliest: float, seconds: float) -> float:
        """Add work that cannot begin before a time; return when it begins."""
        begins = max(self.free, earliest)
        self.free, self.busy = begins + seconds, self.busy + seconds
        return begins


def simulate_step(model: Model, ranks: int, network: Network, parallel: str, micro_batches: int = 1) -> Step:
    """Simulate one step of training, in which every rank computes so many micro-batches one after another."""
    simulate = {"data": _data_parallel, "fsdp": _fully_sharded}[parallel]
    compute, communication = simulate(model, ranks, network, micro_batches)
    sizes = PARAMETER_BYTES * model.parameters, PARAMETER_BYTES * model.root.parameters
    moved = 2 * sizes[0] if parallel == "data" else (2 * micro_batches + 1) * sizes[0] - micro_batches * sizes[1]
    seconds = max(compute.free, communication.free)
    return Step(seconds, compute.busy, communication.busy, moved * (ranks - 1) / ranks)


def _fully_sharded(model: Model, ranks: int, network: Network, micro_batches: int) -> tuple[_Queue, _Queue]:
    """Return the queues of computation and communication after a step."""
    compute, communication = _Queue(), _Queue()

    def gather(layer: Layer, earliest: float) -> float:
        """Return when the parameters are there; a reduce-scatter takes as long."""
        communication.add(earliest, network.gather(PARAMETER_BYTES * layer.parameters, ranks))
        return communication.free

    for number in range(micro_batches):
        # The engine reads the loss of each micro-batch, so that it does not issue the next one before.
        gathered = gather(model.root, compute.free)
        issued = compute.free
        scattered: tuple[Layer, float] | None = None  # whose gradients are ready, and when
        for layer in model.layers:
            gathered = max(gathered, gather(layer, issued))
            issued = compute.add(gathered, layer.forward_seconds)
        if model.root.forward_seconds:  # the loss, whose gradients are computed with it, reads what it computed
            compute.add(gathered, 3 * model.root.forward_seconds)
            issued = compute.free
        for layer in reversed(model.layers):
            gathered = gather(layer, issued)
            if scattered is not None:
                gather(*scattered)
            issued = compute.add(gathered, 2 * layer.forward_seconds)
            scattered = (layer, compute.free) if number == micro_batches - 1 else None
        if scattered is not None:
            gather(*scattered)
            gather(model.root, compute.free)
    return compute, communication


def _data_parallel(model: Model, ranks: int, network: Network, micro_batches: int) -> tuple[_Queue, _Queue]:
    """Return the queues of computation and communication after a step."""
    compute, communication, waiting = _Queue(), _Queue(), 0.0
    compute.add(0.0, (3 * micro_batches - 2) * model.forward_seconds + 2 * model.root.forward_seconds)
    for layer in [*reversed(model.layers), Layer(model.root.parameters, 0.0)]:
        compute.add(0.0, 2 * layer.forward_seconds)
        waiting += PARAMETER_BYTES * layer.parameters
        if waiting >= BUCKET_BYTES:
            communication.add(compute.free, network.reduce(waiting, ranks))
            waiting = 0.0
    communication.add(compute.free, network.reduce(waiting, ranks))
    return compute, communication


def memory_of_rank(
    model: Model, ranks: int, parallel: str, micro_batches: int, activation_bytes: float
) -> dict[str, float]:
    """Return the bytes that the leader, rank 0, needs in a step; other ranks have no copy of the model.

    ``activation_bytes`` are those that the backward pass of a micro-batch needs. With ``data`` the gradients lie in the
    buckets, but those that are accumulated are separate from them.
    """
    whole, root = PARAMETER_BYTES * model.parameters, PARAMETER_BYTES * model.root.parameters
    largest = PARAMETER_BYTES * max(layer.parameters for layer in model.layers)
    is_sharded, accumulates = parallel == "fsdp", micro_batches > 1
    return {
        "parameters, gradients, Adam": 4 * whole / (ranks if is_sharded else 1),
        "gradients that are accumulated": whole if accumulates else 0.0,
        "gathered layers": root + 3 * largest if is_sharded else 0.0,  # two layers, and the gradient of one
        "copy of the model, the leader only": whole if is_sharded else 0.0,
        "parameters in bfloat16": CAST_BYTES * model.parameters,
        "logits, and two copies of the gradient of the output": 2 * root + LOGITS_BYTES,
        "activations": activation_bytes,
    }
