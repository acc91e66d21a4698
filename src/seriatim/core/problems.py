"""What pydantic finds wrong with some data: which value does not fit, and why, in one line."""

from typing import NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import SHOWN, shown

Path: TypeAlias = tuple[str | int, ...]
UNKNOWN, MISSING = "extra_forbidden", "missing"
"""What pydantic calls a key that does not exist, and one that is not there."""


class Problem(NamedTuple):
    """A value that does not fit, or a key that is unknown or missing; ``kind`` is what pydantic calls the problem."""

    path: Path
    kind: str
    reason: str

    @property
    def name(self) -> str:
        """The keys and positions on the way to the value, joined by points."""
        return ".".join(str(key) if len(str(key)) <= SHOWN else shown(key) for key in self.path)


def problems_of(error: ValidationError, data: object) -> list[Problem]:
    """Return the problem of each field of the ``data`` that were validated; of a field of several types, only one."""
    fields: dict[Path, dict[Path, tuple[Path, ErrorDetails]]] = {}
    for problem in error.errors(include_url=False):
        field, path, types = _split(problem, data)
        fields.setdefault(field, {}).setdefault(types, (path, problem))
    return [_meant(list(branches.values())) for branches in fields.values()]


def _split(problem: ErrorDetails, data: object) -> tuple[Path, Path, Path]:
    """Return the location of a field, that of the problem in it, and the names of the types that pydantic tried.

    Pydantic's path of a problem also has the names of types; what lies in the data tells the two apart.
    """
    path: list[str | int] = []
    types: list[str | int] = []
    field: Path | None = None
    for key in problem["loc"]:
        in_list = isinstance(data, list) and isinstance(key, int) and key < len(data)
        if in_list or (isinstance(data, dict) and key in data):
            data = data[key]  # type: ignore[index]
            path.append(key)
        else:
            field = tuple(path) if field is None else field
            types.append(key)
    if problem["type"] == MISSING:
        path.append(types.pop())
    return tuple(path) if field is None or not types else field, tuple(path), tuple(types)


def _meant(branches: list[tuple[Path, ErrorDetails]]) -> Problem:
    """Return the problem of the type that fits furthest into a value, which is the one that was meant."""
    path = max((path for path, _ in branches), key=lambda path: [key if isinstance(key, int) else 0 for key in path])
    meant = [problem for other, problem in branches if other == path]
    kind = meant[0]["type"]
    if kind == MISSING:
        return Problem(path, kind, "is required; add it")
    reasons = [problem["msg"].removeprefix("Value error, ").partition(", unable")[0] for problem in meant]
    first, *others = dict.fromkeys(reasons)
    reason = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    reason = f"{reason[:1].lower()}{reason[1:]}"
    return Problem(path, kind, f"{_as_written(meant[0]['input'])} does not fit; {reason}" if path else reason)


def _as_written(value: object) -> str:
    """Return a value as YAML and JSON write it: what is long by its kind only."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return shown(value)
