"""Solve the width at which a model has a number of parameters.

The number of parameters grows with the width, so bisection finds the width. Among the widths within 2 % of the target,
the roundest is chosen: multiples of 32 compute faster than odd numbers. Parameters that every size of the model has,
such as tables of hashed features, are left out of these 2 %, since beside a large table any width would do.
"""

import math
from collections.abc import Callable, Iterable

from ..config import Config
from ..core.errors import NotSupportedError
from ..data.vocabulary import Vocabulary
from ..tasks.model_size import count_parameters
from ..tasks.task import ModelBuilder

TOLERANCE = 0.02
MULTIPLES = (32, 16, 8, 4, 2, 1)
MAX_REFUSED = 64
"""Consecutive widths that a layer may refuse before the search stops."""
CountParameters = Callable[[int], int | None]
"""From a size to the number of parameters; None where the layer refuses the size."""


class WidthSolver:
    """Solves the width of one layer in a configuration, whose ``hidden_size`` and ``embedding_size`` are replaced.

    ``builder_of`` returns the builder of a configuration's model.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary, builder_of: Callable[[Config], ModelBuilder]) -> None:
        self.config, self.vocabulary, self.builder_of = config, vocabulary, builder_of
        self.tied = config.model.tie_weights
        self.counts: dict[tuple[int, int], int | None] = {}

    def count(self, hidden_size: int, embedding_size: int) -> int | None:
        """Return the number of parameters; None where the layer refuses the sizes."""
        sizes = (hidden_size, hidden_size if self.tied else embedding_size)
        if sizes not in self.counts:
            update = {"hidden_size": sizes[0], "embedding_size": sizes[1]}
            config = self.config.model_copy(update={"model": self.config.model.model_copy(update=update)})
            try:
                self.counts[sizes] = count_parameters(self.builder_of(config), self.vocabulary)
            except ValueError:
                self.counts[sizes] = None
        return self.counts[sizes]

    def minimum(self, embedding_size: int) -> int | None:
        """Return the smallest possible number of parameters; None where the layer accepts no width."""
        width = _accepted(lambda size: self.count(size, embedding_size), range(1, MAX_REFUSED + 1))
        return None if width is None else self.count(width, embedding_size)

    def is_cramped(self, target: int, embedding_size: int) -> bool:
        """Return whether the embedding leaves the layer less than half of its own width."""
        count = self.count(max(1, embedding_size // 2), embedding_size)
        return not self.tied and count is not None and count > target

    def allowance(self, target: int) -> float:
        """Return by how many parameters a width may miss the target."""
        return TOLERANCE * max(0, target - (self.minimum(1) or 0))

    def solve(self, target: int, embedding_size: int, *, adjust: bool = True) -> tuple[int, int, int]:
        """Return ``hidden_size``, ``embedding_size`` and the number of parameters that are nearest to the target.

        Args:
            target: number of parameters.
            embedding_size: the size that all layers share.
            adjust: whether another embedding size may be used where no width comes within 2 %.

        Raises:
            InputError: the layer accepts no width.
        """
        allowance = self.allowance(target)
        largest = max(1024, 4 * math.isqrt(target))  # beyond, a width only pads a layer with hardly any parameters

        def distance(hidden_size: int, embedding_size: int) -> int:
            return abs((self.count(hidden_size, embedding_size) or 0) - target)

        # Round widths first: of those within the tolerance, the roundest computes fastest.
        widths: list[int] = []
        for multiple in MULTIPLES:
            widths += _around(lambda size: self.count(size, embedding_size), target, multiple, largest)
            if any(distance(width, embedding_size) <= allowance for width in widths):
                break
        if not widths:
            count_parameters(self.builder_of(self.config), self.vocabulary)  # raises an error in the options
            name = self.config.model.layer
            raise NotSupportedError(
                f"model.hidden_size: layer {name!r} accepts no width up to {MAX_REFUSED}; choose another layer"
            )

        # Where no width comes near, another size of the embedding makes up the difference.
        hidden_size = min(widths, key=lambda width: (distance(width, embedding_size), width))
        if self.tied:
            embedding_size = hidden_size
        elif adjust and distance(hidden_size, embedding_size) > allowance:
            others = _around(lambda size: self.count(hidden_size, size), target, 1, target)
            embedding_size = min((embedding_size, *others), key=lambda size: distance(hidden_size, size))
        total = self.count(hidden_size, embedding_size)
        assert total is not None
        return hidden_size, embedding_size, total


def _around(count: CountParameters, target: int, multiple: int, largest: int) -> list[int]:
    """Return the largest multiple with at most ``target`` parameters, and the next one, as far as they exist."""
    low, high = 0, largest // multiple
    while low < high:  # the last accepted size at or below the target lies in low..high
        middle = (low + high + 1) // 2
        size = _accepted(count, (multiple * i for i in range(middle, min(middle + MAX_REFUSED, high) + 1)))
        if size is not None and (count(size) or 0) <= target:
            low = size // multiple
        else:
            high = middle - 1
    above = _accepted(count, (multiple * i for i in range(low + 1, low + MAX_REFUSED)))
    return [size for size in (multiple * low, above) if size]


def _accepted(count: CountParameters, sizes: Iterable[int]) -> int | None:
    return next((size for size in sizes if count(size) is not None), None)
