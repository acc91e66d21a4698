"""Normalisation of each input's features, by name.

`layer`: J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", 2016.
`rms`: B. Zhang and R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.
"""

from typing import Annotated

from torch import Tensor, nn

from ..core.errors import InputError, nearest
from .option_types import OneOf

EPSILON = 1e-5


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`, computed in the type of its weights where autocast gives it a narrower one."""

    def forward(self, inputs: Tensor) -> Tensor:
        """``(..., size)`` to the same shape."""
        return super().forward(inputs.to(self.weight.dtype))


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm`, computed in the type of its weights where autocast gives it a narrower one."""

    def forward(self, inputs: Tensor) -> Tensor:
        """``(..., size)`` to the same shape."""
        return super().forward(inputs.to(self.weight.dtype))


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}

Norm = Annotated[str, OneOf(NORMS)]


def norm(name: str, size: int) -> nn.Module:
    """A norm over the last dimension, of width ``size``.

    Raises:
        ValueError: no such norm; the message names the nearest.
    """
    if name not in NORMS:
        raise InputError(f"unknown norm {name!r}; {nearest(name, list(NORMS))}")
    return NORMS[name](size, eps=EPSILON)
