"""The options that layers and tasks declare, the types of their values, and the one place that checks these.

    def __init__(self, input_size: int, hidden_size: int, *, zoneout: Rate = 0.0, norm: Norm = "rms") -> None: ...

A layer declares its options as the keyword-only arguments of its constructor, with a type, a default, and a line in the
``Args`` of the class docstring. A task declares them as the fields of a `Section`, each with a docstring below it.
``seriatim layers --json``, the page `docs/options.md` and the errors are made from these.

A type is a plain one, or an ``Annotated`` one that also names a range or a choice; both may be joined with ``None``.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic.fields import FieldInfo

from ..config import Section
from ..core.errors import RangeError, UnknownNameError, nearest, shown
from ..recurrence.recurrent import Rate as Rate

Options = Mapping[str, object]
LARGEST = 2**31
"""A size that no tensor has."""
Json: TypeAlias = object
"""A value that JSON can express."""


class OneOf:
    """One of several names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)


ARGS = re.compile(r"^Args:(\n {4,}.*)*", re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
Size = Annotated[int, Ge(1)]
GateBias = Annotated[float, Interval(ge=-100, le=100)]
"""Beyond these values a sigmoid is 0 or 1 to the last digit of float64, and no gradient could change it."""
StepSize = Annotated[float, Interval(ge=1e-7, le=1e3)]
WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
    list: "a list",
}
BOUNDS = {Ge: "{:g} or more", Gt: "above {:g}", Le: "{:g} or less", Lt: "below {:g}"}


def check_sizes(**sizes: int) -> None:
    """Raise InputError for a size below 1."""
    for name, size in sizes.items():
        check_value(name, size, Size)


def check_step_sizes(dt_min: float, dt_max: float) -> None:
    """Raise InputError unless 0 < dt_min ≤ dt_max."""
    if not 0 < dt_min <= dt_max:
        raise RangeError(
            f"model.options.dt_min: {dt_min} is out of range; give a number above 0 and at most dt_max, {dt_max}"
        )


