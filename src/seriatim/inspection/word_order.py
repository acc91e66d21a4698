"""How much a model's output depends on the order of its tokens.

The tokens of a text are shuffled, all but the last, and the model reads the same words in another order. A function of
the set of the earlier tokens gives the same output: bare self-attention is one, since without positions its last
output is a sum over the earlier tokens, whatever their order (A. Vaswani et al., "Attention is all you need", NeurIPS
2017, section 3.5). A recurrence is not. Everything is computed in float64, so that rounding does not look like a
change.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..data.tokenizers import END
from ..evaluation.intervals import interval, mean
from ..layers.positions import learned_positions
from ..recurrence.obstacles import uncompiled
from ..training.task import evaluating
from .last_predictions import last_predictions
from .leaves import leaves, roots
from .reading import Example, read_examples

if TYPE_CHECKING:
    from ..runs.run import Run

PERMUTATIONS, MOST_PERMUTATIONS = 20, 1000
"""Orders that are tried unless told otherwise."""
MAX_TOKENS = 256
"""Tokens of a text that are read; each order takes a pass over them."""
TOKENS_TOGETHER = 1 << 13
SAME = 1e-9
"""Total variation up to which two distributions are the same but for rounding in float64."""


class Mean(NamedTuple):
    """A mean with its 95 % interval, whose bounds are None where there is one value."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LayerChange:
    """What another order changes in the outputs of one layer.

    Attributes:
        name: of the layer, as in `leaves.Leaf`.
        last: relative change ‖h′ − h‖ / ‖h‖ of the output at the last token, one value for every order.
        every: the same, averaged over all tokens; each token is compared with itself at its new place.
        path: operations along time from the first token to the last; None where there is no path.
        reach: steps back of the furthest input that this layer alone can use.
    """

    name: str
    last: np.ndarray
    every: np.ndarray
    path: int | None
    reach: int


