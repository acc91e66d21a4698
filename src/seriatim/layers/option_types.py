"""Types of layer options: what values an option may have, declared in the constructor's signature.

    def __init__(self, input_size: int, hidden_size: int, *, zoneout: Rate = 0.0, norm: Norm = "rms") -> None: ...

A type is a plain one, or an ``Annotated`` one that also names a range or a choice; both may be joined with ``None``.
"""

import inspect
import math
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from ..core.errors import InputError, nearest, shown

LARGEST = 2**31
"""A size that no tensor has."""


class Between:
    """Numbers from ``least`` to ``most``, both included; without ``most`` there is no upper bound."""

    def __init__(self, least: float, most: float = math.inf) -> None:
        self.least, self.most = least, most

    def check(self, name: str, value: Any) -> None:
        """Raises InputError for a value outside."""
        if not self.least <= value <= self.most:
            allowed = f"be between {self.least:g} and {self.most:g}"
            if self.most == math.inf:
                allowed = f"be at least {self.least:g}"
            raise InputError(f"{name} must {allowed}; got {shown(value)}")


class OneOf:
    """One of several names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    def check(self, name: str, value: Any) -> None:
        """Raises InputError for another name."""
        if value not in self.names:
            raise InputError(f"{name}: {shown(value)} does not fit; {nearest(value, self.names)}")


Size = Annotated[int, Between(1)]
Rate = Annotated[float, Between(0, 0.99)]
GateBias = Annotated[float, Between(-100, 100)]
"""Beyond these a sigmoid is 0 or 1 to the last digit of float64, and nothing could move it."""
StepSize = Annotated[float, Between(1e-7, 1e3)]


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}


def check_value(name: str, value: object, annotation: Any) -> None:
    """Raises InputError where an option's value does not fit its annotation; text or no annotation fits everything."""
    if annotation is inspect.Parameter.empty:
        return
    joined = get_origin(annotation) in (Union, UnionType)
    parts = [_split(part) for part in (get_args(annotation) if joined else (annotation,))]
    kinds = tuple(kind for kind, _ in parts)
    if not all(isinstance(kind, type) for kind in kinds):
        return
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        named = " or ".join(WORDS.get(kind, kind.__name__) for kind in kinds)
        raise InputError(f"{name}: {shown(value)} does not fit; give {named}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name}: {value} does not fit; give a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InputError(f"{name}: {shown(value)} does not fit; give a number below {LARGEST}")
    for kind, limits in parts:
        if kind is not NoneType and value is not None:
            for limit in limits:
                limit.check(name, value)


def _split(annotation: Any) -> tuple[Any, list[Between | OneOf]]:
    """A type and its limits."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    kind, *others = get_args(annotation)
    return kind, [limit for limit in others if isinstance(limit, Between | OneOf)]
