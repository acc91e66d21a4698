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
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from ..core.contract import RecurrentCell, SequenceLayer
from ..core.errors import InputError, nearest

PREFIX = "seriatim_code_"
"""How the names of modules begin that were imported from a file."""
_importing: list[str] = []
"""Files whose code is running because a class is imported from them."""


class Reference(NamedTuple):
    """A class in a file or a module.

    Attributes:
        source: the path of a Python file, or the dotted name of a module.
        qualname: the name of the class.
    """

    source: str
    qualname: str

    @property
    def is_file(self) -> bool:
        """Whether the source is a file rather than a module."""
        return self.source.endswith(".py") or "/" in self.source or "\\" in self.source


def is_reference(name: str) -> bool:
    """Return whether the name of a layer refers to code outside the library."""
    return ":" in name


def parse_reference(text: str) -> Reference:
    """Split ``cells.py:FastSlow`` at its last colon.

    Raises:
        InputError: the text has no source or no class.
    """
    source, _, qualname = text.rpartition(":")
    if not source or not qualname or not all(part.isidentifier() for part in qualname.split(".")):
        raise InputError(f"layer {text!r}: not of the form FILE:Class; write for instance cells.py:FastSlow")
    return Reference(source, qualname)


def import_reference(text: str) -> type[SequenceLayer] | type[RecurrentCell]:
    """Import the class that ``FILE:Class`` or ``module:Class`` names.

    Raises:
        InputError: the file or module does not exist or cannot be imported, has no such class, or the class is neither
            a layer nor a cell.
    """
    reference = parse_reference(text)
    if reference.is_file:
        path = Path(reference.source)
        if path.suffix != ".py" or not path.is_file():
            problem = "a folder" if path.is_dir() else "no such file" if not path.exists() else "not a Python file"
            raise InputError(f"{path}: {problem}; give a Python file, for instance --layer cells.py:FastSlow")
        module = import_file(path)
    elif Path(reference.source).is_file():
        raise InputError(f"{reference.source}: not a Python file (.py)")
    else:
        module = import_module(reference.source)
    return class_of(module, reference.qualname)


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module; a file with the same bytes is run once.

    Raises:
        InputError: the file cannot be imported; the message names the line.
    """
    path = path.resolve()
    name = PREFIX + hashlib.sha256(f"{path} {digest_of(path)}".encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        with _importing_from(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_module(name: str, path: Path | None = None) -> ModuleType:
    """Import a module by its dotted name, from `sys.path` or the current folder.

    Args:
        name: the dotted name.
        path: the file that the module must have; nothing is imported if the name leads to another file.

    Raises:
        InputError: there is no such module, it cannot be imported, or it is in another file than ``path``.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r} is not the name of a module; give a file, for instance cells.py:FastSlow")
    root = Path.cwd() if path is None else _root_of(name, path)
    if str(root) not in sys.path:
        sys.path.append(str(root))
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    spec = None if top in sys.modules else PathFinder.find_spec(top)
    if top not in sys.modules and spec is None:
        raise InputError(f"module {name!r} cannot be found; give a file, for instance cells.py:FastSlow")
    if path is not None:
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else _places(top)
        if not any(place and path.is_relative_to(Path(place).resolve()) for place in places):
            raise InputError(
                f"{path}: the name {name} leads to {next(filter(None, places), 'another module')} in this process; "
                "rename one of the files"
            )
    with _importing_from(name if path is None else str(path)):
        return importlib.import_module(name)


def class_of(module: ModuleType, qualname: str) -> type[SequenceLayer] | type[RecurrentCell]:
    """Return a layer or cell of a module.

    Raises:
        InputError: there is no such name, or it is not the class of a layer or a cell.
    """
    where = getattr(module, "__file__", None) or module.__name__
    cls = attribute(module, qualname)
    if cls is None:
        names = [name for name, value in vars(module).items() if _is_architecture(value) and not name.startswith("_")]
        names = [name for name in names if vars(module)[name].__module__ == module.__name__] or names
        hint = nearest(qualname, names) if names else "define a subclass of seriatim.RecurrentCell in it"
        raise InputError(f"{where}: does not define the class {qualname}; {hint}")
    if not _is_architecture(cls):
        raise InputError(
            f"{where}: {qualname} is neither a cell nor a layer; derive it from seriatim.RecurrentCell or "
            "seriatim.SequenceLayer"
        )
    return cls  # type: ignore[return-value]


def attribute(module: ModuleType, qualname: str) -> object | None:
    """Return what a dotted name stands for in a module; None where there is nothing."""
    value: object = module
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); restore the file") from None


def refuse_while_importing(call: str) -> None:
    """Raise InputError where code that is imported only for a class starts a training itself."""
    if _importing:
        raise InputError(
            f"{_importing[-1]}: calls {call} when it is imported; put the call below: if __name__ == '__main__':"
        )


class _SourceLoader(SourceFileLoader):
    """Compiles the source itself: bytecode in ``__pycache__`` need not be of the file whose digest was checked."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


class _importing_from(contextlib.AbstractContextManager[None]):  # noqa: N801
    """Runs outside code: turns its errors into one line, and keeps what it prints off standard output."""

    def __init__(self, source: str) -> None:
        self.source, self.redirect = source, contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> None:
        _importing.append(self.source)
        self.redirect.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.redirect.__exit__(None, None, None)
        _importing.pop()
        if error is None or isinstance(error, InputError | KeyboardInterrupt):
            return
        if isinstance(error, ModuleNotFoundError) and error.name == self.source:
            raise InputError(f"module {self.source!r} cannot be found; give a file, for instance cells.py:FastSlow")
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        reason = ": ".join([type(error).__name__, *text.splitlines()[:1]])
        raise InputError(f"{_place(error, self.source)}: cannot be imported ({reason}); correct this line") from None


def _place(error: BaseException, source: str) -> str:
    """Return the line of an error, as ``FILE:LINE``: the innermost line of the file itself, else of its callee."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    frames = [frame for frame in frames if frame.filename != __file__]
    lines = [frame for frame in frames if frame.filename == source] or frames
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines else source


def _is_architecture(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, SequenceLayer | RecurrentCell)


def _root_of(name: str, path: Path) -> Path:
    """Return the folder from which a module is imported, given its file."""
    parts = len(name.split(".")) + (path.name == "__init__.py")
    return path.parents[parts - 1]


def _places(top: str) -> list[str]:
    """Return the file of an imported module and the folders of an imported package."""
    module = sys.modules[top]
    return [str(place) for place in (getattr(module, "__file__", None), *getattr(module, "__path__", ())) if place]
