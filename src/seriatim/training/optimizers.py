"""Optimizers, and the learning rate over a training."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..config import Config, Training
from ..core.contract import Stateful
from ..core.errors import InputError
from ..layers import find, split_names

SGD_RATE = 1.0
"""The default learning rate of SGD, for every layer and task."""
FORMER_RATE = 2e-3
"""The default of Adam and AdamW in runs whose configuration names no rate."""
FLOOR = 0.01
"""The share of the learning rate that a cosine ends at, and that a warm-up begins at."""
WARMUP = 0.05
"""The share of the budget in which the learning rate rises, where no number of warm-up steps is given."""


def make_optimizer(model: nn.Module, config: Training) -> torch.optim.Optimizer:
    """The optimizer that a configuration names; weight decay touches matrices, not vectors or `Stateful.undecayed`."""
    spared = {
        id(module.get_parameter(name))
        for module in model.modules()
        if isinstance(module, Stateful)
        for name in module.undecayed
    }
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        (decayed if parameter.dim() > 1 and id(parameter) not in spared else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    rate = base_rate(config)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, fused=True)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, fused=True)


def default_rate(config: Config, layer: str | None = None) -> float:
    """The learning rate where none is given: the one that the layer declares for the task (`Stateful.learning_rates`).

    Among several layers (of a stack, or of an encoder and its decoder) the smallest rate is taken.

    Args:
        config: names task, optimizer and layer.
        layer: taken instead of the layer of ``config``.
    """
    if config.training.optimizer == "sgd":
        return SGD_RATE
    decoder = config.model.options.get("decoder")
    stacks = [layer or config.model.layer, *([decoder] if isinstance(decoder, str) else [])]
    return min(find(name).learning_rate_for(config.task) for stack in stacks for name in split_names(stack))


def base_rate(config: Training) -> float:
    """The learning rate of a configuration in which it is settled."""
    assert config.learning_rate is not None
    return config.learning_rate


def learning_rate(config: Training, *, step: int, progress: float, annealed: int) -> float:
    """The rate of one step.

    Args:
        config: schedule, warm-up and base rate.
        step: how many steps were made before this one.
        progress: the share of the budget spent, 0 to 1.
        annealed: how often a plateau was met.
    """
    rate = base_rate(config)
    if config.warmup_steps is None:
        if warms_up(config) and progress < WARMUP:
            return rate * max(progress / WARMUP, FLOOR)
    elif step < config.warmup_steps:
        return rate * (step + 1) / config.warmup_steps
    if config.schedule == "cosine":
        return rate * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2)
    if config.schedule == "plateau":
        try:
            return rate / config.anneal**annealed
        except OverflowError:  # annealed beyond the smallest number
            return 0.0
    return rate


def warms_up(config: Training) -> bool:
    """Whether the rate rises at first where no number of warm-up steps is given: Adam and AdamW with a cosine."""
    return config.schedule == "cosine" and config.optimizer != "sgd"


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps, by parameter and name, ready for a file of named tensors."""
    return {
        f"{name}|{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Gives an optimizer back what `optimizer_tensors` took.

    Raises:
        InputError: the tensors belong to another model.
    """
    parameters = dict(model.named_parameters())
    names = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimizer, torch.optim.Adam) else set[str]()
    kept: dict[str, dict[str, Tensor]] = {}
    for path, value in tensors.items():
        name, _, key = path.partition("|")
        kept.setdefault(name, {})[key] = value
    for name, values in kept.items():
        if name not in parameters or values.keys() != names:
            raise InputError(f"the checkpoint's optimizer keeps {name!r}, which this model's does not")
        parameter = parameters[name]
        for key, value in values.items():
            shape, dtype = ((), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
            if value.shape != shape or value.dtype != dtype:
                raise InputError(
                    f"the checkpoint's optimizer keeps {name!r} in another shape or type than this model's"
                )
            optimizer.state[parameter][key] = value.to(parameter.device, copy=True)
