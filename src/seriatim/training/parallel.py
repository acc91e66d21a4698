"""The loss of a training as one module, whose gradients PyTorch adds up over the ranks.

``data``: every rank has the whole model (`torch.nn.parallel.DistributedDataParallel`: S. Li et al., "PyTorch
Distributed", VLDB 2020). ``fsdp``: every rank has a part of each parameter, of its gradient and of the optimizer's
state; the parameters of a layer are gathered while it computes (`torch.distributed.fsdp.fully_shard`: Y. Zhao et al.,
"PyTorch FSDP", VLDB 2023; S. Rajbhandari et al., "ZeRO", SC 2020). Both take the mean over ranks, and the training
multiplies the loss by their number, because it divides by the terms of all ranks itself.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ..config import Training
from ..core.auxiliary_losses import collect
from ..core.state import OutputsAndState, State, map_state
from ..layers.containers import MemoryStack, Stack
from ..processes.ranks import Ranks
from ..processes.sharded_tensors import is_sharded, whole_tensor
from ..tasks.task import Objective, TaskBatch

Computed = tuple[Tensor, Tensor, State | None]
"""The loss of a batch, what layers add to it, and the state to carry on."""


class TaskLoss(nn.Module):
    """The loss of a batch; everything that a training differentiates happens in its ``forward``."""

    def __init__(self, objective: Objective, model: nn.Module) -> None:
        super().__init__()
        self.objective, self.model = objective, model
        self.dtype = next(model.parameters()).dtype

    def forward(self, batch: TaskBatch, state: State | None, progress: float) -> Computed:
        """Return the loss in nats, the sum of the auxiliary losses, and the state, detached."""
        config, device = self.objective.config.training, next(self.model.parameters()).device
        precision = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")
        with precision, collect() as contributions:
            loss, state = self.objective.loss(self.model, batch, state, progress=progress)
        auxiliary = sum(contributions, torch.zeros((), device=device))
        return loss, auxiliary, None if state is None else map_state(self.carry, state)

    def carry(self, leaf: Tensor) -> Tensor:
        """Detach a leaf of the state from the graph and convert it to the type of the parameters."""
        return leaf.detach().to(self.dtype) if leaf.is_floating_point() else leaf.detach()


class Parallel:
    """The loss of a training in one process."""

    def __init__(self, loss: TaskLoss) -> None:
        self.loss = loss

    def __call__(self, batch: TaskBatch, state: State | None, progress: float) -> Computed:
        """Compute the loss of a batch; see `TaskLoss.forward`."""
        computed: Computed = self.loss(batch, state, progress)
        return computed

    @contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        """Run a forward and a backward pass; the gradients of a step are added up over the ranks after the last one."""
        yield

    def whole_model(self) -> nn.Module:
        """Return the model with all its parameters, as they are now. Every rank calls this; only rank 0 uses it."""
        return self.loss.model

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors that belong to parameters in one piece. Every rank calls this; only rank 0 uses them."""
        return dict(tensors)

    def place(self, name: str, value: Tensor) -> Tensor:
        """Return the part of a tensor that this rank has, given the whole; it belongs to the parameter ``name``."""
        return value


class DataParallel(Parallel):
    """Every rank has the whole model."""

    def __init__(self, loss: TaskLoss) -> None:
        from torch.nn.parallel import DistributedDataParallel  # slow to import

        super().__init__(loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # modules have constants only, which need no broadcast
            # Experts may receive no token. Also, buckets stay as they are, so that a resumed training adds up in the
            # same order as one that was not interrupted. Gradients lie in the buckets, so that a step which is not
            # accumulated holds them once.
            self.module = DistributedDataParallel(
                loss, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
            )

    def __call__(self, batch: TaskBatch, state: State | None, progress: float) -> Computed:
        """Compute the loss of a batch; see `TaskLoss.forward`."""
        computed: Computed = self.module(batch, state, progress)
        return computed

    @contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        """See `Parallel.accumulating`."""
        with nullcontext() if is_last else self.module.no_sync():
            yield


class FullySharded(Parallel):
    """Every rank has a part of each parameter.

    The unit that is gathered at once is a layer of a stack. A decoder that attends to a memory, and a model that is
    trained one step at a time, are gathered as a whole, because ranks would gather different numbers of times.
    """

    def __init__(self, loss: TaskLoss, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # slow to import
        from torch.distributed.fsdp import fully_shard

        super().__init__(loss)
        self.replica = copy.deepcopy(loss.model) if ranks.is_rank_zero else None
        device = next(loss.parameters()).device.type
        mesh = init_device_mesh(device, (ranks.count,))
        for module in reversed(list(loss.modules())):  # inner layers first
            if isinstance(module, Stack) and not isinstance(module, MemoryStack) and not loss.objective.by_steps:
                for layer in module.layers:
                    layer.register_forward_hook(copy_views)
                    fully_shard(layer, mesh=mesh)
        self.module = fully_shard(loss, mesh=mesh)

    def __call__(self, batch: TaskBatch, state: State | None, progress: float) -> Computed:
        """Compute the loss of a batch; see `TaskLoss.forward`."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nothing changes it in place
            return super().__call__(batch, state, progress)

    @contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        """See `Parallel.accumulating`."""
        self.module.set_requires_gradient_sync(is_last)
        self.module.set_is_last_backward(is_last)
        yield

    @torch.no_grad()
    def whole_model(self) -> nn.Module:
        """Return a model with all parameters; see `Parallel.whole_model`."""
        tensors = self.whole(dict(self.loss.model.named_parameters()))
        if self.replica is None:
            return self.loss.model
        for name, parameter in self.replica.named_parameters():
            parameter.copy_(tensors[name])
        return self.replica

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather tensors; see `Parallel.whole`."""
        result = {}
        for name, value in tensors.items():
            gathered = whole_tensor(value).detach()
            if self.replica is not None:
                result[name] = gathered
        return result

    def place(self, name: str, value: Tensor) -> Tensor:
        """Return the part of this rank; see `Parallel.place`."""
        from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

        parameter = self.loss.model.get_parameter(name)
        assert isinstance(parameter, DTensor)
        if value.shape != parameter.shape:  # the number of steps
            return value
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)


def copy_views(layer: nn.Module, _: object, results: OutputsAndState) -> OutputsAndState:
    """Return the results of a layer, and copies of those that share the memory of a parameter, which is freed."""
    gathered = (parameter for parameter in layer.parameters() if not is_sharded(parameter))
    freed = {parameter.untyped_storage().data_ptr() for parameter in gathered}
    return map_state(lambda leaf: leaf.clone() if leaf.untyped_storage().data_ptr() in freed else leaf, results)


def make_parallel(objective: Objective, model: nn.Module, config: Training, ranks: Ranks) -> Parallel:
    """Return the loss of a training on these ranks; ``fsdp`` replaces the parameters of the model by parts."""
    loss = TaskLoss(objective, model)
    if ranks.count == 1:
        return Parallel(loss)
    return FullySharded(loss, ranks) if config.parallel == "fsdp" else DataParallel(loss)
