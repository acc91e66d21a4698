"""Tensors of which every rank has a shard (`torch.distributed.tensor.DTensor`), and ordinary ones alike.

The import of that module takes a third of the time in which a command starts, so that only a training on ranks does it.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(value: Tensor) -> "TypeGuard[DTensor]":
    """Return whether this rank has only a shard of a tensor."""
    module = sys.modules.get("torch.distributed.tensor")  # without which there are no such tensors
    return module is not None and isinstance(value, module.DTensor)


def local_shard(value: Tensor) -> Tensor:
    """Return the shard of a tensor that this rank has."""
    return value.to_local() if is_sharded(value) else value


def full_tensor(value: Tensor) -> Tensor:
    """Return the tensor of all shards; every rank calls this."""
    return value.full_tensor() if is_sharded(value) else value
