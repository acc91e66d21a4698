"""How much a model's prediction depends on the order of the tokens.

The tokens of a text are shuffled, all but the last. A function of the set of the earlier tokens gives the same output:
bare self-attention is one, since without positions its last output is a sum over the earlier tokens, in any order (A.
Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.5). A recurrence is not. Everything is computed in
float64, so that rounding does not look like a change.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..evaluation.intervals import interval, mean
from ..layers.positions import learned_positions
from ..recurrence.obstacles import uncompiled
from ..runs.run import Run
from ..training.task_view import Example, TaskView
from .leaves import DECODER, leaves, roots
from .subject import view_of

PERMUTATIONS, MAX_PERMUTATIONS = 20, 1000
"""Default and largest number of orders."""
MAX_TOKENS = 256
"""Tokens of a text that are read; each order takes a pass over them."""
MAX_BATCH_TOKENS = 1 << 13
SAME = 1e-9
"""Total variation up to which two distributions are equal except for rounding in float64."""


class Mean(NamedTuple):
    """A mean with its 95 % interval, whose bounds are None for a single value."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LayerChange:
    """Changes of the outputs of one layer in other orders.

    Attributes:
        name: name of the layer, as in `leaves.Leaf`.
        last: relative change ‖h′ − h‖ / ‖h‖ of the output at the last token, one value for every order.
        every: the same, averaged over all tokens; each token is compared with itself at its new place.
        path: operations along time from the first token to the last; None if there is no path.
        reach: steps back of the furthest input that this layer alone can use.
    """

    name: str
    last: np.ndarray
    every: np.ndarray
    path: int | None
    reach: int


@dataclass(frozen=True)
class OrderEffect:
    """Changes of the prediction at the end of a text when the tokens before the last are shuffled.

    Attributes:
        tokens: the tokens of the text, in order.
        shuffled: the same tokens in the first of the other orders.
        changes: total variation distance, 0 to 1, between the predictions for each order and for the text itself.
        divergences: Kullback-Leibler divergence D(text ‖ order) in bits, for each order; infinite if an order gives
            probability zero to something that is possible after the text.
        without: total variation distance when the model reads only the last token.
        layers: one for each layer that reads the text, bottom first; none for n-grams.
        path: operations along time from the first token to the last through all layers together; None for no path.
        total: number of tokens of the whole text.
    """

    tokens: tuple[str, ...]
    shuffled: tuple[str, ...]
    changes: np.ndarray
    divergences: np.ndarray
    without: float
    layers: list[LayerChange]
    path: int | None
    total: int

    @property
    def change(self) -> Mean:
        """Mean total variation over the orders."""
        return mean_of(self.changes)

    @property
    def invariant(self) -> bool:
        """Whether no order changes the prediction, except for rounding in float64."""
        return bool(self.changes.max() <= SAME)


def mean_of(values: np.ndarray) -> Mean:
    """Return the mean of values ``(n,)`` with its interval, by the bootstrap."""
    return Mean(*interval(np.stack([values, np.ones(len(values))], axis=1), mean))


def order_effect(
    run: Run, text: str, *, permutations: int = PERMUTATIONS, seed: int = 0, max_tokens: int = MAX_TOKENS
) -> OrderEffect:
    """Shuffle the tokens of a text, all but the last, and measure what changes.

    The distribution that is compared is that of `TaskView.predictions`.

    Args:
        run: a run of any task.
        text: a text; if it has lines, the first one is read.
        permutations: number of other orders; fewer if the text has no more.
        seed: seed of the orders.
        max_tokens: number of tokens that are read, from the first on.

    Raises:
        InputError: the number of permutations is below 1, the text has no other order, or the task has no
            distribution of its predictions.
    """
    if permutations < 1:
        raise InputError(f"--permute must be at least 1, got {permutations}")
    example, total = view_of(run).shortened(text, min(max_tokens, learned_positions(run.model) or max_tokens))
    orders = _orders(example, permutations, seed)
    size = len(example.inputs)
    rows = [example, *(example.part(order.tolist()) for order in orders)]
    model = copy.deepcopy(run.model).double() if leaves(run.model) else run.model
    view = run.task.model_view(model, run.vocabulary)
    with torch.no_grad(), uncompiled(), _recorded_outputs(model) as recorded:
        shares = torch.cat([_predictions(view, batch) for batch in _batches(rows, size)])
        outputs = {name: torch.cat(parts) for name, parts in recorded.items()}
        alone = _predictions(view, [example.part([size - 1])])[0]
    first, others = shares[0], shares[1:]
    paths = {leaf.name: leaf.layer.path_lengths(size - 1) for leaf in leaves(model)}
    layers = [LayerChange(name, *_changes(outputs[name], orders), *_path(paths[name])) for name in outputs]
    tops = [layer.path_lengths(size - 1) for role, layer in roots(model) if role != DECODER]
    return OrderEffect(
        example.tokens,
        rows[1].tokens,
        _distance(first, others).numpy(),
        _divergence(first, others).flatten(1).mean(1).numpy(),
        float(_distance(first, alone.unsqueeze(0))),
        layers,
        _path(tops[0])[0] if tops else None,
        total,
    )


