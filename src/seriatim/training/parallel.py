"""The ranks of one training: what they agree on, and the loss whose gradients PyTorch adds up over them.

They need equal data, configuration and version. ``torchrun`` starts its ranks again after a failure, and when machines
come or go; it counts a restart only in the first case, and only on the machine of the failure. Therefore a run records
the job that has begun it (``--rdzv-id``).

The loss is one module on every rank, in one of two ways.

``data``: every rank has the whole model (`torch.nn.parallel.DistributedDataParallel`: S. Li et al., "PyTorch
Distributed", VLDB 2020). ``fsdp``: every rank has a shard of each parameter, of its gradient and of the optimizer's
state; the parameters of a layer are gathered while it computes (`torch.distributed.fsdp.fully_shard`: Y. Zhao et al.,
"PyTorch FSDP", VLDB 2023; S. Rajbhandari et al., "ZeRO", SC 2020). Both take the mean over ranks, and the training
multiplies the loss by their number, because it divides by the terms of all ranks itself.
"""

import copy
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ..config import Config, Training
from ..core.auxiliary_losses import collect
from ..core.errors import InputError, MismatchError, NotSupportedError, RangeError, shown
from ..core.state import OutputsAndState, State, map_state
from ..layers.containers import MemoryStack, Stack
from ..processes.ranks import Ranks
from ..processes.sharded_tensors import full_tensor, is_sharded
from ..storage.files import read_text, write_whole
from ..storage.written_folders import RUN, is_run, latest_folder, record, remove_written
from ..tasks.task import Objective, TaskBatch
from ..version import __version__
from .run_files import has_begun, read_config
from .settle import Settled, by_dotted_name


def require_equal(settled: Settled, ranks: Ranks) -> None:
    """Raise InputError on every rank if one differs from rank 0."""
    facts = {
        "seriatim": __version__,
        "torch": torch.__version__,
        **by_dotted_name(settled.config),
        "the training text": settled.train.key,
        "the held-out text": None if settled.valid is None else settled.valid.key,
        "the vocabulary": settled.vocabulary.fingerprint(),
    }

    # Gradients are added up whatever they belong to, so that a difference would go unnoticed.
    leader, *others = map(json.loads, ranks.gather_bytes(json.dumps(facts).encode()))
    for rank, theirs in enumerate(others, start=1):
        name = next((name for name in leader if theirs.get(name) != leader[name]), None)
        if name is None:
            continue
        if name.startswith("the "):
            difference = f"{name} differs from that of rank 0"
        else:
            difference = f"{name} is {shown(theirs.get(name))}, and {shown(leader[name])} on rank 0"
        raise MismatchError(f"rank {rank}: {difference}; start every rank with the same command, data and version")


def require_divisible(settled: Settled, model: nn.Module, ranks: Ranks) -> None:
    """Raise InputError if every batch has fewer sequences than there are ranks, or fsdp cannot divide a parameter."""
    objective, training = settled.task.objective, settled.config.training
    if ranks.count == 1 or objective is None:
        return
    scalar = next((name for name, value in model.named_parameters() if value.dim() == 0), None)
    if scalar is not None and training.parallel == "fsdp":
        raise NotSupportedError(
            f"training.parallel: fsdp cannot divide the parameter {scalar}, a single number; give it the shape (1,), "
            "or set training.parallel to data"
        )

    # A rank without a sequence in every batch would only wait for the others.
    groups = objective.batches(settled.train).shuffled(training.seed, 0)
    if not any(len(group) >= ranks.count for group in groups):
        largest = max(map(len, groups), default=0)
        sequences = f"{largest:,} sequence{'s' * (largest != 1)}"
        raise RangeError(
            f"training.batch_size: the largest batch has {sequences} for {ranks.count:,} ranks; start at most "
            f"{largest:,}, or raise training.batch_size"
        )


# Restarts by torchrun


JOB = ".torchrun"
"""The file of a run with the name of the job that has begun it."""
MAX_NAME_BYTES = 1 << 16
CHOSEN = (None, "auto")
"""Values for which a training chooses others."""
Beginning = Literal["new", "again", "resume"]
"""Start in an empty folder; start again, as there is no checkpoint; or go on from the last checkpoint."""


def record_job(folder: Path) -> None:
    """Write the name of the present job into a run, if it has one."""
    if name := _present_job():
        record(folder, RUN, JOB)
        write_whole(folder / JOB, name)
    else:
        remove_written(folder, RUN, JOB)


def how_to_begin(config: Config, folder: Path, *, restarts: int) -> Beginning:
    """Return how a training begins that torchrun may have started again.

    The run in the folder is continued only if this job has begun it, as far as is known, with this configuration.
    """
    folder = latest_folder(folder, RUN)
    if not is_run(folder) or not (restarts or _is_of_this_job(folder)):
        return "new"
    given, saved = (each.model_dump(exclude={"out"}) for each in (config, read_config(folder)))
    if not _agrees(given, saved):
        return "new"
    return "resume" if has_begun(folder) else "again"


def _present_job() -> str:
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else name


def _is_of_this_job(folder: Path) -> bool:
    try:
        name = read_text(folder / JOB, max_bytes=MAX_NAME_BYTES, remedy="remove it")
    except InputError:  # usually there is none
        return False
    return bool(name) and name == _present_job()


def _agrees(given: object, saved: object) -> bool:
    """Return whether what is given is what was saved, where the training did not choose it."""
    if isinstance(given, dict) and isinstance(saved, dict):
        return all(_agrees(value, saved.get(name)) for name, value in given.items())
    return given in CHOSEN or given == saved


Computed = tuple[Tensor, Tensor, State | None]
"""The loss of a batch, what layers add to it, and the state to carry on."""


# The loss


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

    def full_model(self) -> nn.Module:
        """Return the model with all its parameters, as they are now. Every rank calls this; only rank 0 uses it."""
        return self.loss.model

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the full tensors that belong to parameters. Every rank calls this; only rank 0 uses them."""
        return dict(tensors)

    def shard(self, name: str, value: Tensor) -> Tensor:
        """Return the shard of a tensor that this rank has, given the full one; it belongs to the parameter ``name``."""
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
    """Every rank has a shard of each parameter.

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
    def full_model(self) -> nn.Module:
        """Return a model with all parameters; see `Parallel.full_model`."""
        tensors = self.full(dict(self.loss.model.named_parameters()))
        if self.replica is None:
            return self.loss.model
        for name, parameter in self.replica.named_parameters():
            parameter.copy_(tensors[name])
        return self.replica

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather tensors; see `Parallel.full`."""
        result = {}
        for name, value in tensors.items():
            gathered = full_tensor(value).detach()
            if self.replica is not None:
                result[name] = gathered
        return result

    def shard(self, name: str, value: Tensor) -> Tensor:
        """Return the shard of this rank; see `Parallel.shard`."""
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
    """Return the loss of a training on these ranks; ``fsdp`` replaces the parameters of the model by shards."""
    loss = TaskLoss(objective, model)
    if ranks.count == 1:
        return Parallel(loss)
    return FullySharded(loss, ranks) if config.parallel == "fsdp" else DataParallel(loss)
