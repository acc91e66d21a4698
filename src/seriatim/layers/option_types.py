"""Types of layer options: which values an option may have, declared in the signature of the constructor.

    def __init__(self, input_size: int, hidden_size: int, *, zoneout: Rate = 0.0, norm: Norm = "rms") -> None: ...

A type is a plain one, or an ``Annotated`` one that also names a range or a choice; both may be joined with ``None``.
"""

import inspect
import math
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from ..core.errors import InputError, nearest, shown

LARGEST = 2**31
"""A size that no tensor has."""
Json: TypeAlias = object
"""A value that JSON can express."""


class Between:
    """Numbers from ``minimum`` to ``maximum``, both included; without ``maximum`` there is no upper bound."""

    def __init__(self, minimum: float, maximum: float = math.inf) -> None:
        self.minimum, self.maximum = minimum, maximum

    def check(self, name: str, value: Any) -> None:
        """Raise InputError for a value outside the range."""
        if not self.minimum <= value <= self.maximum:
            allowed = f"between {self.minimum:g} and {self.maximum:g}"
            if self.maximum == math.inf:
                allowed = f"at least {self.minimum:g}"
            raise InputError(f"{name} must be {allowed}; got {shown(value)}")


class OneOf:
    """One of several names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    def check(self, name: str, value: Any) -> None:
        """Raise InputError for another name."""
        if value not in self.names:
            raise InputError(f"{name}: {shown(value)} does not fit; {nearest(value, self.names)}")


Size = Annotated[int, Between(1)]
Rate = Annotated[float, Between(0, 0.99)]
GateBias = Annotated[float, Between(-100, 100)]
"""Beyond these values a sigmoid is 0 or 1 to the last digit of float64, and no gradient could change it."""
StepSize = Annotated[float, Between(1e-7, 1e3)]
WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}


def check_value(name: str, value: object, annotation: object) -> None:
    """Raise InputError where the value of an option does not fit its type; without a type every value fits.

    Args:
        name: of the option, for the message.
        value: as given.
        annotation: the type as declared; a type that is text, or none at all, fits everything.
    """
    if annotation is inspect.Parameter.empty:
        return
    parts = [_split(part) for part in _alternatives(annotation)]
    kinds = [kind for kind, _ in parts if isinstance(kind, type)]
    if len(kinds) < len(parts):
        return
    accepted = (*kinds, int) if float in kinds else tuple(kinds)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(WORDS.get(kind, kind.__name__) for kind in kinds)
        raise InputError(f"{name}: {shown(value)} does not fit; give {names}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name}: {value} does not fit; give a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InputError(f"{name}: {shown(value)} does not fit; give a number below {LARGEST}")
    for kind, limits in parts:
        for limit in limits:
            if kind is not NoneType and value is not None and isinstance(limit, Between | OneOf):
                limit.check(name, value)


def describe_type(annotation: object, limits: Sequence[object] = ()) -> tuple[str, str | None, list[str] | None]:
    """Return the type of an option in words, its range in words, and its choices; None where it has no such limit.

    Args:
        annotation: the type as declared by a layer or by a field of a task.
        limits: declared beside the type, as pydantic keeps them.
    """
    names: list[str] = []
    choices: list[str] = []
    everything = list(limits)
    for part in _alternatives(annotation):
        kind, declared = _split(part)
        everything += declared
        if get_origin(kind) is Literal:
            choices += map(str, get_args(kind))
            names.append(WORDS[str])
        elif kind is not inspect.Parameter.empty:
            names.append(
                WORDS.get(kind, "a list" if get_origin(kind) is list else str(getattr(kind, "__name__", kind)))
            )
    span = None
    for limit in everything:
        if isinstance(limit, OneOf):
            choices += limit.names
        elif isinstance(limit, Between):
            span = _range(limit.minimum, limit.maximum)
    bounds = [limit for limit in everything if isinstance(limit, Ge | Gt | Le | Lt)]
    if len(bounds) == 2 and isinstance(bounds[0], Ge) and isinstance(bounds[1], Le):
        span = f"{bounds[0].ge:g} to {bounds[1].le:g}"
    elif bounds:
        span = " and ".join(filter(None, map(_bound, bounds))) or None
    return " or ".join(dict.fromkeys(names)) or "any value", span, choices or None


def _range(minimum: float, maximum: float) -> str:
    return f"{minimum:g} or more" if maximum == math.inf else f"{minimum:g} to {maximum:g}"


def _bound(bound: object) -> str | None:
    if isinstance(bound, Ge):
        return f"{bound.ge:g} or more"
    if isinstance(bound, Gt):
        return f"above {bound.gt:g}"
    if isinstance(bound, Le):
        return f"{bound.le:g} or less"
    assert isinstance(bound, Lt)
    return None if bound.lt == LARGEST else f"below {bound.lt:g}"


def _alternatives(annotation: object) -> tuple[object, ...]:
    """Return the parts of ``A | B``, or the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _split(annotation: object) -> tuple[object, list[object]]:
    """Return a type without its limits, and the limits."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    kind, *limits = get_args(annotation)
    return kind, [part for limit in limits for part in (limit.metadata if isinstance(limit, FieldInfo) else (limit,))]
