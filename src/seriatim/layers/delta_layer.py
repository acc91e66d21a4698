"""What layers with a delta rule have in common: the keys and values of each head, and what is done with its outputs.

q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU      q and k have length 1; q is divided by √d
S_t     = one step of `seriatim.layers.delta_rule`, which a subclass says with `writing` and `log_decay`
y_t     = W_o (norm(S_tᵀ q) ⊙ `gate`)                                 norm is an RMS norm of each head
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import check_divides
from .attention import heads as divided
from .delta_rule import delta_scan, delta_step
from .head_norm import HeadNorm
from .matrix_layer import HEAD_SIZE, MatrixLayer, Terms, split_heads
from .option_types import check_sizes
from .scan import at_least_float32


class DeltaLayer(MatrixLayer):
    """A layer whose matrix is written by the delta rule.

    Attributes:
        strength: the largest β, 1, or 2 where the transition may have negative eigenvalues.
    """

    scan = staticmethod(delta_scan)
    one_step = staticmethod(delta_step)
    strength: float

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: int | None,
        num_key_heads: int | None = None,
        head_size: int | None = None,
        expansion: int = 1,
        kernel_size: int,
        keys: int = 1,
        negative_eigenvalues: bool,
    ) -> None:
        super().__init__()
        heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        key_heads = heads if num_key_heads is None else num_key_heads
        key_size = hidden_size // heads if head_size is None else head_size
        check_sizes(head_size=key_size, expansion=expansion, kernel_size=kernel_size)
        check_divides("num_key_heads", key_heads, "num_heads", heads)
        self.set_sizes(
            input_size, hidden_size, heads=heads, key_size=key_size, value_size=expansion * hidden_size // heads
        )
        self.strength = 2.0 if negative_eigenvalues else 1.0
        width, inner = key_heads * key_size, expansion * hidden_size
        self.widths = [width, keys * width, keys * inner]
        self.qkv_proj = nn.Linear(input_size, sum(self.widths), bias=False)
        self.add_convolution(sum(self.widths), kernel_size)
        self.o_norm = HeadNorm(self.value_size)
        self.o_proj = nn.Linear(inner, hidden_size, bias=False)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, keys, values, the keys that are read, and the decays; then the gate of the outputs."""
        u, after = self.convolved(self.qkv_proj(inputs), before)
        q, k, v = u.split(self.widths, dim=-1)
        q, k = unit_length(split_heads(q, self.key_size), scale=self.key_size**-0.5), self.keys(k)
        k, v, read = self.writing(inputs, unit_length(k), self.values(v))
        return (q, k, v, read, self.log_decay(inputs)), after, self.gate(inputs)

    def keys(self, k: Tensor) -> Tensor:
        """Return keys of each head."""
        return split_heads(k, self.key_size)

    def values(self, v: Tensor) -> Tensor:
        """Return values of each head."""
        return split_heads(v, self.value_size)

    def writing(self, inputs: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys and values that are written, and the keys at which the old values are read."""
        raise NotImplementedError

    def log_decay(self, inputs: Tensor) -> Tensor | None:
        """Return log α, for each head or each row of its matrix; None where nothing decays."""
        return None

    def gate(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the gate of the outputs ``(..., heads · value_size)``, or nothing."""
        return ()

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Normalise and gate the heads, and map them."""
        normed = self.o_norm(heads).flatten(-2).to(self.o_proj.weight.dtype)
        mapped: Tensor = self.o_proj(normed * rest[0] if rest else normed)
        return mapped


def unit_length(x: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return vectors ``(..., size)`` of length 1, times a number; vectors of zeros stay zeros."""
    x = at_least_float32(x)
    return x * (torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) * scale)


def log_decay(steps: Tensor, bias: Tensor, a_log: Tensor) -> Tensor:
    """Return −e^a softplus(steps + b), in float32 or wider."""
    return -a_log.exp() * F.softplus(at_least_float32(steps) + bias)
