"""What layers with a delta rule have in common: the queries, keys and values of each head, and decays.

    q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU      q and k have length 1; q is divided by √d

x ``inputs`` · W_q, W_k, W_v ``qkv_proj`` · d the features of a key. The recurrence is `seriatim.layers.delta_rule`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import check_divides
from .attention import heads as divided
from .matrix_layer import HEAD_SIZE, MatrixLayer, split_heads
from .option_types import check_sizes
from .pointwise import EPSILON
from .scan import at_least_float32


def add_delta_maps(
    layer: MatrixLayer,
    input_size: int,
    hidden_size: int,
    *,
    num_heads: int | None,
    num_key_heads: int | None = None,
    head_size: int | None = None,
    expansion: int = 1,
    kernel_size: int,
    keys: int = 1,
    norm_epsilon: float = EPSILON,
) -> None:
    """Set the sizes of a layer, and give it the maps of `delta_heads` and of its outputs; see `GatedDeltaNet`.

    There are several ``keys`` and values for each input and head.
    """
    heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
    key_heads = heads if num_key_heads is None else num_key_heads
    key_size = hidden_size // heads if head_size is None else head_size
    check_sizes(head_size=key_size, expansion=expansion, kernel_size=kernel_size)
    check_divides("num_key_heads", key_heads, "num_heads", heads)
    inner = expansion * hidden_size
    layer.set_sizes(input_size, hidden_size, heads=heads, key_size=key_size, value_size=inner // heads)
    layer.widths = [key_heads * key_size, keys * key_heads * key_size, keys * inner]
    layer.qkv_proj = nn.Linear(input_size, sum(layer.widths), bias=False)
    layer.add_convolution(sum(layer.widths), kernel_size)
    layer.add_outputs(epsilon=norm_epsilon)


def delta_heads(
    layer: MatrixLayer, inputs: Tensor, before: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return q, k and v ``(..., heads · keys, size)`` of inputs ``(..., input_size)``, and the last inputs."""
    u, after = layer.convolved(layer.qkv_proj(inputs), before)
    q, k, v = torch.split(u, layer.widths, dim=-1)
    q, k = (_unit_length(split_heads(x, layer.key_size)) for x in (q, k))
    return q * layer.key_size**-0.5, k, split_heads(v, layer.value_size), after


def _unit_length(x: Tensor) -> Tensor:
    x = at_least_float32(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)  # vectors of zeros stay zeros


def decay_logarithm(steps: Tensor, bias: Tensor, a_log: Tensor) -> Tensor:
    """Return −e^a softplus(steps + b), in float32 or wider."""
    return -a_log.exp() * F.softplus(at_least_float32(steps) + bias)
