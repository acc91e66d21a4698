"""How much a model's prediction depends on the order of the tokens.

The tokens of a text are shuffled, all but the last. A function of the set of the earlier tokens gives the same output:
bare self-attention is one, since without positions its last output is a sum over the earlier tokens, in any order (A.
Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.5). A recurrence is not. Everything is computed in
float64, so that rounding does not look like a change.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import EmptyError
from ..evaluation.intervals import interval, mean
from ..evaluation.token_scores import counted
from ..layers.positions import learned_positions
from ..pages.page import Folded, Prose, Sample, Samples
from ..pages.statements import Statement, told
from ..recurrence import uncompiled
from ..runs.run import Run
from ..tasks.explainer import Example
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import primitive_layers

PERMUTATIONS, MAX_PERMUTATIONS = 20, 1000
"""Default and largest number of orders."""
MAX_TOKENS = 256
"""Tokens of a text that are read; each order takes a pass over them."""
MAX_BATCH_TOKENS = 1 << 13
MAX_CHARACTERS = 400
"""Characters of a text that are shown in both orders."""
SAME = 1e-9
"""Total variation up to which two distributions are equal except for rounding in float64."""


@dataclass(frozen=True)
class OrderEffect:
    """Changes of the prediction at the end of a text when the tokens before the last are shuffled.

    Attributes:
        shuffled: the tokens in the first of the other orders.
        changes: total variation distance, 0 to 1, of the predictions for each order and for the text ``(orders,)``.
        without: total variation distance when the model reads only the last token.
        total: number of tokens of the whole text.
        prediction: what is predicted, in words.
    """

    tokens: tuple[str, ...]
    shuffled: tuple[str, ...]
    changes: np.ndarray
    without: float
    total: int
    prediction: str

    @property
    def invariant(self) -> bool:
        """Whether no order changes the prediction, except for rounding in float64."""
        return bool(self.changes.max() <= SAME)

    @property
    def has_none(self) -> bool:
        """Whether the earlier tokens have no effect at all."""
        return self.invariant and self.without <= SAME

    @property
    def change(self) -> str:
        """The mean total variation over the orders, with its interval."""
        value, low, high = interval(np.stack([self.changes, np.ones(len(self.changes))], axis=1), mean)
        return _number(value) if low is None or high is None else f"{_number(value)} [{_number(low)}, {_number(high)}]"

    @property
    def change_without(self) -> str:
        """The total variation of the last token alone, as it is written."""
        return _number(self.without)

    @property
    def orders(self) -> str:
        """The number of orders."""
        return counted(len(self.changes), "orders")

    @property
    def read(self) -> str:
        """The number of tokens that are read."""
        return f"{len(self.tokens):,} of {self.total:,}"


def order_effect(run: Run, text: object, *, permutations: int = PERMUTATIONS) -> OrderEffect:
    """Shuffle the tokens of a text, all but the last, and measure what changes in `Explainer.predictions`.

    ``text`` is a text, or a source with its answer, which stays the same for all orders of the source. The beginning of
    the text, or of its first line, is read in ``permutations`` other orders, or in all of fewer.

    Raises:
        InputError: the text has no other order, or the task has no distribution of its predictions.
    """
    explainer = explainer_of(run)
    most = min(MAX_TOKENS, learned_positions(run.model) or MAX_TOKENS)
    example, total = explainer.require(explainer.inputs).shortened(text, most)
    orders = _orders(example, permutations)
    size = len(example.inputs)
    rows, together = [example, *(example.at(order.tolist()) for order in orders)], max(1, MAX_BATCH_TOKENS // size)
    batches = [rows[start : start + together] for start in range(0, len(rows), together)]

    # In float64, rounding cannot look like an effect of the order.
    model = copy.deepcopy(run.model).double() if primitive_layers(run.model) else run.model
    explainer = run.task.explainer(model, run.vocabulary)
    predictions = explainer.require(explainer.predictions)
    with torch.no_grad(), uncompiled():
        distributions = torch.cat([predictions(batch).double().cpu() for batch in batches])
        alone = predictions([example.at([size - 1])]).double().cpu()
    changes, without = (_distance(distributions[0], others) for others in (distributions[1:], alone))
    return OrderEffect(
        example.tokens, rows[1].tokens, changes.numpy(), float(without), total, explainer.wording.prediction
    )


def _orders(example: Example, count: int) -> list[np.ndarray]:
    """Return at most ``count`` different orders of all tokens but the last, none of which gives the text itself."""
    tokens: list[int | str] = list(example.words or example.inputs)
    movable = len(tokens) - 1
    if movable < 2 or len(set(tokens[:movable])) < 2:
        raise EmptyError(
            "the tokens before the last have no other order; give a text of at least three different tokens"
        )
    random, orders = np.random.default_rng(0), dict[tuple[int | str, ...], np.ndarray]()
    for _ in range(20 * count):
        order = np.append(random.permutation(movable), movable)
        moved = tuple(tokens[i] for i in order.tolist())
        if moved != tuple(tokens):
            orders.setdefault(moved, order)
        if len(orders) == count:
            break
    return list(orders.values())


def _distance(first: Tensor, others: Tensor) -> Tensor:
    """Return the total variation between ``first`` ``(predictions, outcomes)`` and each of the others, averaged."""
    return 0.5 * (others - first).abs().sum(-1).flatten(1).mean(1)


STATEMENTS = (
    Statement[OrderEffect](
        lambda effect: effect.has_none,
        "The tokens before the last have no effect on {prediction}, whatever their order.",
    ),
    Statement[OrderEffect](
        lambda effect: effect.invariant and not effect.has_none,
        "The order of the tokens before the last has no effect on {prediction}: the model treats them as a set.",
    ),
    Statement[OrderEffect](
        lambda effect: not effect.invariant,
        "Another order changes {prediction} by {change}, the mean total variation over {orders} with its 95 % "
        "interval. Without the other tokens, it changes by {change_without}.",
    ),
    Statement[OrderEffect](lambda effect: len(effect.tokens) < effect.total, "Only the first {read} tokens are read."),
)


def order_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on what changes when the same words come in another order."""
    if not inspected.permutations:
        return SectionBody([])
    effect = order_effect(inspected.run, inspected.item, permutations=inspected.permutations)
    separator = " " if inspected.run.tokenizer.ends_lines else ""
    orders = {"As given": effect.tokens, "In another order": effect.shuffled}
    samples = [Sample(heading, separator.join(tokens)[:MAX_CHARACTERS]) for heading, tokens in orders.items()]
    return SectionBody([Prose(" ".join(told(STATEMENTS, effect))), Folded("The two orders", [Samples(samples)])])


def _number(value: float) -> str:
    return "0" if value < SAME else f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"
