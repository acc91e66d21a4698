"""Statements: sentences of pages and of the console as data, each with the condition under which it is true.

A table of statements stands beside the measurement that they are about. The facts are one object whose attributes are
the figures, already written with their intervals; a template names them, as ``{best.layer}``.
"""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

Facts = TypeVar("Facts")


class Statement(NamedTuple, Generic[Facts]):
    """A sentence that is told where ``when`` holds; its ``template`` names attributes of the facts."""

    when: Callable[[Facts], bool]
    template: str

    def of(self, facts: Facts) -> str:
        """Return the sentence about some facts."""
        return self.template.format_map(_Attributes(facts))


def told(statements: Iterable[Statement[Facts]], facts: Facts) -> list[str]:
    """Return the sentences whose condition holds, in their order."""
    return [statement.of(facts) for statement in statements if statement.when(facts)]


class _Attributes(dict[str, object]):
    """The attributes of an object by name, for a template."""

    def __init__(self, facts: object) -> None:
        super().__init__()
        self.facts = facts

    def __missing__(self, name: str) -> object:
        return getattr(self.facts, name)