@dataclass(frozen=True)
class OrderEffect:
    """How the prediction at the end of a text changes when the tokens before the last are shuffled.

    Attributes:
        tokens: the tokens of the text, in order.
        shuffled: the same tokens in the first of the other orders.
        changes: total variation distance, 0 to 1, between the predictions for each order and for the text itself.
        divergences: Kullback-Leibler divergence D(text ‖ order) in bits, for each order; infinite where an order gives
            probability zero to something that is possible after the text.
        without: total variation distance when the model reads the last token alone.
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
        """Whether no order changes the prediction, to rounding in float64."""
        return bool(self.changes.max() <= SAME)


def mean_of(values: np.ndarray) -> Mean:
    """The mean of values ``(n,)`` with its interval, by the bootstrap."""
    return Mean(*interval(np.stack([values, np.ones(len(values))], axis=1), mean))


def order_effect(
    run: "Run", text: str, *, permutations: int = PERMUTATIONS, seed: int = 0, max_tokens: int = MAX_TOKENS
) -> OrderEffect:
    """Shuffles the tokens of a text, all but the last, and measures what changes.

    The prediction that is compared is that of the next token for a language model, of the last token for a masked one,
    of the label for a classifier, of the last word's tag for a tagger, and of every token of the model's own answer for
    a translator.

    Args:
        run: of any task.
        text: one text; of lines the first is read.
        permutations: number of other orders; fewer where the text has no more.
        seed: seed of the orders.
        max_tokens: tokens read, from the first on.

    Raises:
        InputError: a number of permutations below 1, a text without another order, or a ctc run.
    """
    if permutations < 1:
        raise InputError(f"--permute must be at least 1, got {permutations}")
    if hasattr(run.model, "upsample"):
        raise InputError("word order is not measured for a ctc run, which labels all of its source at once")
    example, total = _example(run, text, max_tokens)
    orders = _orders(example, permutations, seed)
    size = len(example.inputs)
    rows = [example, *(reordered(example, order) for order in orders)]
    model: Any = copy.deepcopy(run.model).double() if leaves(run.model) else run.model
    with evaluating(model), uncompiled(), _outputs(model) as recorded:
        shares = torch.cat([last_predictions(run, model, some) for some in _chunks(rows, size)])
        outputs = {name: torch.cat(parts) for name, parts in recorded.items()}
        alone = last_predictions(run, model, [reordered(example, np.array([size - 1]))])[0]
    first, others = shares[0], shares[1:]
    divergences = _divergence(first, others)
    paths = {leaf.name: leaf.layer.path_lengths(size - 1) for leaf in leaves(model)}
    layers = [LayerChange(name, *_changes(outputs[name], orders), *_path(paths[name])) for name in outputs]
    tops = [layer.path_lengths(size - 1) for role, layer in roots(model) if role != "decoder"]
    return OrderEffect(
        example.tokens,
        rows[1].tokens,
        _distance(first, others).numpy(),
        divergences.flatten(1).mean(1).numpy(),
        float(_distance(first, alone.unsqueeze(0))),
        layers,
        _path(tops[0])[0] if tops else None,
        total,
    )


def reordered(example: Example, order: np.ndarray) -> Example:
    """The same tokens in another order, or some of them."""
    places = order.tolist()
    one_each = len(example.targets) == len(example.inputs) and not example.written
    return replace(
        example,
        inputs=tuple(example.inputs[i] for i in places),
        targets=tuple(example.targets[i] for i in places) if one_each else example.targets,
        tokens=tuple(example.tokens[i] for i in places),
        words=tuple(example.words[i] for i in places) if example.words else (),
    )


def _example(run: "Run", text: str, max_tokens: int) -> tuple[Example, int]:
    """The tokens that are read, without the boundary in front, and how many the whole text has."""
    limit = min(max_tokens, learned_positions(run.model) or max_tokens)
    if run.config.task == "lm":
        lines = [line for line in text.split("\n") if line.strip()] if run.config.data.unit == "line" else [text]
        ids = run.tokenizer.encode(lines[0]).tolist() if lines else []
        shown = ids[: limit - 1]
        example = Example(tuple(shown), (), tuple(_name(run, token) for token in shown))
        return example, len(ids)
    whole = read_examples(run, text)[0]
    return whole.part(0, limit), len(whole.inputs)


def _name(run: "Run", token: int) -> str:
    return "↵" if token == END else run.tokenizer.describe(token)


def _orders(example: Example, count: int, seed: int) -> list[np.ndarray]:
    """Different orders of all tokens but the last, none of which gives the text itself; at most ``count``."""
    tokens = np.array(example.words or example.inputs)
    movable = len(tokens) - 1
    if movable < 2 or len(set(tokens[:movable].tolist())) < 2:
        raise InputError(
            "the tokens before the last have no other order; give a text of at least three different tokens"
        )
    random, orders = np.random.default_rng(seed), dict[tuple[Any, ...], np.ndarray]()
    for _ in range(20 * count):
        order = np.append(random.permutation(movable), movable)
        moved = tuple(tokens[order].tolist())
        if moved != tuple(tokens.tolist()):
            orders.setdefault(moved, order)
        if len(orders) == count:
            break
    return list(orders.values())


def _chunks(rows: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    each = max(1, TOKENS_TOGETHER // size)
    return (rows[start : start + each] for start in range(0, len(rows), each))


@contextmanager
def _outputs(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Within it, the outputs ``(batch, time, size)`` of the layers that read the text are recorded, in its order."""
    recorded: dict[str, list[Tensor]] = {}

    def keeper(name: str, backwards: bool) -> Callable[..., None]:
        def keep(_layer: nn.Module, _inputs: Any, result: tuple[Tensor, Any]) -> None:
            outputs = result[0].detach().cpu()
            recorded.setdefault(name, []).append(outputs.flip(1) if backwards else outputs)

        return keep

    hooks = [
        leaf.layer.register_forward_hook(keeper(leaf.name, leaf.backwards))
        for leaf in leaves(model)
        if not leaf.decodes
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _changes(outputs: Tensor, orders: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Relative changes at the last token and over all tokens, for outputs ``(1 + orders, time, size)``."""
    places = torch.from_numpy(np.stack(orders))
    outputs = outputs[:, outputs.shape[1] - places.shape[1] :].double()  # without the boundary in front
    original = outputs[0][places]  # (orders, T, D)
    change = (outputs[1 : 1 + len(orders)] - original).norm(dim=2)
    relative = change / original.norm(dim=2).clamp_min(torch.finfo(torch.float64).tiny)
    return relative[:, -1].numpy(), relative.mean(1).numpy()


def _path(lengths: Tensor) -> tuple[int | None, int]:
    """The path length from the furthest input, and how far back there is a path at all."""
    finite = torch.isfinite(lengths)
    reach = int(finite.nonzero().max()) if finite.any() else 0
    return (int(lengths[-1]) if finite[-1] else None), reach


def _distance(first: Tensor, others: Tensor) -> Tensor:
    """Total variation between a distribution and others ``(orders, ..., outcomes)``, averaged over what is between."""
    return 0.5 * (others - first).abs().sum(-1).flatten(1).mean(1)


def _divergence(first: Tensor, others: Tensor) -> Tensor:
    """D(first ‖ other) in bits; what is impossible under the first adds nothing."""
    return torch.where(first > 0, first * (first.log2() - others.log2()), 0.0).sum(-1)
