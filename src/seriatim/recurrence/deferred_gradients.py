"""Computes the weight gradients of a loop in Python after the loop, with one product over all steps.

A loop that applies y_t = W x_t sums ∂L/∂W = Σ_t ḡ_t x_tᵀ, with a product of few rows and a pass through all of W at
every step. One product is enough if the rows are stored until the loop's backward pass is over.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .conditions import compiling

Context: TypeAlias = Any
"""The context of a `torch.autograd.Function`; PyTorch does not declare its attributes."""
Arguments: TypeAlias = Any
"""The arguments of a function of PyTorch, any of which a mode may see."""
Pairs = dict[int, list[tuple[Tensor, Tensor]]]
"""Rows and their cotangents, for every backward pass that is running."""


class ProductsAfter(TorchFunctionMode):
    """Within this context the gradient of each weight of `torch.nn.functional.linear` is computed with one product.

    The gradients can be taken once, not twice. Within `uncompiled` and under autocast the context has no effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[tuple[int, int], tuple[Tensor, Tensor | None, Pairs]] = {}
        self.alive: list[tuple[Tensor, Tensor | None]] = []
        """Weights and biases; keeps their ids unique."""

    def __torch_function__(
        self, func: Callable[..., object], types: Iterable[type], args: Arguments = (), kwargs: Arguments = None
    ) -> object:
        if func is F.linear and torch.is_grad_enabled():
            return self.linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return W x + b for ``inputs (..., input_size)``."""
        if not weight.requires_grad or not compiling() or torch.is_autocast_enabled(inputs.device.type):
            return F.linear(inputs, weight, bias)
        key = id(weight), id(bias)
        if key not in self.shared:
            pairs: Pairs = {}
            self.shared[key] = *_Shared.apply(weight, bias, pairs), pairs  # type: ignore[no-untyped-call]
            self.alive.append((weight, bias))
        outputs: Tensor = _Linear.apply(inputs, *self.shared[key])  # type: ignore[no-untyped-call]
        return outputs


class _Shared(torch.autograd.Function):
    """The identity on a weight and its bias; its backward pass runs after all uses and computes the gradients."""

    @staticmethod
    def forward(ctx: Context, weight: Tensor, bias: Tensor | None, pairs: Pairs) -> tuple[Tensor, Tensor | None]:
        ctx.pairs = pairs
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    def backward(ctx: Context, *cotangents_so_far: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        pairs = ctx.pairs.pop(torch._C._current_graph_task_id(), [])
        weight_cotangent, bias_cotangent = cotangents_so_far
        if pairs:
            rows, cotangents = (torch.cat(of_calls) for of_calls in zip(*reversed(pairs), strict=True))
            weight_cotangent = _add(cotangents.t() @ rows, weight_cotangent)
            bias_cotangent = _add(cotangents.sum(0), bias_cotangent) if ctx.needs_input_grad[1] else None
        return weight_cotangent, bias_cotangent, None


def _add(total: Tensor, more: Tensor | None) -> Tensor:
    return total if more is None else total + more


class _Linear(torch.autograd.Function):
    """W x + b; `_Shared` computes the gradients of W and b."""

    @staticmethod
    def forward(ctx: Context, inputs: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.pairs = pairs
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Context, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "deferred weight gradients can be taken once, not twice; for gradients of gradients run it "
                "within seriatim.recurrence.uncompiled()"
            )
        inputs, weight = ctx.saved_tensors
        rows = cotangent.flatten(0, -2)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            task = torch._C._current_graph_task_id()
            ctx.pairs.setdefault(task, []).append((inputs.flatten(0, -2), rows))
        return cotangent @ weight if ctx.needs_input_grad[0] else None, None, None, None
