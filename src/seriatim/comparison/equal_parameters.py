"""Equal parameters: the sizes of the layers of a comparison."""

from collections.abc import Mapping, Sequence

from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..tasks import find
from ..training.resource_limits import count_parameters
from ..training.width_solver import TOLERANCE, WidthSolver
from .plan import Plan, architecture, width_of


def solve_sizes(plan: Plan, layers: Sequence[str], vocabulary: Vocabulary, *, choose_embedding: bool) -> None:
    """Solve the sizes of layers and write them into the plan.

    Args:
        plan: receives the sizes. Without a target, the first layer sets it.
        layers: the rows to solve.
        vocabulary: of the data.
        choose_embedding: whether the embedding size, which all rows share, may be reduced.

    Raises:
        InputError: the target is too small for a layer, or a layer accepts no width.
    """
    solvers = {layer: WidthSolver(plan.config(layer), vocabulary, find) for layer in layers}
    if plan.parameters is None:
        first = plan.config(layers[0])
        if first.model.tie_weights:
            first.model.embedding_size = first.model.hidden_size
        plan.parameters = count_parameters(find(first), vocabulary)
    if choose_embedding:
        plan.base.model.embedding_size = _common_embedding(plan, solvers, plan.parameters)
    has_vectors = plan.base.model.options.get("vectors") is not None
    for layer, solver in solvers.items():
        sizes = solver.solve(plan.parameters, plan.base.model.embedding_size, adjust=not has_vectors)
        update = dict(zip(("hidden_size", "embedding_size", "parameters"), sizes, strict=True))
        plan.sized[layer] = plan.sized[layer].model_copy(update=update)


def set_width(plan: Plan, row: str, vocabulary: Vocabulary) -> None:
    """Write the sizes of a row into the plan whose width is given.

    Raises:
        InputError: the layer does not accept the width.
    """
    width = width_of(row)
    assert width is not None
    embedding_size = width if plan.base.model.tie_weights else plan.base.model.embedding_size
    plan.sized[row] = plan.sized[row].model_copy(update={"hidden_size": width, "embedding_size": embedding_size})
    try:
        parameters = count_parameters(plan.task(row), vocabulary)
    except ValueError as error:
        raise InputError(f"--widths: {architecture(row)} does not accept the width {width}: {error}") from None
    plan.sized[row] = plan.sized[row].model_copy(update={"parameters": parameters})


def _common_embedding(plan: Plan, solvers: Mapping[str, WidthSolver], target: int) -> int:
    """Halve the configured embedding size until every layer has a width for the target.

    Where the size was not set by the user, every layer gets at least half the width of the embedding.

    Raises:
        InputError: the target is too small for a layer.
    """
    size = plan.base.model.embedding_size
    automatic = "embedding_size" in plan.automatic
    fixed = plan.base.model.options.get("vectors") is not None
    while True:
        minima = {layer: solver.minimum(size) for layer, solver in solvers.items()}
        tight = {layer: least for layer, least in minima.items() if least is None or least > (1 + TOLERANCE) * target}
        cramped = automatic and size > 1 and any(solver.is_cramped(target, size) for solver in solvers.values())
        if not tight and not cramped:
            return size
        if size == 1 or fixed:
            layer = max(tight, key=lambda name: tight[name] or 0)
            raise InputError(
                f"--parameters: {target:,} is less than {layer} can have with this vocabulary; give at least "
                f"{tight[layer]:,}, or a smaller tokenizer.vocabulary_size"
            )
        size //= 2
