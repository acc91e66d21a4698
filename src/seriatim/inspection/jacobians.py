"""The exact product of a layer's Jacobians along a text, and the spectral radius of its recurrent matrix.

    P_k = ∂h_{t−1}/∂h_{t−k} = J_{t−1} J_{t−2} ⋯ J_{t−k+1},  J_i = ∂h_i/∂h_{i−1},  P_1 = I

h_i is the whole state of a layer after step i. A gradient that flows through this state alone is multiplied by at most
the largest singular value σ_max(P_k) on its way from lag 1 to lag k. The textbook's criterion replaces the product by
powers of the recurrent matrix U: with the spectral radius ρ(U) below 1, the gradient of a linear network vanishes, and
with ρ(U) above 1 it explodes (R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
networks", ICML 2013). It leaves out the derivative of the activation, which is on the diagonal of every J_i.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import map_state, state_leaves
from ..recurrence import uncompiled
from .recording import Steps, primitive_layers, unrolled

Item = TypeVar("Item")
MAX_WINDOWS = 4
"""Windows along which the products are computed."""
MAX_OPERATIONS = 2e11
"""Floating-point operations for the products of one layer, which take some seconds; layers that need more have none."""
MAX_LAGS = 32
"""Lags at which singular values are computed, which takes longer than the products themselves."""


class JacobianProduct(NamedTuple):
    """σ_max(P_k) at some of the lags k, as means over windows."""

    lags: list[int]
    norms: list[float]
    windows: int


def jacobian_products(
    model: nn.Module, forward: Callable[[Sequence[Item]], Tensor], examples: Sequence[Item]
) -> dict[str, JacobianProduct]:
    """Return the products along windows of one length, which ``forward`` runs the model over, by the name of the layer.

    Layers with a state that grows, and those whose products would take too long, are left out.
    """
    with torch.no_grad(), unrolled(model, watch=nullcontext[None]) as recorded:
        forward(list(examples[:MAX_WINDOWS]))
    found = {}
    for steps in recorded:
        windows = _affordable_windows(steps)
        if windows:
            lags = sorted({round(lag) for lag in np.geomspace(1, len(steps.states) - 1, MAX_LAGS)})
            rows = torch.tensor([_largest_singular_values(steps, row, lags) for row in range(windows)])
            found[steps.primitive.name] = JacobianProduct(lags, rows.mean(0).tolist(), windows)
    return found


def spectral_radii(model: nn.Module) -> dict[str, float]:
    """Return the largest absolute eigenvalue of each `RecurrentCell.recurrent_matrix`, by the name of the layer."""
    radii = {}
    for primitive in primitive_layers(model):
        cell = getattr(primitive.layer, "cell", None)
        matrix = cell.recurrent_matrix() if isinstance(cell, RecurrentCell) else None
        if matrix is not None and matrix.isfinite().all():
            radii[primitive.name] = float(torch.linalg.eigvals(matrix.detach().double().cpu()).abs().max())
    return radii


def _affordable_windows(steps: Steps[None]) -> int:
    """Return for how many of the recorded windows the products can be computed within `MAX_OPERATIONS`."""
    if len(steps.states) < 2 or steps.before is None:
        return 0
    shapes = [[leaf.shape for leaf in state_leaves(state)] for state in (steps.before, steps.states[-1])]
    if shapes[0] != shapes[1]:  # the state grows, or rows have ended
        return 0
    size = sum(leaf[0].numel() for leaf in state_leaves(steps.before) if leaf.is_floating_point())
    parameters = sum(parameter.numel() for parameter in steps.primitive.layer.parameters())
    operations = 6 * size * max(parameters, size) * len(steps.states)  # forward and backward for each row of P
    return min(len(steps.fed[0]), int(MAX_OPERATIONS // operations))


def _largest_singular_values(steps: Steps[None], row: int, lags: Sequence[int]) -> list[float]:
    """Return σ_max(P_k) of one window for some lags; infinity from where the product is not finite."""
    last = len(steps.states) - 1
    start = [leaf[row] for leaf in state_leaves(steps.states[-1]) if leaf.is_floating_point()]
    sizes = [leaf.numel() for leaf in start]
    product = torch.eye(sum(sizes), dtype=start[0].dtype, device=start[0].device)  # P_1 (d, d)
    found = []
    for lag in range(1, lags[-1] + 1):
        if lag > 1:
            product = _times_jacobian(product, steps, last + 1 - lag, row, sizes)
        if lag in lags:
            finite = bool(product.isfinite().all())
            found.append(float(torch.linalg.matrix_norm(product.double(), 2)) if finite else float("inf"))
    return found


def _times_jacobian(product: Tensor, steps: Steps[None], t: int, row: int, sizes: list[int]) -> Tensor:
    """Return ``product`` times ∂h_t/∂h_{t−1}: each row of the product is the gradient of one copy of the step."""
    copies = len(product)
    given = map_state(
        lambda leaf: (
            leaf[row : row + 1].expand(copies, *leaf.shape[1:]).clone().requires_grad_(leaf.is_floating_point())
        ),
        steps.states[t - 1],
    )
    with torch.enable_grad(), uncompiled():
        _, after = steps.primitive.layer.step(steps.fed[t][row : row + 1].expand(copies, -1), given)

    # Counters in a state are integers and have no gradient. Each copy of the step carries one row of the product.
    outputs = [leaf for leaf in state_leaves(after) if leaf.is_floating_point()]
    inputs = [leaf for leaf in state_leaves(given) if leaf.is_floating_point()]
    ways = [
        (leaf, columns)
        for leaf, columns in zip(outputs, torch.split(product, sizes, dim=1), strict=True)
        if leaf.requires_grad
    ]
    if not ways:  # the new state does not depend on the old one
        return torch.zeros_like(product)
    cotangents = [columns.reshape(leaf.shape) for leaf, columns in ways]
    gradients = torch.autograd.grad([leaf for leaf, _ in ways], inputs, cotangents, materialize_grads=True)
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
