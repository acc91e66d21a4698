"""Dropout over sequences."""

from torch import Tensor, nn

from ..core.errors import InputError
from ..core.random_masks import dropout_mask


class Dropout(nn.Module):
    """Drops each value on its own."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """``(...,)`` to the same shape."""
        return inputs * dropout_mask(tuple(inputs.shape), self.p, inputs) if self.training else inputs

    def extra_repr(self) -> str:
        """The rate, for ``print``."""
        return f"p={self.p}"


class VariationalDropout(Dropout):
    """Drops whole features: one mask a row, the same at every time step of a call.

    Y. Gal and Z. Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks", 2016.
    A sequence run in windows draws a new mask each window.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """``(batch, time, size)``, or one step ``(batch, size)``, to the same shape."""
        if not self.training:
            return inputs
        return inputs * dropout_mask((inputs.shape[0], *[1] * (inputs.dim() - 2), inputs.shape[-1]), self.p, inputs)


def dropout(p: float, *, variational: bool = False) -> nn.Module:
    """Dropout at rate ``p``: every value on its own, or whole features over time.

    Raises:
        ValueError: a rate outside [0, 0.99].
    """
    if not 0 <= p <= 0.99:
        raise InputError(f"dropout must be between 0 and 0.99; got {p}")
    if p == 0:
        return nn.Identity()
    return VariationalDropout(p) if variational else Dropout(p)
