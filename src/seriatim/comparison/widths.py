"""Equal parameters: the width at which a layer has as many as are asked for.

The number of parameters grows with the width, so that halving the range finds it. Of widths within 2 % the roundest is
taken: multiples of 32 are quicker to compute with than odd numbers.
"""

import math
from collections.abc import Callable, Iterable

from ..config import Config
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..tasks import find
from ..training.memory import count_parameters

TOLERANCE = 0.02
MULTIPLES = (32, 16, 8, 4, 2, 1)
TRIED = 64
"""Widths in a row that a layer may refuse before none is looked for beyond them."""
Count = Callable[[int], int | None]


class Widths:
    """The widths of one layer.

    Args:
        config: everything but ``hidden_size`` and ``embedding_size``.
        vocabulary: of the data.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        self.config, self.vocabulary = config, vocabulary
        self.tied = config.model.tie_weights
        self.counted: dict[tuple[int, int], int | None] = {}

    def count(self, hidden_size: int, embedding_size: int) -> int | None:
        """Parameters with these sizes; None where the layer refuses them."""
        sizes = (hidden_size, hidden_size if self.tied else embedding_size)
        if sizes not in self.counted:
            update = {"hidden_size": sizes[0], "embedding_size": sizes[1]}
            config = self.config.model_copy(update={"model": self.config.model.model_copy(update=update)})
            try:
                self.counted[sizes] = count_parameters(find(config), self.vocabulary)
            except ValueError:
                self.counted[sizes] = None
        return self.counted[sizes]

    def least(self, embedding_size: int) -> int | None:
        """The fewest parameters there can be; None where no width is accepted."""
        found = _accepted(lambda width: self.count(width, embedding_size), range(1, TRIED + 1))
        return None if found is None else self.count(found, embedding_size)

    def solve(self, target: int, embedding_size: int, *, adjust: bool = True) -> tuple[int, int, int]:
        """The sizes nearest to a number of parameters.

        Args:
            target: so many parameters.
            embedding_size: of every layer that is compared.
            adjust: whether the embedding may be another where no width comes within 2 %.

        Returns:
            ``hidden_size``, ``embedding_size`` and the number of parameters.

        Raises:
            InputError: the layer accepts no width at all.
        """

        def count(width: int) -> int | None:
            return self.count(width, embedding_size)

        nearest: tuple[int, int] | None = None  # distance, width
        for multiple in MULTIPLES:
            for width in _around(count, target, multiple, _widest(target)):
                found = (abs((count(width) or 0) - target), width)
                nearest = found if nearest is None or found < nearest else nearest
            if nearest is not None and nearest[0] <= TOLERANCE * target:
                break
        if nearest is None:
            count_parameters(find(self.config), self.vocabulary)  # raises what is wrong with the options
            raise InputError(f"model.hidden_size: layer {self.config.model.layer!r} accepts no width up to {TRIED}")
        hidden_size = nearest[1]
        if nearest[0] > TOLERANCE * target and adjust and not self.tied:
            embedding_size = self.embedding(target, hidden_size, embedding_size)
        total = self.count(hidden_size, embedding_size)
        assert total is not None
        return hidden_size, hidden_size if self.tied else embedding_size, total

    def embedding(self, target: int, hidden_size: int, usual: int) -> int:
        """The embedding with which a model of a given width comes nearest; the usual one where none comes nearer."""

        def count(size: int) -> int | None:
            return self.count(hidden_size, size)

        best = min((usual, *_around(count, target, 1, target)), key=lambda size: abs((count(size) or 0) - target))
        return best if abs((count(best) or 0) - target) < abs((count(usual) or 0) - target) else usual


def _around(count: Count, target: int, multiple: int, most: int) -> list[int]:
    """The widest multiple with at most so many parameters, and the next one, as far as there are such."""
    low, high = 0, most // multiple
    while low < high:  # the last accepted one at or below the target lies in low..high
        middle = (low + high + 1) // 2
        width = _accepted(count, (multiple * i for i in range(middle, min(middle + TRIED, high) + 1)))
        if width is not None and (count(width) or 0) <= target:
            low = width // multiple
        else:
            high = middle - 1
    above = _accepted(count, (multiple * i for i in range(low + 1, low + TRIED)))
    return [width for width in (multiple * low, above) if width]


def _accepted(count: Count, widths: Iterable[int]) -> int | None:
    return next((width for width in widths if count(width) is not None), None)


def _widest(target: int) -> int:
    """Beyond this a width only makes up for a layer that has hardly any parameters of its own."""
    return max(1024, 4 * math.isqrt(target))
