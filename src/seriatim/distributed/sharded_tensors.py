"""Tensors of which every rank has a part (`torch.distributed.tensor.DTensor`), and ordinary ones alike."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(value: Tensor) -> Tensor:
    """Return the part of a tensor that this rank has."""
    return value.to_local() if isinstance(value, DTensor) else value


def whole_tensor(value: Tensor) -> Tensor:
    """Return a tensor in one piece; every rank calls this."""
    return value.full_tensor() if isinstance(value, DTensor) else value