def _predictions(view: TaskView[nn.Module], batch: Sequence[Example]) -> Tensor:
    return view.predictions(batch).double().cpu()


def _orders(example: Example, count: int, seed: int) -> list[np.ndarray]:
    """Return at most ``count`` different orders of all tokens but the last, none of which gives the text itself."""
    tokens: list[int | str] = list(example.words or example.inputs)
    movable = len(tokens) - 1
    if movable < 2 or len(set(tokens[:movable])) < 2:
        raise InputError(
            "the tokens before the last have no other order; give a text of at least three different tokens"
        )
    random, orders = np.random.default_rng(seed), dict[tuple[int | str, ...], np.ndarray]()
    for _ in range(20 * count):
        order = np.append(random.permutation(movable), movable)
        moved = tuple(tokens[i] for i in order.tolist())
        if moved != tuple(tokens):
            orders.setdefault(moved, order)
        if len(orders) == count:
            break
    return list(orders.values())


def _batches(rows: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    count = max(1, MAX_BATCH_TOKENS // size)
    return (rows[start : start + count] for start in range(0, len(rows), count))


@contextmanager
def _recorded_outputs(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the outputs ``(batch, time, size)`` of the layers that read the text, in the order of the text."""
    recorded: dict[str, list[Tensor]] = {}

    def hook_for(name: str, backwards: bool) -> Callable[..., None]:
        def record(_layer: nn.Module, _inputs: object, result: tuple[Tensor, object]) -> None:
            outputs = result[0].detach().cpu()
            recorded.setdefault(name, []).append(outputs.flip(1) if backwards else outputs)

        return record

    hooks = [
        leaf.layer.register_forward_hook(hook_for(leaf.name, leaf.backwards))
        for leaf in leaves(model)
        if not leaf.decodes
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _changes(outputs: Tensor, orders: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return relative changes at the last token and over all tokens, for outputs ``(1 + orders, time, size)``."""
    places = torch.from_numpy(np.stack(orders))
    outputs = outputs[:, outputs.shape[1] - places.shape[1] :].double()  # without the boundary symbol in front
    original = outputs[0][places]  # (orders, T, D)
    change = (outputs[1 : 1 + len(orders)] - original).norm(dim=2)
    relative = change / original.norm(dim=2).clamp_min(torch.finfo(torch.float64).tiny)
    return relative[:, -1].numpy(), relative.mean(1).numpy()


def _path(lengths: Tensor) -> tuple[int | None, int]:
    """Return the path length from the furthest input, and how far back there is a path at all."""
    finite = torch.isfinite(lengths)
    reach = int(finite.nonzero().max()) if finite.any() else 0
    return (int(lengths[-1]) if finite[-1] else None), reach


def _distance(first: Tensor, others: Tensor) -> Tensor:
    """Return the total variation between ``first`` ``(predictions, outcomes)`` and each of the others, averaged."""
    return 0.5 * (others - first).abs().sum(-1).flatten(1).mean(1)


def _divergence(first: Tensor, others: Tensor) -> Tensor:
    """Return D(first ‖ other) in bits; outcomes that are impossible under the first add nothing."""
    return torch.where(first > 0, first * (first.log2() - others.log2()), 0.0).sum(-1)
