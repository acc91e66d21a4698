"""What pydantic finds wrong with a configuration, in one line that names the field, the reason and the next step."""

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..core.errors import nearest, shown
from .sections import Config, fields

TYPES = ("int", "float", "str", "bool", "none")
"""Names by which pydantic calls types in the place of an error; the others are no identifiers."""


def explain(error: ValidationError) -> str:
    """Return the first of the problems of an error in one line: key, reason and remedy."""
    return explain_all(error)[0]


def explain_all(error: ValidationError) -> list[str]:
    """Return each problem of an error in one line. Of a field of several types, the reasons of all are one problem."""
    grouped: dict[str, list[ErrorDetails]] = {}
    for problem in error.errors():
        grouped.setdefault(_field_of(problem), []).append(problem)
    return [_explain(name, problems) for name, problems in grouped.items()]


def _field_of(problem: ErrorDetails) -> str:
    """Return the dotted name of the field of a problem, without pydantic's names of the types that it can have."""
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":  # the last part is the user's
        return ".".join(path)
    end = len(path)
    for i in range(len(path) - 1, 0, -1):
        if not (path[i] in TYPES or path[i].isdigit() or not path[i].isidentifier()):
            break
        end = end if path[i].isdigit() else i  # a position belongs to the list before it
    return ".".join(path[:end])


def _explain(name: str, problems: Sequence[ErrorDetails]) -> str:
    problem = problems[0]
    if problem["type"] == "extra_forbidden":
        known, section = fields(), name.rpartition(".")[0]
        siblings = [field for field in known if field.rsplit(".", 1)[0] == section] or list(Config.model_fields)
        hint = nearest(name, siblings)
        return f"unknown key {name}; {hint if hint.startswith('did') else nearest(name, known)}"
    reasons = [each["msg"].removeprefix("Value error, ") for each in problems]
    if len(reasons) > 1:
        reasons = [reason.removeprefix("Input should be ").partition(", unable")[0] for reason in reasons]
        reasons[0] = f"input should be {reasons[0]}"
    reason = ", or ".join(dict.fromkeys(reasons))
    return f"{name}: {shown(problem.get('input'))} does not fit; {reason[0].lower()}{reason[1:]}"
