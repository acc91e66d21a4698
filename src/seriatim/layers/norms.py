"""Normalisation of each input's features, by name.

`layer`: J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", 2016.
`rms`: B. Zhang and R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.
"""

from torch import nn

from ..errors import InputError, nearest

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
EPSILON = 1e-5


def norm(name: str, size: int) -> nn.Module:
    """A norm over the last dimension, of width ``size``.

    Raises:
        ValueError: no such norm; the message names the nearest.
    """
    if name not in NORMS:
        raise InputError(f"unknown norm {name!r}; {nearest(name, list(NORMS))}")
    return NORMS[name](size, eps=EPSILON)
