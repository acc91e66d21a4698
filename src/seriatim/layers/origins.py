"""Registered classes in other processes: which file defines a class, and how another process imports it.

The layers of a comparison train in processes of their own. Those know the layers of the library; a class that a user
has registered must be imported there first, from the module that defines it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..core.errors import InputError
from .registry import BUILT_IN, REGISTRY, register

SCRIPT = "__seriatim_script__"
"""The name of the module of a script that is loaded by its path."""
_importing: list[str] = []
"""Files that are being imported for the classes they define."""


class Origin(NamedTuple):
    """Where a registered class is defined.

    Attributes:
        name: the name it is registered under.
        module: the name of its module; None for a script, which is loaded by its path.
        qualname: the name of the class in its module.
        path: the file of the module.
    """

    name: str
    module: str | None
    qualname: str
    path: str


def registered() -> list[str]:
    """The names that were registered beside those of the library."""
    return [name for name, cls in REGISTRY.items() if BUILT_IN.get(name) is not cls]


def origin_of(name: str) -> Origin:
    """Where the class that is registered under ``name`` is defined.

    Raises:
        InputError: another process could not import it from there.
    """
    cls = REGISTRY[name]
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None)
    what = f"layer {name!r}: {cls.__qualname__} is defined in"
    remedy = "which other processes cannot import; move it to the top level of a file, for instance cells.py"
    if "<locals>" in cls.__qualname__:
        raise InputError(f"{what} a function, {remedy}")
    if module is None or path is None or not Path(path).is_file() or _attribute(module, cls.__qualname__) is not cls:
        raise InputError(f"{what} a notebook or an interactive session, {remedy}")
    known: str | None = cls.__module__
    if known == "__main__":
        spec = getattr(module, "__spec__", None)  # set where a module is run with python -m
        known = None if spec is None else str(spec.name)
    return Origin(name, known, cls.__qualname__, str(Path(path).resolve()))


def import_origins(origins: Sequence[Origin], search_path: Sequence[str]) -> None:
    """Imports classes in this process, and registers them under their names.

    Args:
        origins: of the classes.
        search_path: folders to look for modules in, after those of this process.

    Raises:
        InputError: a file that cannot be imported, or does not define the class.
    """
    sys.path.extend(folder for folder in search_path if folder not in sys.path)
    for origin in origins:
        with _importing_file(origin.path):
            module = _import(origin)
        cls = _attribute(module, origin.qualname)
        if cls is None:
            raise InputError(f"{origin.path}: does not define {origin.qualname}, the class of layer {origin.name!r}")
        if REGISTRY.get(origin.name) is not cls:
            register(origin.name, cls)


def refuse_while_importing(what: str) -> None:
    """Raises InputError where a script trains while it is imported only for the classes that it defines."""
    if _importing:
        raise InputError(
            f"{_importing[-1]}: calls {what} when it is imported; put the call below: if __name__ == '__main__':"
        )


def _import(origin: Origin) -> ModuleType:
    try:
        if origin.module is None:
            return _load_script(origin.path)
        module = importlib.import_module(origin.module)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{origin.path}: cannot be imported for layer {origin.name!r} ({type(error).__name__}: {error})"
        ) from None
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != Path(origin.path):
        raise InputError(
            f"layer {origin.name!r}: module {origin.module} is {found} in the training process, not {origin.path}; "
            "rename one of the files"
        )
    return module


def _load_script(path: str) -> ModuleType:
    """Runs a script under a name other than ``__main__``, so that its main part is left out."""
    if SCRIPT in sys.modules:
        return sys.modules[SCRIPT]
    spec = importlib.util.spec_from_file_location(SCRIPT, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importing_file(path: str) -> Iterator[None]:
    _importing.append(path)
    try:
        yield
    finally:
        _importing.pop()


def _attribute(module: ModuleType, qualname: str) -> type | None:
    """The class with a dotted name in a module; None where there is none."""
    found: object = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
