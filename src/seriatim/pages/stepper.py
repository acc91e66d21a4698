"""A stepper: a reader steps through the tokens of a text and sees the numbers of an equation at each step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Equation(NamedTuple):
    """A sum of products: ``left`` is the name of the result, the ``terms`` have the names of their factors."""

    left: str
    terms: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Stepper:
    """The numbers of equations at every token, for some units.

    Attributes:
        tokens: the steps.
        names: the names of the numbers.
        equations: what is shown of them.
        units: of each unit its name, and its numbers at every token ``(tokens, names)``.
        first: the token that is shown at first.
    """

    title: str
    tokens: Sequence[str]
    names: Sequence[str]
    equations: Sequence[Equation]
    units: Sequence[tuple[str, Sequence[Sequence[float]]]]
    caption: str = ""
    first: int = 0

    @property
    def shown(self) -> dict[str, float]:
        """The numbers that are shown at first, by name."""
        return dict(zip(self.names, self.units[0][1][self.first], strict=True))

    def product(self, factors: Sequence[str]) -> float:
        """Return the product of some of these numbers."""
        result = 1.0
        for factor in factors:
            result *= self.shown[factor]
        return result

    @property
    def data(self) -> dict[str, object]:
        """What the script reads."""
        return {"names": list(self.names), "first": self.first, "units": [rows for _, rows in self.units]}
