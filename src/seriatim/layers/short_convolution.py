"""The short causal convolution before a recurrence, each channel on its own.

    y_t = b + Σ_k w_k ⊙ x_{t−K+1+k}

w ``weight (K, channels)`` · b ``bias (channels,)``, or None · the last K − 1 of x ``recent``.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .scan import Context
from .unpadded_layer import remember


def init_convolution(weight: Tensor, bias: Tensor | None) -> None:
    """Initialise weights and biases uniformly within 1/√K."""
    bound = weight.shape[0] ** -0.5
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


def short_convolution(
    inputs: Tensor, recent: Tensor, weight: Tensor, bias: Tensor | None = None, *, time_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Convolve ``(batch, time, channels)`` after the inputs ``recent (batch, K − 1, channels)``; return both anew.

    Where ``time_dim`` is 0, time is the first dimension of all sequences.
    """
    extended, recent = remember(inputs, recent, time_dim=time_dim)
    return _DepthwiseConvolution.apply(extended, weight, bias, time_dim), recent  # type: ignore[no-untyped-call]


def short_convolution_step(
    inputs: Tensor, recent: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve one input ``(batch, channels)``; see `short_convolution`."""
    extended, recent = remember(inputs.unsqueeze(1), recent)
    convolved = (extended * weight).sum(1)
    return convolved if bias is None else convolved + bias, recent


class _DepthwiseConvolution(torch.autograd.Function):
    """Σ_k w_k ⊙ x_{t+k} + b over K − 1 + time inputs."""

    @staticmethod
    def forward(ctx: Context, extended: Tensor, weight: Tensor, bias: Tensor | None, time_dim: int) -> Tensor:
        ctx.save_for_backward(extended, weight)
        ctx.has_bias, ctx.time_dim = bias is not None, time_dim
        time = extended.shape[time_dim] - weight.shape[0] + 1
        first = extended.narrow(time_dim, 0, time)
        outputs = first * weight[0] if bias is None else torch.addcmul(bias, first, weight[0])
        for k in range(1, weight.shape[0]):
            outputs.addcmul_(extended.narrow(time_dim, k, time), weight[k])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        extended, weight = ctx.saved_tensors
        time = gradient.shape[ctx.time_dim]
        d_extended, d_weight, product = torch.zeros_like(extended), torch.empty_like(weight), torch.empty_like(gradient)
        for k in range(weight.shape[0]):
            inputs = extended.narrow(ctx.time_dim, k, time)
            d_extended.narrow(ctx.time_dim, k, time).addcmul_(gradient, weight[k])
            torch.sum(torch.mul(gradient, inputs, out=product), (0, 1), out=d_weight[k])
        return d_extended, d_weight, gradient.sum((0, 1)) if ctx.has_bias else None, None
