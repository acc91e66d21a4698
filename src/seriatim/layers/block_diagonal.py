"""Products with block-diagonal matrices, whose heads do not mix: slices of the features times the matrix of a head."""

import torch
from torch import Tensor


def head_products(inputs: Tensor, weight: Tensor, parts: int = 1) -> Tensor:
    """Multiply each head of ``(..., H D)`` by its matrix ``(H, D, parts E)``: ``(..., parts H E)``.

    The results for all heads of one part lie side by side, so that a part is a slice of the result.
    """
    pairs = zip(inputs.chunk(len(weight), dim=-1), weight.unbind(), strict=True)
    of_heads = [(x @ w).chunk(parts, dim=-1) for x, w in pairs]
    return torch.cat([product for of_part in zip(*of_heads, strict=True) for product in of_part], dim=-1)


def block_products(inputs: Tensor, weight: Tensor) -> Tensor:
    """Multiply ``(batch, N d)`` by a block-diagonal matrix, of which only the blocks ``(N, d, e)`` are read."""
    rows = torch.unflatten(inputs, -1, weight.shape[:2]).unsqueeze(-2)  # (B, N, 1, d)
    return (rows @ weight).flatten(1)


def diagonal_blocks(weight: Tensor, heads: int) -> Tensor:
    """Return blocks ``(N, d, e)`` on the diagonals of one matrix a head, ``(heads, N d / heads, N e / heads)``."""
    blocks = torch.unflatten(weight, 0, (heads, -1)).unsqueeze(3)  # (H, n, d, 1, e)
    count = blocks.shape[1]
    diagonal = torch.eye(count, dtype=weight.dtype, device=weight.device).view(count, 1, count, 1)
    return (blocks * diagonal).flatten(3).flatten(1, 2)
