"""What theory expects of gradient flow: the factor per step back of the layers whose cells have one.

For Elman's network it is σ_max(U) · mean |g′|; see `RecurrentCell.expected_growth`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import State
from ..recurrence.obstacles import uncompiled
from ..training.task_view import TaskView
from ..training.view_types import Example
from .leaves import leaves


def expected_growths(view: TaskView[nn.Module], batches: Iterable[Sequence[Example]]) -> dict[str, float]:
    """Return the factors by the name of the layer, as means over batches of examples of one shape."""
    growths: dict[str, list[float]] = defaultdict(list)

    def hook_for(name: str, cell: RecurrentCell) -> Callable[..., None]:
        def note(_layer: nn.Module, args: tuple[Tensor, ...], result: tuple[Tensor, State]) -> None:
            growth = cell.expected_growth(args[0][:, 1:].flatten(0, 1), result[0][:, :-1].flatten(0, 1))
            if growth is not None:
                growths[name].append(growth)

        return note

    with ExitStack() as hooks, torch.no_grad(), uncompiled():
        cells = [(leaf, getattr(leaf.layer, "cell", None)) for leaf in leaves(view.model)]
        known = [(leaf, cell) for leaf, cell in cells if isinstance(cell, RecurrentCell)]
        for leaf, cell in known:
            hooks.enter_context(leaf.layer.register_forward_hook(hook_for(leaf.name, cell)))
        for batch in batches if known else ():
            view.forward(batch)
    return {name: float(np.mean(values)) for name, values in growths.items()}
