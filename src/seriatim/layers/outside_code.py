"""Import a layer or a cell from a user's own code: ``cells.py:FastSlow`` or ``package.module:FastSlow``.

The text before the last colon names a Python file or a module, the text after it a class. A file is imported under a
name of its own, so that two files with the same name do not collide; the folder of the file is added to the end of
`sys.path`, as Python does for a script. Whatever is wrong with the code becomes one line that names the file.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from ..core.contract import Architecture
from ..core.errors import InputError, nearest
from ..storage.files import open_regular
from .registry import is_architecture, place_of

PREFIX = "seriatim_code_"
"""The beginning of the names of modules that were imported from a file."""
_importing: list[str] = []
"""Files whose code is running because a class is imported from them."""


class Reference(NamedTuple):
    """A class ``qualname`` in ``source``, the path of a Python file or the dotted name of a module."""

    source: str
    qualname: str

    @property
    def is_file(self) -> bool:
        """Whether the source is a file rather than a module."""
        return self.source.endswith(".py") or "/" in self.source or "\\" in self.source


def is_reference(name: str) -> bool:
    """Return whether the name of a layer refers to code outside the library."""
    return ":" in name or name.endswith(".py")


def parse_reference(text: str) -> Reference:
    """Split ``cells.py:FastSlow`` at its last colon; raise InputError if it has no source or no class."""
    source, _, qualname = text.rpartition(":")
    if not source or not all(part.isidentifier() for part in qualname.split(".")):
        raise InputError(f"layer {text!r}: not of the form FILE:Class; write for instance cells.py:FastSlow")
    return Reference(source, qualname)


def import_reference(text: str) -> Architecture:
    """Import the class that ``FILE:Class`` or ``module:Class`` names; raise InputError if it is no layer or cell."""
    reference = parse_reference(text)
    path = Path(reference.source)
    if not reference.is_file and not path.is_file():
        return class_of(import_module(reference.source), reference.qualname)
    if path.suffix != ".py" or not path.is_file():
        problem = "a folder" if path.is_dir() else "no such file" if not path.exists() else "not a Python file"
        raise InputError(f"{path}: {problem}; give a Python file, for instance --layer cells.py:FastSlow")
    return class_of(import_file(path), reference.qualname)


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module, or raise InputError; a file with the same bytes is run once."""
    path = path.resolve()
    name = PREFIX + hashlib.sha256(f"{path} {digest_of(path)}".encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _add_to_path(path.parent)
    try:
        with _importing_from(str(path)):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_module(name: str, path: Path | None = None) -> ModuleType:
    """Import a module by its dotted name, from `sys.path` or the current folder, or raise InputError.

    If ``path`` is given and the name leads to another file, nothing is imported.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r} is not the name of a module; give a file, for instance cells.py:FastSlow")
    _add_to_path(Path.cwd() if path is None else path.parents[name.count(".") + (path.name == "__init__.py")])
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    spec = getattr(sys.modules.get(top), "__spec__", None) or PathFinder.find_spec(top)
    if spec is None:
        raise _not_found(name)
    places = [place for place in (spec.origin, *(spec.submodule_search_locations or ())) if place]
    if path is not None and not any(path.is_relative_to(Path(place).resolve()) for place in places):
        raise InputError(
            f"{path}: the name {name} leads to {next(iter(places), 'another module')} in this process; "
            "rename one of the files"
        )
    with _importing_from(name if path is None else str(path)):
        return importlib.import_module(name)


def class_of(module: ModuleType, qualname: str) -> Architecture:
    """Return a layer or cell of a module, or raise InputError if there is none of this name."""
    where = getattr(module, "__file__", None) or module.__name__
    value = attribute(module, qualname)
    if value is None:
        classes = {key: cls for key, cls in vars(module).items() if is_architecture(cls) and not key.startswith("_")}
        names = [key for key, cls in classes.items() if cls.__module__ == module.__name__] or list(classes)
        hint = nearest(qualname, names) if names else "define a subclass of seriatim.RecurrentCell in it"
        raise InputError(f"{where}: does not define the class {qualname} when it is imported; {hint}")
    if not is_architecture(value):
        raise InputError(
            f"{place_of(value) or where}: {qualname} is neither a cell nor a layer; derive it from "
            "seriatim.RecurrentCell or seriatim.SequenceLayer"
        )
    return value


def attribute(module: ModuleType, qualname: str) -> object | None:
    """Return the value of a dotted name in a module, or None if there is none."""
    value: object = module
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal, or raise InputError if it cannot be read."""
    try:
        with open(open_regular(Path(path)), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); restore the file") from None


def refuse_while_importing(call: str) -> None:
    """Raise InputError where code that is imported only for a class starts a training itself."""
    if _importing:
        raise InputError(
            f"{_importing[-1]}: calls {call} when it is imported; put the call below: if __name__ == '__main__':"
        )


class _SourceLoader(SourceFileLoader):
    """Compiles the source itself: bytecode in ``__pycache__`` need not be of the file whose digest was checked."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextlib.contextmanager
def _importing_from(source: str) -> Iterator[None]:
    """Run outside code: turn its errors into one line, and keep what it prints off standard output."""
    _importing.append(source)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == source:
            raise _not_found(source) from None
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        reason = ": ".join([type(error).__name__, *text.splitlines()[:1]])
        raise InputError(f"{line_of(error, source)}: cannot be imported ({reason}); correct this line") from None
    finally:
        _importing.pop()


def line_of(error: BaseException, source: str, *, default: str = "") -> str:
    """Return the line of an error, as ``FILE:LINE``: the innermost line of the file itself, else of its callee.

    With a ``default``, an error that no line of the file has raised gives the default.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    lines = [frame for frame in frames if frame.filename == source] or ([] if default else frames)
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines else default or source


def _not_found(module: str) -> InputError:
    return InputError(f"module {module!r} cannot be found; give a file, for instance cells.py:FastSlow")


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