def check_value(name: str, value: object, annotation: object) -> None:
    """Raise InputError where the value of an option does not fit its type; without a type every value fits.

    Args:
        name: of the option, for the message.
        value: as given.
        annotation: the type as declared; every value fits a type that is given as text, or no type.
    """
    kinds, limits = _split(annotation)
    types = tuple(kind for kind in kinds if isinstance(kind, type))
    if annotation is inspect.Parameter.empty or len(types) < len(kinds):
        return

    # an int may stand for a float, but a bool, which Python takes for an int, for no number
    accepted = (*types, int) if float in types else types
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in types):
        text = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else None
        raise RangeError(f"{name}: {text or shown(value)} has the wrong type; give {_in_words(types)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise RangeError(f"{name}: {value} is not finite; give a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise RangeError(f"{name}: {shown(value)} is too large; give a number below {LARGEST}")
    bounds = _bounds(limits)
    low, high = bounds.get(Ge, -math.inf), bounds.get(Le, math.inf)
    if isinstance(value, int | float) and not low <= value <= high:
        allowed = f"{low:g} or more" if high == math.inf else f"a number from {low:g} to {high:g}"
        raise RangeError(f"{name}: {shown(value)} is out of range; give {allowed}")
    for limit in limits:
        if isinstance(limit, OneOf) and isinstance(value, str) and value not in limit.names:
            raise UnknownNameError(f"{name}: {shown(value)} does not fit; {nearest(value, limit.names)}")


def describe_type(annotation: object, limits: Sequence[object] = ()) -> tuple[str, str | None, list[str] | None]:
    """Return the type of an option in words, its range in words, and its choices; None where it has no such limit.

    Args:
        annotation: the type as declared by a layer or by a field of a task.
        limits: declared beside the type, as pydantic keeps them.
    """
    kinds, declared = _split(annotation)
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    choices += [name for limit in declared if isinstance(limit, OneOf) for name in limit.names]
    bounds = _bounds([*limits, *declared])
    if bounds.keys() == {Ge, Le}:
        allowed = f"{bounds[Ge]:g} to {bounds[Le]:g}"
    else:
        texts = [BOUNDS[kind].format(bound) for kind, bound in bounds.items() if (kind, bound) != (Lt, LARGEST)]
        allowed = " and ".join(texts)
    return _in_words(kinds) or "any value", allowed or None, choices or None


def _in_words(kinds: Collection[object]) -> str:
    """Return types in words; a choice of names is text, and a list names what it may hold."""
    lists = [kind for kind in kinds if get_origin(kind) is list]
    if lists and (names := [str(choice) for item in get_args(lists[0]) for choice in get_args(item)]):
        return f"a list of {', '.join(names)}"
    plain = [str if get_origin(kind) is Literal else get_origin(kind) or kind for kind in kinds]
    names = [WORDS.get(kind, str(getattr(kind, "__name__", kind))) for kind in plain]
    return " or ".join(dict.fromkeys(names))


def _bounds(limits: Iterable[object]) -> dict[type, float]:
    """Return the bounds among some limits by their kind."""
    kinds = tuple(BOUNDS)
    return {type(limit): getattr(limit, type(limit).__name__.lower()) for limit in limits if isinstance(limit, kinds)}


def _split(annotation: object) -> tuple[list[object], list[object]]:
    """Return the types that ``A | B`` joins, without their limits, and all limits."""
    kinds: list[object] = []
    limits: list[object] = []
    for member in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        kind, *declared = get_args(member) if get_origin(member) is Annotated else (member,)
        kinds += [] if kind is inspect.Parameter.empty else [kind]
        for limit in declared:
            several = limit.metadata if isinstance(limit, FieldInfo) else limit
            limits += several if isinstance(several, Iterable) else [several]
    return kinds, limits


# ---- declared options


@dataclass(frozen=True)
class Option:
    """One option of a layer or a task."""

    name: str  # the key in model.options
    annotation: object  # the type of its values, as declared; inspect.Parameter.empty if there is none
    default: object = None
    help: str = ""  # one line
    limits: tuple[object, ...] = ()  # declared beside the type

    def describe(self) -> dict[str, Json]:
        """Return ``type``, ``default``, ``range``, ``choices`` and ``help``; None where there is no such limit."""
        kind, allowed, choices = describe_type(self.annotation, self.limits)
        return {"type": kind, "default": self.default, "range": allowed, "choices": choices, "help": self.help}


def task_options(section: type[Section]) -> dict[str, Option]:
    """Return the options that a task declares."""
    return {
        name: Option(
            name,
            field.annotation,
            field.get_default(call_default_factory=True),
            _line(field.description or ""),
            tuple(field.metadata),
        )
        for name, field in section.model_fields.items()
    }


def declared(function: Callable[..., object]) -> dict[str, Option]:
    """Return the keyword-only arguments of a class or a function as options."""
    return dict(_declared(function))


@functools.cache  # reading signatures and docstrings takes milliseconds, and a training asks many times
def _declared(function: Callable[..., object]) -> dict[str, Option]:
    owners = reversed(function.__mro__) if isinstance(function, type) else [function]
    texts = {
        name: text for owner in owners for name, text in arguments_of(inspect.cleandoc(owner.__doc__ or "")).items()
    }
    return {
        name: Option(name, _type_of(one), None if one.default is one.empty else one.default, texts.get(name, ""))
        for name, one in _signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """Return a signature whose types are types, also where ``from __future__ import annotations`` makes them text."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # a type that is imported for type checkers only
        return inspect.signature(function)


def _type_of(parameter: inspect.Parameter) -> object:
    """Return the declared type of an option, or else the type of its default; a default of 1 allows any number."""
    kinds: dict[type, object] = {bool: bool, int: float, float: float, str: str}
    default = kinds.get(type(parameter.default), parameter.empty)
    known = parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str)
    return parameter.annotation if known else default


def accepted(function: Callable[..., object], options: Options) -> dict[str, Any]:
    """Return those of some options that a class or a function takes by keyword only."""
    return {key: options[key] for key in declared(function) if key in options}


def arguments_of(docstring: str) -> dict[str, str]:
    """Return what the ``Args`` of a docstring say of each argument, in one line each."""
    section = ARGS.search(docstring)
    return {name: _line(text) for name, text in ARGUMENT.findall(section[0] if section else "")}


def _line(text: str) -> str:
    """Return a text on one line, as a sentence."""
    text = " ".join(text.replace("``", "`").split())
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")
