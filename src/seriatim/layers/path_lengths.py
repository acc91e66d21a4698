"""Path lengths: the number of sequential operations along time between an input and a later output.

The shorter the path between two distant positions, the easier it is to learn a dependency between them (A. Vaswani et
al., "Attention is all you need", NeurIPS 2017, table 1). Entry d of a path length is for the input d steps back. Entry
0 is for the present input, which needs no operation along time. Infinity means that there is no path.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def direct_paths(distance: int, reach: int | None, *, dilation: int = 1) -> Tensor:
    """Return the path lengths of a layer that sees earlier inputs directly: 1 for each of them.

    It sees every ``dilation``-th input, up to ``reach`` steps back; None where it sees all.
    """
    back = torch.arange(distance + 1)
    seen = back % dilation == 0
    if reach is not None:
        seen &= back <= reach
    lengths = torch.where(seen, 1.0, math.inf).double()
    lengths[0] = 0.0
    return lengths


def joined_paths(layers: Sequence[Tensor]) -> Tensor:
    """Return the shortest path lengths through a stack of layers, any of which may cover part of the distance."""
    total = layers[0]
    for lengths in layers[1:]:
        shortest = torch.full_like(total, math.inf)
        for back in torch.isfinite(lengths).nonzero().flatten().tolist():
            through = lengths[back] + total[: len(total) - back]
            shortest[back:] = torch.minimum(shortest[back:], through)
        total = shortest
    return total
