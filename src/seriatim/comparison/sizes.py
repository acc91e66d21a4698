"""The sizes of every layer of a comparison: solved for equal parameters, or of a width that is given."""

from collections.abc import Mapping, Sequence

from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..tasks import find
from ..training.memory import count_parameters
from .plan import Plan
from .row_names import bare, width_of
from .widths import TOLERANCE, Widths


def solve_sizes(plan: Plan, layers: Sequence[str], vocabulary: Vocabulary, *, fresh: bool) -> None:
    """Finds the sizes of layers, with one embedding for all; ``fresh`` where it may still be chosen."""
    widths = {layer: Widths(plan.config(layer, plan.seeds[0]), vocabulary) for layer in layers}
    size = plan.base.model.embedding_size
    if plan.parameters is None:
        first = plan.config(layers[0], plan.seeds[0])
        if first.model.tie_weights:
            first.model.embedding_size = first.model.hidden_size
        plan.parameters = count_parameters(find(first), vocabulary)
    target = plan.parameters
    if fresh:
        size = plan.base.model.embedding_size = _common_embedding(plan, widths, target)
    adjust = plan.base.model.options.get("vectors") is None
    for layer, one in widths.items():
        hidden_size, embedding_size, parameters = one.solve(target, size, adjust=adjust)
        sized = plan.sized[layer]
        update = {"hidden_size": hidden_size, "embedding_size": embedding_size, "parameters": parameters}
        plan.sized[layer] = sized.model_copy(update=update)


def set_width(plan: Plan, layer: str, vocabulary: Vocabulary) -> None:
    """Settles the sizes of a layer whose width is given.

    Raises:
        InputError: the layer does not accept the width.
    """
    hidden_size = width_of(layer)
    assert hidden_size is not None
    embedding_size = hidden_size if plan.base.model.tie_weights else plan.base.model.embedding_size
    sizes = {"hidden_size": hidden_size, "embedding_size": embedding_size}
    plan.sized[layer] = plan.sized[layer].model_copy(update=sizes)
    try:
        parameters = count_parameters(find(plan.config(layer, plan.seeds[0])), vocabulary)
    except ValueError as error:
        raise InputError(f"--widths: {bare(layer)} does not accept the width {hidden_size}: {error}") from None
    plan.sized[layer] = plan.sized[layer].model_copy(update={"parameters": parameters})


def _common_embedding(plan: Plan, widths: Mapping[str, Widths], target: int) -> int:
    """The widest embedding, halving that of the configuration, that leaves every layer room for a width.

    Room is any at all where the embedding was asked for; else a width of half the embedding's.

    Raises:
        InputError: so few parameters cannot be had.
    """
    size = plan.base.model.embedding_size
    automatic = "embedding_size" in plan.automatic
    fixed = plan.base.model.options.get("vectors") is not None
    while True:
        least = {layer: one.least(size) for layer, one in widths.items()}
        tight = {layer: found for layer, found in least.items() if found is None or found > (1 + TOLERANCE) * target}
        roomy = automatic and size > 1 and any(_cramped(one, target, size) for one in widths.values())
        if not tight and not roomy:
            return size
        if size == 1 or fixed:
            layer = max(tight, key=lambda name: tight[name] or 0)
            raise InputError(
                f"--parameters: {target:,} is less than {layer} can have with this vocabulary; give at least "
                f"{tight[layer]:,}, or a smaller tokenizer.vocabulary_size"
            )
        size //= 2


def _cramped(widths: Widths, target: int, embedding_size: int) -> bool:
    """Whether the embedding takes so much that the layer is narrower than half of it."""
    found = widths.count(max(1, embedding_size // 2), embedding_size)
    return not widths.tied and found is not None and found > target
