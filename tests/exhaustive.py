"""Parameters of tests of which ``make test`` runs a part, and ``make test-all`` every one."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def parameters(names: Iterable[object], *, everyday: Iterable[object]) -> list[ParameterSet]:
    """One parameter a name; those that are not in ``everyday`` have the mark ``exhaustive``."""
    chosen = set(everyday)
    return [pytest.param(name, id=str(name), marks=() if name in chosen else pytest.mark.exhaustive) for name in names]
