"""What is wrong with the fields of a request, in plain English: the field, the rule, and the value that was sent."""

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..core.errors import nearest, shown
from .http_errors import HttpError

Context = Mapping[str, object]
TYPES = {
    "bool_type": "true or false",
    "bytes_type": "a string",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "an object",
    "none_required": "null",
    "string_type": "a string",
    "tuple_type": "a list",
}
"""What a value must be, by pydantic's type of the problem."""
RULES: dict[str, Callable[[Context], str]] = {
    "enum": lambda context: f"must be {context['expected']}",
    "finite_number": lambda context: "must be a finite number",
    "greater_than": lambda context: f"must be greater than {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"must be at least {_number(context['ge'])}",
    "less_than": lambda context: f"must be less than {_number(context['lt'])}",
    "less_than_equal": lambda context: f"must be at most {_number(context['le'])}",
    "literal_error": lambda context: f"must be {context['expected']}",
    "multiple_of": lambda context: f"must be a multiple of {_number(context['multiple_of'])}",
    "string_pattern_mismatch": lambda context: f"must match the pattern {context['pattern']}",
}
"""The rule that a value of the right type breaks."""
SIZES = {
    "string_too_long": ("at most", "max_length", "character"),
    "string_too_short": ("at least", "min_length", "character"),
    "too_long": ("at most", "max_length", "item"),
    "too_short": ("at least", "min_length", "item"),
}
Path = tuple[str | int, ...]


def explain_problems(error: ValidationError, data: object, model: type[BaseModel]) -> HttpError:
    """Return the most specific of the problems of a request as an error with status 400.

    Args:
        error: What pydantic reports about ``data``.
        data: The parsed body. Pydantic's path of a problem also has the names of the types that it tried; what lies
            in the data tells the two apart.
        model: The fields that are known, for unknown ones.
    """
    problems = error.errors(include_url=False)
    field = problems[0]["loc"][:1]
    branches: dict[Path, tuple[Path, ErrorDetails]] = {}  # the first problem of each of the types that a value may have
    for problem in problems:
        if problem["loc"][:1] == field:
            path, types = _split(problem, data)
            branches.setdefault(types, (path, problem))
    # The type that fits furthest into the value is the one that was meant.
    path = max((path for path, _ in branches.values()), key=_position)
    meant = [problem for other, problem in branches.values() if other == path]
    name = ".".join(str(part) if len(str(part)) <= 60 else shown(part) for part in path)
    reason = _reason(meant, path, model)
    return HttpError(400, f"{name}: {reason}" if name else reason, param=name or None)


def _split(problem: ErrorDetails, data: object) -> tuple[Path, Path]:
    """Return the place of a problem in the data, and the types that pydantic tried on the way."""
    path: list[str | int] = []
    types: list[str | int] = []
    for part in problem["loc"]:
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, dict) and part in data):
            data = data[part]  # type: ignore[index]
            path.append(part)
        else:
            types.append(part)
    if problem["type"] == "missing":
        path.append(types.pop())
    return tuple(path), tuple(types)


def _position(path: Path) -> list[int]:
    return [part if isinstance(part, int) else 0 for part in path]


def _reason(problems: list[ErrorDetails], path: Path, model: type[BaseModel]) -> str:
    kinds = [problem["type"] for problem in problems]
    if "extra_forbidden" in kinds:
        return f"unknown field; {nearest(str(path[-1]), _siblings(model, path))}"
    if "missing" in kinds:
        return "is required; add it"
    broken = [problem for problem in problems if problem["type"] not in TYPES]
    if broken:  # the value has one of the types, and breaks the rule of that type
        return _broken_rule(broken[0])
    choices = list(dict.fromkeys(TYPES[kind] for kind in kinds))
    *others, last = choices
    return f"must be {', '.join(others)}{' or ' if others else ''}{last}, got {json_shown(problems[0]['input'])}"


def _broken_rule(problem: ErrorDetails) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in SIZES:
        bound, key, unit = SIZES[kind]
        limit, size = context[key], problem["input"]
        got = f", got {len(size):,}" if isinstance(size, str | list | dict) else ""
        return f"must be {bound} {limit:,} {unit}{'s' * (limit != 1)}{got}"
    if kind in RULES:
        return f"{RULES[kind](context)}, got {json_shown(problem['input'])}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{message[:1].lower()}{message[1:]}"


def _siblings(model: type[BaseModel], path: Path) -> list[str]:
    """Return the known fields of the object that holds an unknown one."""
    for part in path[:-1]:
        field = model.model_fields.get(str(part))
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field is not None else []
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return list(model.model_fields)


def json_shown(value: object) -> str:
    """Return a value of a request as a message shows it: what is long by its kind only."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return shown(value)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
