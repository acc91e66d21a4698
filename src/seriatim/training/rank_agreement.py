"""The check that all ranks of a training have the same configuration, data and version."""

import json

import torch
from torch import nn

from ..config import Config
from ..core.errors import InputError, shown
from ..processes.ranks import Ranks
from ..version import __version__
from .settle import Settled


def require_equal(settled: Settled, ranks: Ranks) -> None:
    """Raise InputError on every rank if one differs from the leader."""
    facts = {
        "seriatim": __version__,
        "torch": torch.__version__,
        **_flat(settled.config),
        "the training text": settled.train.key,
        "the held-out text": None if settled.valid is None else settled.valid.key,
        "the vocabulary": settled.vocabulary.fingerprint(),
    }
    leader, *others = map(json.loads, ranks.gather_bytes(json.dumps(facts).encode()))
    for rank, theirs in enumerate(others, start=1):
        name = next((name for name in leader if theirs.get(name) != leader[name]), None)
        if name is None:
            continue
        if name.startswith("the "):
            difference = f"{name} differs from that of rank 0"
        else:
            difference = f"{name} is {shown(theirs.get(name))}, and {shown(leader[name])} on rank 0"
        raise InputError(f"rank {rank}: {difference}; start every rank with the same command, data and version")


def require_divisible(settled: Settled, model: nn.Module, ranks: Ranks) -> None:
    """Raise InputError if every batch has fewer sequences than there are ranks, or fsdp cannot divide a parameter."""
    objective, training = settled.task.objective, settled.config.training
    if ranks.count == 1 or objective is None:
        return
    scalar = next((name for name, value in model.named_parameters() if value.dim() == 0), None)
    if scalar is not None and training.parallel == "fsdp":
        raise InputError(
            f"training.parallel: fsdp cannot divide the parameter {scalar}, which is a scalar; give it the shape (1,), "
            "or train with data"
        )
    groups = objective.batches(settled.train).shuffled(training.seed, 0)
    if not any(len(group) >= ranks.count for group in groups):
        largest = max(map(len, groups), default=0)
        sequences = f"{largest:,} sequence{'s' * (largest != 1)}"
        raise InputError(
            f"training.batch_size: the largest batch has {sequences} for {ranks.count:,} ranks; start at most "
            f"{largest:,}, or make the batches larger"
        )


def _flat(config: Config) -> dict[str, object]:
    """Return the values of a configuration by dotted name, without the folder to write."""
    flat: dict[str, object] = {}
    for name, value in config.model_dump(mode="json", exclude={"out"}).items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat
