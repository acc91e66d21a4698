"""Averages of the weights, which generalize better than the weights of any one step.

    exponential   θ̄ ← d_t θ̄ + (1 − d_t) θ_t,  d_t = min(d, (1 + t) / (10 + t))
    uniform       θ̄ ← θ̄ + (θ_t − θ̄) / n

θ_t weights after step t · d decay; d_t forgets the first steps faster · n the number of steps that are averaged.

B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control and Optimization
1992; the decay of the first steps as in TensorFlow's `ExponentialMovingAverage`. A uniform average that begins when the
held-out loss stops improving: S. Merity, N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language
models", ICLR 2018 (non-monotonically triggered ASGD).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..core.errors import InputError


class WeightAverage:
    """The average of a model's parameters, from its present ones on.

    ``decay`` is d; None averages uniformly over the steps after ``first``.
    """

    def __init__(self, model: nn.Module, decay: float | None, *, first: int = 0) -> None:
        self.model, self.decay, self.first = model, decay, first
        self.parameters = dict(model.named_parameters())
        self.tensors = {name: value.detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the parameters after ``step``, counted from 1."""
        decay = 1 - 1 / (step - self.first)
        if self.decay is not None:
            decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self.parameters.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average for the duration."""
        present = {name: value.detach().clone() for name, value in self.parameters.items()}
        self._copy(self.tensors)
        try:
            yield
        finally:
            self._copy(present)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self.parameters.items():
            value.copy_(tensors[name])

    def restore(self, tensors: Mapping[str, Tensor], place: Callable[[str, Tensor], Tensor]) -> None:
        """Take the average from a checkpoint; raise InputError if it is that of another model.

        ``place`` returns the part of a tensor that this process has, given the name of the parameter and the whole.
        """
        shapes = {name: value.shape for name, value in tensors.items()}
        if shapes != {name: value.shape for name, value in self.tensors.items()}:
            raise InputError("the checkpoint's average of the weights is that of another model")
        self.tensors = {name: place(name, tensors[name].to(value.device)) for name, value in self.tensors.items()}
