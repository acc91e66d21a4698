"""Whether what was traced computes, and differentiates to, what the step does.

Tracing sees operations on values. It does not see `torch.no_grad`, gradients written by hand or hooks: a step that uses
them has other gradients than its operations. So each traced step is compared with the step itself, once, on a few
random rows: in double precision unless its weights are large.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.state import State, map_state, state_leaves
from .expressions import Matrix, Node
from .interpreter import evaluate
from .operators import UnsupportedError
from .trace import Step, Traced

ROWS = 3
LARGE = 1 << 20
"""Numbers in the weights from which they are compared as they are, so that no copies take memory."""


def verify(step: Step, traced: Traced, weights: Sequence[Tensor], state: State) -> None:
    """Compares values and gradients.

    Raises:
        UnsupportedError: they differ.
    """
    roots = [traced.outputs, *traced.states]
    generator = torch.Generator().manual_seed(0)
    large = sum(weight.numel() for weight in weights) > LARGE
    dtype = state_leaves(state)[0].dtype if large and state_leaves(state) else torch.float64
    tolerance = 1e-7 if dtype == torch.float64 else 1e-3

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()

    def spread(weight: Tensor) -> Tensor:
        """Keeps weights that start at zero from hiding what they act on; and positive ones positive."""
        return 0.1 * torch.rand(weight.shape, dtype=dtype, generator=generator)

    def draw(value: Node) -> Tensor:
        drawn = torch.empty(ROWS, value.width, dtype=dtype)
        return drawn.uniform_() if value.note.probability is None else drawn.bernoulli_(value.note.probability)

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        doubles = [
            (weight.detach().to(dtype) + spread(weight)).requires_grad_() if weight.is_floating_point() else weight
            for weight in weights
        ]
        inputs, start = random(ROWS, traced.input_size), map_state(lambda leaf: random(ROWS, *leaf.shape[1:]), state)
        torch.manual_seed(0)
        try:
            outputs, after = step(doubles, inputs, start)
        except Exception as error:
            raise UnsupportedError(f"it does not run in double precision: {str(error).splitlines()[0]}") from None
        constants: list[Tensor] = [value.to(dtype) for value in traced.constants(doubles)]
        leaves = state_leaves(start)

        def leaf(value: Node) -> Tensor:
            if value.op == "inputs":
                return inputs
            if value.op == "state":
                return leaves[int(value.note)].reshape(ROWS, -1)
            return constants[int(value.note)].reshape(-1)

        def matrix(wanted: Matrix) -> Tensor:
            return constants[wanted.constant]

        torch.manual_seed(0)
        noise = {value: draw(value) for value in traced.noise}
        found = evaluate(roots, leaf, matrix, inputs, noise)
        expected = [outputs.reshape(ROWS, -1), *(value.reshape(ROWS, -1) for value in state_leaves(after))]
        found = [value.expand_as(other) for value, other in zip(found, expected, strict=True)]
        _compare(found, expected, "values", tolerance)
        wrt = [inputs, *leaves, *(weight for weight in doubles if weight.requires_grad)]
        cotangents = [random(*value.shape).detach() for value in expected]
        _compare(_gradients(found, wrt, cotangents), _gradients(expected, wrt, cotangents), "gradients", tolerance)


def _gradients(values: list[Tensor], wrt: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
    # one number, because torch imports its symbolic algebra to differentiate several
    total = torch.stack([(value * given).sum() for value, given in zip(values, cotangents, strict=True)]).sum()
    if not total.requires_grad:
        return [torch.zeros_like(tensor) for tensor in wrt]
    return list(torch.autograd.grad(total, wrt, retain_graph=True, allow_unused=True, materialize_grads=True))


def _compare(found: list[Tensor], expected: list[Tensor], what: str, tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        largest = b.detach().abs().nan_to_num().max().item() if b.numel() else 0.0
        if not torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance * (largest + 1e-2), equal_nan=True):
            raise UnsupportedError(
                f"its {what} are not those of its operations (torch.no_grad, a gradient of its own, a hook)"
            )
