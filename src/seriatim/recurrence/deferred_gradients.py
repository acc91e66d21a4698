"""Weight gradients of a loop written in Python, formed after it as one product over all steps.

A loop that applies y_t = W x_t at every step adds up ∂L/∂W = Σ_t ḡ_t x_tᵀ, a product of few rows and a pass over the
whole of W at every step. Kept until the loop's backward pass has ended, all rows make one product.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .fast_path import compiling

Pairs = dict[int, list[tuple[Tensor, Tensor]]]
"""Rows and their cotangents, for every backward pass under way."""


class ProductsAfter(TorchFunctionMode):
    """Within it, the gradient of a weight of `torch.nn.functional.linear` is one product, however often it is used.

    Values and gradients are those of the same code outside, to rounding. Such gradients can be taken once, not twice;
    within `uncompiled` and under autocast, or without gradients, nothing is changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[tuple[int, int], tuple[Tensor, Tensor | None, Pairs]] = {}
        self.kept: list[tuple[Tensor, Tensor | None]] = []
        """Weights and biases, so that no other tensor takes their place in memory."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and torch.is_grad_enabled():
            return self.linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """W x + b for ``inputs (..., input_size)``."""
        if not weight.requires_grad or not compiling() or torch.is_autocast_enabled(inputs.device.type):
            return F.linear(inputs, weight, bias)
        key = id(weight), id(bias)
        if key not in self.shared:
            pairs: Pairs = {}
            self.shared[key] = *_Shared.apply(weight, bias, pairs), pairs  # type: ignore[no-untyped-call]
            self.kept.append((weight, bias))
        outputs: Tensor = _Linear.apply(inputs, *self.shared[key])  # type: ignore[no-untyped-call]
        return outputs


class _Shared(torch.autograd.Function):
    """Weight and bias themselves, whose gradients are formed when all that used them have had theirs."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, pairs: Pairs) -> tuple[Tensor, Tensor | None]:
        ctx.pairs = pairs
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        pairs = ctx.pairs.pop(torch._C._current_graph_task_id(), [])
        of_weight, of_bias = given
        if not pairs:
            return of_weight, of_bias, None
        rows, cotangents = (torch.cat(parts) for parts in zip(*reversed(pairs), strict=True))
        product = cotangents.t() @ rows
        total = cotangents.sum(0) if ctx.needs_input_grad[1] else None
        return (
            product if of_weight is None else product + of_weight,
            total if total is None or of_bias is None else total + of_bias,
            None,
        )


class _Linear(torch.autograd.Function):
    """W x + b; the gradients of W and b are left to `_Shared`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.pairs = pairs
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "weight gradients formed after a loop can be taken once, not twice; for gradients of gradients run it "
                "within seriatim.recurrence.uncompiled()"
            )
        inputs, weight = ctx.saved_tensors
        rows = cotangent.flatten(0, -2)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            task = torch._C._current_graph_task_id()
            ctx.pairs.setdefault(task, []).append((inputs.flatten(0, -2), rows))
        return cotangent @ weight if ctx.needs_input_grad[0] else None, None, None, None
