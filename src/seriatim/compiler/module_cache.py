"""The cache of everything that is compiled for a module, used while its fingerprint is the same: what code depends on.

Results that also depend on the values of weights are dropped when a tensor of the module is written to or replaced. A
fingerprint takes longer than a step, so it is computed again only if the module holds another object than before.
"""

import functools
import inspect
import itertools
import operator
from collections import OrderedDict
from collections.abc import Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

Entry = TypeVar("Entry")
_unchanging: ContextVar[bool] = ContextVar("unchanging", default=False)

MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # attributes that every module has
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DEPTH = 3  # how many levels of nested containers and objects in an attribute belong to the fingerprint


def assume_unchanging() -> None:
    """Assume that no module changes after its first use in the present context, for instance in this thread.

    Finding out takes longer than the step of a small model. What is compiled for a module stays in use even if its
    weights change, or if hooks are registered on it.
    """
    _unchanging.set(True)


@functools.cache
def _count_writes_of_fused_optimizers() -> None:
    """Let fused optimizers count as writing to parameters: PyTorch does not raise the version of what they change."""

    def count(optimizer: Optimizer, *_: object) -> None:
        groups = [group["params"] for group in optimizer.param_groups if group.get("fused")]
        increment_version([parameter for group in groups for parameter in group if parameter.grad is not None])

    register_optimizer_step_post_hook(count)


@dataclass(eq=False)
class ModuleCache(Generic[Entry]):
    """Compiled results by module and key, at most ``max_entries`` for one module; then the oldest is dropped.

    ``depends_on_values`` says whether results depend on the values of parameters and buffers.
    """

    max_entries: int
    depends_on_values: bool = False
    _records: WeakKeyDictionary[nn.Module, "_Record[Entry]"] = field(default_factory=WeakKeyDictionary, init=False)

    def of(self, module: nn.Module) -> "_Record[Entry]":
        """Return the results that are valid for a module as it is now."""
        record = self._records.get(module)
        if record is None:
            _count_writes_of_fused_optimizers()
            record = self._records[module] = _Record(module, self.max_entries, self.depends_on_values)
        elif not _unchanging.get():
            record.refresh(module)
        return record


class _Record(Generic[Entry]):
    """The results of one module, and what is needed to see whether the module has changed."""

    def __init__(self, module: nn.Module, max_entries: int, depends_on_values: bool) -> None:
        self.max_entries, self.depends_on_values = max_entries, depends_on_values
        self.entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._current: dict[Hashable, Entry] = {}  # for the present fingerprint, whose hash takes microseconds
        self._observe(module)

    def get(self, key: Hashable) -> Entry | None:
        entry = self._current.get(key)
        if entry is None:
            entry = self.entries.get((self.fingerprint, key))
            if entry is not None:
                self._current[key] = entry
        return entry

    def store(self, key: Hashable, entry: Entry) -> Entry:
        self._current.clear()
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
        """Whether hooks are registered on the module or on one of its submodules."""
        return any(self._hooks)

    def refresh(self, module: nn.Module) -> None:
        """Compute the fingerprint again if the module has changed."""
        if self._sizes() == self._seen_sizes:
            try:
                objects = self._objects()
            except KeyError:  # an attribute was deleted, and another one added
                objects = []
            same_objects = len(objects) == len(self._seen_objects) and all(
                map(operator.is_, objects, self._seen_objects)
            )
            if same_objects and self._versions() == self._seen_versions:
                return
        before = self.fingerprint
        self._observe(module)
        if self.depends_on_values and self.fingerprint != before:
            self.entries.clear()

    def _observe(self, module: nn.Module) -> None:
        """Note the objects that a module holds now, and compute its fingerprint."""
        modules = list(module.modules())
        tables = [(module._parameters, module._buffers, module._modules, vars(module)) for module in modules]
        self._tables = [table for group in tables for table in group]
        self._views = [table.values() for group in tables for table in group[:3] if table]
        # of attributes that every module has, one more, so that each function returns a tuple
        self._getters = [(operator.itemgetter("_parameters", *_attributes(module)), vars(module)) for module in modules]
        self._hooks = [getattr(module, name) for module in modules for name in HOOKS]
        attributes = [value for module in modules for value in _attributes(module).values()]
        tensors = [value for value in attributes if isinstance(value, Tensor)]
        if self.depends_on_values:
            weights = [tensor for group in tables for table in group[:2] for tensor in table.values()]
            tensors += [tensor for tensor in weights if tensor is not None]
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]  # the others cannot be written to
        self._mutable = [value for value in attributes if not isinstance(value, Tensor) and not _is_constant(value)]
        self._seen_sizes, self._seen_objects, self._seen_versions = self._sizes(), self._objects(), self._versions()
        self._current.clear()
        self.fingerprint: Hashable = tuple(
            (
                type(module),
                *(tuple(table) for table in group[:3]),
                *((name, _key(value)) for name, value in _attributes(module).items()),
            )
            for module, group in zip(modules, tables, strict=True)
        )
        if self.depends_on_values:
            self.fingerprint = self.fingerprint, tuple(map(_key, tensors))

    def _sizes(self) -> list[int]:
        return list(map(len, self._tables))

    def _objects(self) -> list[object]:
        values = (get(attributes) for get, attributes in self._getters)
        return [*itertools.chain.from_iterable(self._views), *itertools.chain.from_iterable(values)]

    def _versions(self) -> list[object]:
        """Return how often each tensor was written to, and the contents of containers and objects."""
        return [*map(_version, self._tensors), *map(_key, self._mutable)]


def _attributes(module: nn.Module) -> dict[str, object]:
    """Return the attributes that not every module has."""
    return {name: value for name, value in vars(module).items() if name not in MODULE_ATTRIBUTES}


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
    if isinstance(value, functools.partial):
        value = (value.func, *value.args, *value.keywords.values())
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return all(map(_is_constant, vars(value).values()))
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str) or inspect.isroutine(value)


def _version(tensor: Tensor) -> Hashable:
    """Return what changes when a tensor is written to, or when ``tensor.data`` is assigned."""
    version = None if tensor.is_inference() else tensor._version
    return version, tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) else None


def _key(value: object, depth: int = DEPTH) -> Hashable:
    """Return a key for the content of an attribute."""
    if _is_plain(value):
        return type(value), value
    if isinstance(value, Tensor):
        return _Identity(value), _version(value)
    if depth == 0:
        return _Identity(value)
    if isinstance(value, functools.partial):
        return _key((value.func, value.args, value.keywords), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), *(_key(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return tuple((_key(name, 0), _key(item, depth - 1)) for name, item in value.items())
    return _Identity(value), _key(getattr(value, "__dict__", None), depth - 1)
