"""The cache of everything that is compiled for a module, and its rule of invalidation.

A compiled result is stored under the fingerprint of its module: whatever its code can depend on besides the values of
its parameters and buffers. A result is used only while the fingerprint is the same. Results that also depend on these
values, such as packed weights, are dropped as soon as a tensor of the module is written to or replaced.

To compute a fingerprint takes longer than a step of a small layer. So the cache first compares the objects that the
module holds with those it held before, and computes the fingerprint again only if one of them is another object.
"""

import functools
import inspect
import operator
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

Entry = TypeVar("Entry")

MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every module has."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DEPTH = 3
"""How many levels of nested containers and objects in an attribute belong to the fingerprint."""


class ModuleCache(Generic[Entry]):
    """Compiled results by module and key.

    Args:
        max_entries: results kept for one module; beyond this number the oldest is dropped.
        depends_on_values: whether results depend on the values of parameters and buffers.
    """

    def __init__(self, max_entries: int, *, depends_on_values: bool = False) -> None:
        self.max_entries, self.depends_on_values = max_entries, depends_on_values
        self._records: WeakKeyDictionary[nn.Module, _Record[Entry]] = WeakKeyDictionary()

    def of(self, module: nn.Module) -> "_Record[Entry]":
        """Return the results that are valid for a module as it is now."""
        record = self._records.get(module)
        if record is None:
            record = self._records[module] = _Record(module, self.max_entries, self.depends_on_values)
        else:
            record.refresh(module)
        return record


class _Record(Generic[Entry]):
    """The results of one module, and what is needed to see whether the module has changed."""

    def __init__(self, module: nn.Module, max_entries: int, depends_on_values: bool) -> None:
        self.max_entries, self.depends_on_values = max_entries, depends_on_values
        self.entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._observe(module)

    def get(self, key: Hashable) -> Entry | None:
        """Return the result for a key, or None."""
        return self.entries.get((self.fingerprint, key))

    def store(self, key: Hashable, entry: Entry) -> Entry:
        """Store and return a result."""
        while len(self.entries) >= self.max_entries:
            self.entries.popitem(last=False)
        self.entries[self.fingerprint, key] = entry
        return entry

    @property
    def is_full(self) -> bool:
        """Whether the next result replaces an older one."""
        return len(self.entries) >= self.max_entries

    @property
    def has_hooks(self) -> bool:
        """Whether hooks are registered on the module or on one of its parts."""
        return any(self._hooks)

    def refresh(self, module: nn.Module) -> None:
        """Compute the fingerprint again if the module has changed."""
        objects, versions = self._objects(), self._versions()
        same_objects = len(objects) == len(self._seen_objects) and all(map(operator.is_, objects, self._seen_objects))
        if same_objects and versions == self._seen_versions:
            return
        before = self.fingerprint
        self._observe(module)
        if self.depends_on_values and self.fingerprint != before:
            self.entries.clear()

    def _observe(self, module: nn.Module) -> None:
        """Note the objects that a module holds now, and compute its fingerprint."""
        parts = list(module.modules())
        tables = [(part._parameters, part._buffers, part._modules, vars(part)) for part in parts]
        self._values = [table.values for group in tables for table in group]
        self._hooks = [getattr(part, name) for part in parts for name in HOOKS]
        attributes = [value for part in parts for name, value in vars(part).items() if name not in MODULE_ATTRIBUTES]
        tensors = [value for value in attributes if isinstance(value, Tensor)]
        if self.depends_on_values:
            held = [tensor for group in tables for table in group[:2] for tensor in table.values()]
            tensors += [tensor for tensor in held if tensor is not None]
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]  # the others cannot be written to
        self._mutable = [value for value in attributes if not isinstance(value, Tensor) and not _is_constant(value)]
        self._seen_objects, self._seen_versions = self._objects(), self._versions()
        self.fingerprint: Hashable = fingerprint(module)
        if self.depends_on_values:
            self.fingerprint = self.fingerprint, tuple(map(_key, tensors))

    def _objects(self) -> list[object]:
        objects: list[object] = []
        for values in self._values:
            objects.extend(values())
        return objects

    def _versions(self) -> list[object]:
        """Return how often each tensor was written to, and the contents of containers and objects."""
        versions: list[object] = [tensor._version for tensor in self._tensors]
        if self._mutable:
            versions += map(_key, self._mutable)
        return versions


def fingerprint(module: nn.Module) -> Hashable:
    """Return what the step of a module can depend on besides its parameters and buffers.

    These are the classes of the module and its parts, the names of what they hold, and their plain attributes.
    """
    return tuple(
        (
            type(part),
            tuple(part._parameters) + tuple(part._buffers) + tuple(part._modules),
            tuple((name, _key(value)) for name, value in vars(part).items() if name not in MODULE_ATTRIBUTES),
        )
        for part in module.modules()
    )


class _Identity:
    """A key for an object that equals nothing but the same object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _is_constant(value: object) -> bool:
    """Return whether an attribute can only change by assignment."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, bool | int | float | str) or inspect.isroutine(value)


def _key(value: object, depth: int = DEPTH) -> Hashable:
    """Return a key for the content of an attribute."""
    if value is None or isinstance(value, bool | int | float | str) or inspect.isroutine(value):
        return type(value), value
    if isinstance(value, Tensor):
        return _Identity(value), None if value.is_inference() else value._version
    if depth == 0:
        return _Identity(value)
    if isinstance(value, functools.partial):
        return _key((value.func, value.args, value.keywords), depth)
    return tuple(_contents(value, depth - 1))


def _contents(value: object, depth: int) -> Iterator[Hashable]:
    """Yield keys for a container's type and items, or for an object and its attributes."""
    if isinstance(value, list | tuple | set | frozenset):
        yield type(value)
        yield from (_key(item, depth) for item in value)
    elif isinstance(value, dict):
        yield from ((_key(name, 0), _key(item, depth)) for name, item in value.items())
    else:
        yield _Identity(value)
        yield _key(getattr(value, "__dict__", None), depth)
