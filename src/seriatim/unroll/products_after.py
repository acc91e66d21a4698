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

from .fast import compiling

Pairs = dict[int, list[tuple[Tensor, Tensor]]]
"""Rows and their cotangents, for every backward pass under way."""


class ProductsAfter(TorchFunctionMode):
    """Within it, the gradient of a weight of `torch.nn.functional.linear` is one product, however often it is used.

    Values and gradients are those of the same code outside, to rounding. Such gradients can be taken once, not twice;
    within `uncompiled` and under autocast, or without gradients, nothing is changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[int, tuple[Tensor, Tensor, Pairs]] = {}

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
        if id(weight) not in self.shared:
            pairs: Pairs = {}
            self.shared[id(weight)] = weight, _Shared.apply(weight, pairs), pairs  # type: ignore[no-untyped-call]
        _, shared, pairs = self.shared[id(weight)]
        outputs: Tensor = _Linear.apply(inputs, shared, bias, pairs)  # type: ignore[no-untyped-call]
        return outputs


class _Shared(torch.autograd.Function):
    """The weight itself, whose gradient is formed when all that used it have had theirs."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, given: Tensor | None) -> tuple[Tensor | None, None]:
        pairs = ctx.pairs.pop(torch._C._current_graph_task_id(), [])
        if not pairs:
            return given, None
        rows, cotangents = (torch.cat(parts) for parts in zip(*reversed(pairs), strict=True))
        product = cotangents.t() @ rows
        return product if given is None else given + product, None


class _Linear(torch.autograd.Function):
    """W x + b; the gradient of W is left to `_Shared`."""

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
                "within seriatim.unroll.uncompiled()"
            )
        inputs, weight = ctx.saved_tensors
        rows = cotangent.flatten(0, -2)
        if ctx.needs_input_grad[1]:
            task = torch._C._current_graph_task_id()
            ctx.pairs.setdefault(task, []).append((inputs.flatten(0, -2), rows))
        return (
            cotangent @ weight if ctx.needs_input_grad[0] else None,
            None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
            None,
        )
