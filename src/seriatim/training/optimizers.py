"""Optimizers, learning-rate schedules, averages of the weights, and checks that nothing becomes NaN or infinite.

An average of the weights generalizes better than the weights of any one step:

    exponential   θ̄ ← d_t θ̄ + (1 − d_t) θ_t,  d_t = min(d, (1 + t) / (10 + t))
    uniform       θ̄ ← θ̄ + (θ_t − θ̄) / n

θ_t weights after step t · d decay; d_t forgets the first steps faster · n the number of steps that are averaged.

B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control and Optimization
1992; the decay of the first steps as in TensorFlow's `ExponentialMovingAverage`. A uniform average that begins when the
held-out loss stops improving: S. Merity, N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language
models", ICLR 2018 (non-monotonically triggered ASGD).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..config import Training
from ..core.contract import Stateful
from ..core.errors import MismatchError
from ..core.state import State, state_leaves
from ..processes.sharded_tensors import full_tensor, is_sharded, local_shard
from ..storage.weights import is_finite
from .checkpoints import REMEDY

MIN_FRACTION = 0.01
"""Fraction of the learning rate at the end of a cosine schedule and at the beginning of a warm-up."""
WARMUP_FRACTION = 0.05
"""Fraction of the budget in which the learning rate rises if ``warmup_steps`` is not given."""


def make_optimizer(model: nn.Module, config: Training) -> torch.optim.Optimizer:
    """Build the optimizer of a configuration. Weight decay applies to matrices, except `Stateful.undecayed`."""
    # Biases, gains and what a layer names in ``undecayed`` (such as decays of a state) have no reason to be small.
    undecayed = {
        id(getattr(module, name))  # None where an option leaves it out
        for module in model.modules()
        if isinstance(module, Stateful)
        for name in module.undecayed
    }
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        (matrices if parameter.dim() > 1 and id(parameter) not in undecayed else others).append(parameter)
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]

    # Fused kernels update all parameters at once, which is most of the time of a step of a small model.
    rate = config.learning_rate
    assert rate is not None  # the default is filled in
    if config.optimizer == "sgd":
        has_full_parameters = not any(is_sharded(parameter) for parameter in matrices + others)
        return torch.optim.SGD(groups, lr=rate, fused=has_full_parameters)  # PyTorch cannot fuse it for shards
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, fused=True)


def learning_rate(config: Training, *, step: int, progress: float, annealed: int) -> float:
    """Return the learning rate of a step.

    Args:
        config: schedule, warm-up and base rate.
        step: number of steps before this one.
        progress: the share of the budget that is spent, 0 to 1.
        annealed: number of times that the schedule ``plateau`` lowered the rate.
    """
    rate = config.learning_rate
    assert rate is not None  # the default is filled in
    if config.warmup_steps is None:
        if config.schedule == "cosine" and config.optimizer != "sgd" and progress < WARMUP_FRACTION:
            return rate * max(progress / WARMUP_FRACTION, MIN_FRACTION)
    elif step < config.warmup_steps:
        return rate * (step + 1) / config.warmup_steps
    if config.schedule == "cosine":
        return rate * (MIN_FRACTION + (1 - MIN_FRACTION) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2)
    if config.schedule == "plateau":
        try:
            return rate / config.anneal**annealed
        except OverflowError:  # below the smallest number
            return 0.0
    return rate


def clip_gradients(model: nn.Module, max_norm: float | None) -> float:
    """Scale the gradient down to ``max_norm`` unless it is not finite, and return its norm before."""
    parameters = list(model.parameters())
    norm = full_tensor(nn.utils.get_total_norm([value.grad for value in parameters if value.grad is not None]))
    if max_norm is not None and norm.isfinite():
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return float(norm)


def nonfinite_problem(model: nn.Module, losses: Sequence[float], norm: float) -> tuple[str, range] | None:
    """Return what is NaN or infinite in a step, in words, and the indices of the batches that cause it.

    The model has the gradients of the step, whose norm is given; ``losses`` has a value for each batch.
    """
    for i, loss in enumerate(losses):
        if not math.isfinite(loss):
            return f"the loss is {loss}", range(i, i + 1)
    if math.isfinite(norm):
        return None
    gradients = {name: local_shard(value.grad) for name, value in model.named_parameters() if value.grad is not None}
    where = next((f" of {name}" for name, gradient in gradients.items() if not is_finite(gradient)), "")
    return f"the gradient{where} is not finite", range(len(losses))


def finite_state(state: State | None) -> State | None:
    """Return the state, or None if it is not finite."""
    return state if state is None or all(map(is_finite, state_leaves(state))) else None


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer as tensors named ``PARAMETER|KEY``."""
    return {
        f"{name}|{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    shard: Callable[[str, Tensor], Tensor],
) -> None:
    """Restore the result of `optimizer_tensors`; raise InputError if it belongs to another model.

    ``shard`` returns the shard of a tensor that this process has, given the name of the parameter and the full one.
    """
    parameters = dict(model.named_parameters())
    keys = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimizer, torch.optim.Adam) else set[str]()
    saved: dict[str, dict[str, Tensor]] = {}
    for path, value in tensors.items():
        name, _, key = path.partition("|")
        saved.setdefault(name, {})[key] = value
    for name, values in saved.items():
        if name not in parameters or values.keys() != keys:
            raise MismatchError(f"checkpoint: its optimizer has {name!r}, which this model does not; {REMEDY}")
        parameter = parameters[name]
        for key, value in values.items():
            expected = ((), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
            if (value.shape, value.dtype) != expected:
                raise MismatchError(f"checkpoint: its optimizer has {name!r} of another shape or type; {REMEDY}")
            optimizer.state[parameter][key] = shard(name, value.to(parameter.device, copy=True))


# Averages of the weights


class WeightAverage:
    """The average of a model's parameters, from its present ones on.

    ``decay`` is d; None averages uniformly over the steps after ``first``.
    """

    def __init__(self, model: nn.Module, decay: float | None, *, first: int = 0) -> None:
        self.model, self.decay, self.first = model, decay, first
        self.parameters = dict(model.named_parameters())
        self.tensors = {name: value.detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the parameters after ``step``, counted from 1."""
        decay = 1 - 1 / (step - self.first)
        if self.decay is not None:
            decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self.parameters.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average for the duration."""
        present = {name: value.detach().clone() for name, value in self.parameters.items()}
        self._copy(self.tensors)
        try:
            yield
        finally:
            self._copy(present)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self.parameters.items():
            value.copy_(tensors[name])

    def restore(self, tensors: Mapping[str, Tensor], shard: Callable[[str, Tensor], Tensor]) -> None:
        """Take the average from a checkpoint; raise InputError if it is that of another model.

        ``shard`` returns the shard of a tensor that this process has, given the name of the parameter and the full one.
        """
        shapes = {name: value.shape for name, value in tensors.items()}
        if shapes != {name: value.shape for name, value in self.tensors.items()}:
            raise MismatchError(f"checkpoint: its average of the weights is that of another model; {REMEDY}")
        self.tensors = {name: shard(name, tensors[name].to(value.device)) for name, value in self.tensors.items()}
