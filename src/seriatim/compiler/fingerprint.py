"""What tells a module from what it was before: whatever its step may depend on besides its tensors."""

import functools
import inspect
from typing import Any

from torch import Tensor, nn

OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def fingerprint(module: nn.Module) -> tuple[Any, ...]:
    """What a module's step may depend on besides its tensors: its plain attributes, and those of its parts."""
    return tuple(
        (
            type(part),
            tuple(part._parameters) + tuple(part._buffers) + tuple(part._modules),
            tuple((name, _key(value)) for name, value in vars(part).items() if name not in OF_EVERY_MODULE),
        )
        for part in module.modules()
    )


class _Identity:
    """An object as a key: equal to nothing but itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _key(value: Any, depth: int = 3) -> Any:
    """What tells a value from another: its content, or (of what is no plain container) its attributes."""
    if value is None or isinstance(value, bool | int | float | str) or inspect.isroutine(value):
        return type(value), value
    if isinstance(value, Tensor):
        return _Identity(value), value._version
    if depth == 0:
        return _Identity(value)
    if isinstance(value, functools.partial):
        return _key((value.func, value.args, value.keywords), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), tuple(_key(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return tuple((_key(name, 0), _key(item, depth - 1)) for name, item in value.items())
    return _Identity(value), _key(getattr(value, "__dict__", None), depth - 1)
