"""Copies of batches from the memory of the machine to that of a GPU."""

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device.

    A copy to a GPU goes through pinned memory and is not waited for, so that the next batch is prepared meanwhile.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
