"""Code outside the library: import a user's own layers, remember where they came from, and ask before running them.

``--layer cells.py:FastSlow`` or ``package.module:FastSlow``: the text before the last colon names a Python file or a
module, the text after it a class. A file is imported under a name of its own, so that two files with the same name do
not collide; the folder of the file is added to the end of `sys.path`, as Python does for a script. Whatever is wrong
with the code becomes one line that names the file.

A run that was trained with somebody's own layer records in ``code.json`` where the class is defined, with the SHA-256
digest of this file, but not of what it imports. Opening a run imports nothing: the user allows it with ``--allow-code``
(``allow_code=True``), and even then the file must have the recorded digest, unless the user accepts a changed file with
``--allow-changed-code`` (``allow_code="changed"``).
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal, NamedTuple, TypeAlias

from ..config import Config
from ..core import errors
from ..core.contract import Architecture
from ..core.errors import nearest
from ..storage.files import open_regular, read_json, write_whole
from ..storage.written_folders import RUN, record, remove_written
from .registry import (
    BUILT_IN,
    REGISTRY,
    check_constructor,
    entry_points_by_name,
    is_architecture,
    location_of,
    register,
    split_names,
)

PREFIX = "seriatim_code_"
"""The beginning of the names of modules that were imported from a file."""
_importing: list[str] = []
"""Files whose code is running because a class is imported from them."""
CODE = "code.json"
"""The file of a run that says which code outside the library it needs."""
FORMAT = "seriatim code 1"
LARGEST = 1 << 20
SHOWN = 12
"""Digits of a digest that a message shows."""
AllowCode: TypeAlias = bool | Literal["changed"]
"""Whether code outside the library may be imported; ``"changed"`` also if its file has changed since the training."""
_digests: dict[type, str] = {}
"""The digests of the files of classes as they were imported: a file may be edited while its class trains."""
_imported: set[str] = set()
"""Names that were registered here rather than by a call of `register`."""


# ---- import a class


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
    if not source or not all(component.isidentifier() for component in qualname.split(".")):
        raise errors.MalformedError(f"layer {text!r}: not of the form FILE:Class; write for instance cells.py:FastSlow")
    return Reference(source, qualname)


def import_reference(text: str) -> Architecture:
    """Import the class that ``FILE:Class`` or ``module:Class`` names; raise InputError if it is no layer or cell."""
    reference = parse_reference(text)
    path = Path(reference.source)
    if not reference.is_file and not path.is_file():
        return class_of(import_module(reference.source), reference.qualname)
    if path.suffix != ".py" or not path.is_file():
        problem = "a folder" if path.is_dir() else "no such file" if not path.exists() else "not a Python file"
        raise errors.MissingError(f"{path}: {problem}; give a Python file, for instance --layer cells.py:FastSlow")
    return class_of(import_file(path), reference.qualname)


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module, or raise InputError; a file with the same bytes is run once."""
    path = path.resolve()

    # The name tells versions of the file apart, so that classes of an older one can still be in use.
    name = PREFIX + hashlib.sha256(f"{path} {digest_of(path)}".encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None

    # Code that runs may look up its own module, as dataclasses do, so that the module is listed before it is complete.
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
    if not all(component.isidentifier() for component in name.split(".")):
        raise errors.MalformedError(
            f"{name!r} is not the name of a module; give a file, for instance cells.py:FastSlow"
        )
    _add_to_path(Path.cwd() if path is None else path.parents[name.count(".") + (path.name == "__init__.py")])
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    spec = getattr(sys.modules.get(top), "__spec__", None) or PathFinder.find_spec(top)
    if spec is None:
        raise _not_found(name)
    locations = [location for location in (spec.origin, *(spec.submodule_search_locations or ())) if location]
    if path is not None and not any(path.is_relative_to(Path(location).resolve()) for location in locations):
        raise errors.ConflictError(
            f"{path}: in this process, {name} is {next(iter(locations), 'another module')}; rename one of the files"
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
        raise errors.MissingError(f"{where}: does not define the class {qualname} when it is imported; {hint}")
    if not is_architecture(value):
        raise errors.ContractError(
            f"{location_of(value) or where}: {qualname} is neither a cell nor a layer; derive it from "
            "seriatim.RecurrentCell or seriatim.SequenceLayer"
        )
    return value


def attribute(module: ModuleType, qualname: str) -> object | None:
    """Return the value of a dotted name in a module, or None if there is none."""
    value: object = module
    for component in qualname.split("."):
        value = getattr(value, component, None)
    return value


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal, or raise InputError if it cannot be read."""
    try:
        with open(open_regular(Path(path)), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.UnreadableError(f"{path}: cannot be read ({reason}); restore the file") from None


def refuse_while_importing(call: str) -> None:
    """Raise InputError where code that is imported only for a class starts a training itself."""
    if _importing:
        raise errors.ContractError(
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
    except (errors.InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == source:
            raise _not_found(source) from None
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        reason = ": ".join([type(error).__name__, *text.splitlines()[:1]])
        raise errors.ContractError(
            f"{line_of(error, source)}: cannot be imported ({reason}); correct this line"
        ) from None
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


def _not_found(module: str) -> errors.InputError:
    return errors.MissingError(f"module {module!r} cannot be found; give a file, for instance cells.py:FastSlow")


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# ---- where a class was defined, and the names under which the registry has it


class Origin(NamedTuple):
    """Where a class outside the library is defined."""

    name: str  # of the layer in the registry
    module: str | None  # its dotted name; None for a file that is imported by its path
    qualname: str  # of the class in its module
    path: str  # the file of the module
    sha256: str = ""  # of this file

    def to_record(self) -> dict[str, str | None]:
        """Return the fields as a file records them."""
        record = self._asdict()
        record["class"] = record.pop("qualname")
        return record

    @classmethod
    def from_record(cls, record: object, source: str | Path) -> "Origin":
        """Read the fields that `to_record` wrote to the file ``source``, or raise InputError if one is damaged."""
        record = record if isinstance(record, dict) else {}
        module, *texts = (record.get(key) for key in ("module", "name", "class", "path", "sha256"))
        if not all(isinstance(text, str) for text in texts) or not isinstance(module, str | None):
            raise errors.DamagedError(f"{source}: its record of the code of layers is damaged; restore the file")
        name, qualname, path, sha256 = map(str, texts)
        return cls(name, module, qualname, path, sha256)


def import_references(names: str) -> str:
    """Import the layers of a stack that are written as ``FILE:Class``, and register them under this text.

    Returns:
        The same names without spaces around them.

    Raises:
        InputError: code that cannot be imported, or that defines no such layer.
    """
    listed = [name.strip() for name in names.split(",")]
    for name in filter(is_reference, listed):
        reference = parse_reference(name)
        if name in REGISTRY and reference.is_file and not Path(reference.source).exists():
            origin = origin_of(name)  # of a run in another folder
            if Path(origin.path).is_file() and digest_of(origin.path) == origin.sha256:
                continue
        architecture = import_reference(name)
        check_constructor(architecture)
        _add(name, architecture)
    return ",".join(listed)


def register_reference(text: str) -> str:
    """Import ``FILE:Class`` and register it under the name of the class, which it returns.

    If another class has this name already, the name of the file is put before it. Errors are those of `register` and
    `import_reference`.
    """
    reference, architecture = parse_reference(text), import_reference(text)
    stem = Path(reference.source).stem if reference.is_file else reference.source.rpartition(".")[2]
    short = reference.qualname.rpartition(".")[2]
    free = [name for name in (short, f"{stem}-{short}") if REGISTRY.get(name, architecture) is architecture]
    name = next(iter(free), short)
    if REGISTRY.get(name) is not architecture:
        register(name, architecture)
        _add(name, architecture)
    return name


def _add(name: str, architecture: Architecture) -> None:
    """Register a class that was imported here, and remember the digest of its file."""
    REGISTRY[name] = architecture
    _imported.add(name)
    origin_of(name)


def registered() -> list[str]:
    """Return the names in the registry that are not the library's own."""
    return [name for name, cls in REGISTRY.items() if BUILT_IN.get(name) is not cls]


def outside_names(names: Iterable[str]) -> list[str]:
    """Return the layers of some stacks that are not the library's own, each once."""
    found = dict.fromkeys(layer for name in names for layer in split_names(name))
    return [layer for layer in found if layer not in BUILT_IN]


def stacks_of(config: Config) -> list[str]:
    """Return the stacks of layers that a configuration names: the model's, and the decoder's if it has its own."""
    decoder = config.model.options.get("decoder")
    return [config.model.layer, *([decoder] if isinstance(decoder, str) else [])]


def origin_of(name: str) -> Origin:
    """Return where a registered class is defined, or raise InputError if another process could not import it."""
    cls = REGISTRY[name]
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None) or ""
    if module is None or not Path(path).is_file() or attribute(module, cls.__qualname__) is not cls:
        scope = "a function" if "<locals>" in cls.__qualname__ else "a notebook or an interactive session"
        raise errors.NotSupportedError(
            f"layer {name!r}: {cls.__qualname__} is defined in {scope}, which other processes cannot import; "
            "move it to the top level of a file, for instance cells.py"
        )

    # Other processes know neither this `__main__` nor the names that `import_file` gives; they import the file.
    module_name: str | None = cls.__module__
    if module_name == "__main__":
        spec = getattr(module, "__spec__", None)  # set where a module is run with python -m
        module_name = None if spec is None else str(spec.name)
    elif cls.__module__.startswith(PREFIX):
        module_name = None
    if cls not in _digests:
        _digests[cls] = digest_of(path)
    return Origin(name, module_name, cls.__qualname__, str(Path(path).resolve()), _digests[cls])


def import_origins(origins: Sequence[Origin], search_path: Sequence[str]) -> None:
    """Import classes and register them under their names.

    Folders of the ``search_path`` are looked in for modules after those of this process.

    Raises:
        InputError: a file that cannot be imported, or does not define the class.
    """
    sys.path.extend(folder for folder in search_path if folder not in sys.path)
    for origin in origins:
        path = Path(origin.path)
        if origin.sha256 and path.is_file() and digest_of(path) != origin.sha256:
            raise errors.MismatchError(f"{path}: changed while its class {origin.qualname} was in use; start again")
        module = import_file(path) if origin.module is None else import_module(origin.module, path)
        _add(origin.name, class_of(module, origin.qualname))


def write_origins(folder: Path, names: Iterable[str]) -> None:
    """Record in a run's folder where its layers from outside the library are defined.

    A class of a notebook, which no other process can import, is recorded without a file.
    """
    records = []
    for name in outside_names(names):
        if name in REGISTRY:
            try:
                origin = origin_of(name)
            except errors.InputError:
                origin = Origin(name, None, REGISTRY[name].__qualname__, "")
            records.append(origin.to_record())
    if records:
        record(folder, RUN, CODE)
        write_whole(folder / CODE, json.dumps({"format": FORMAT, "layers": records}, indent=2) + "\n")
    else:
        remove_written(folder, RUN, CODE)


def read_origins(folder: Path) -> dict[str, Origin]:
    """Return where the outside layers of a run are defined, by their names; raise InputError for a damaged record."""
    path = folder / CODE
    if not path.exists():
        return {}
    tree = read_json(path, max_bytes=LARGEST, remedy="restore this file of the run")
    records = tree.get("layers") if isinstance(tree, dict) and tree.get("format") == FORMAT else None
    if not isinstance(records, list):
        raise errors.DamagedError(f"{path}: damaged, or written by another version; restore this file of the run")
    return {origin.name: origin for origin in (Origin.from_record(record, path) for record in records)}


# ---- permission to import what a run needs


def require_code(
    folder: Path, names: Iterable[str], *, allow_code: AllowCode, origins: Mapping[str, Origin] | None = None
) -> None:
    """Make the outside layers of a run or a comparison usable, or say in one line what they need.

    A layer that this process has registered is used as it is. Any other is imported from where the run says, if the
    user allows it and the file has the recorded digest.

    Args:
        folder: of the run, for messages, and for its record of code.
        names: layers, or stacks of layers with commas between their names.
        allow_code: whether code may be imported.
        origins: where classes are defined; None for what the run's folder says.

    Raises:
        InputError: code that is not allowed, missing, changed, or that cannot be imported.
    """
    if allow_code not in (False, True, "changed"):
        raise errors.RangeError(f"allow_code: {allow_code!r} is not one of the choices; give False, True or 'changed'")
    outside = outside_names(names)
    if outside and origins is None:
        origins = read_origins(folder)

    # what this process has registered comes first: it runs already, so that no permission is asked for it
    for name in outside:
        origin = (origins or {}).get(name)
        if name in REGISTRY:
            _check_registered(folder, name, origin, allow_code)
        elif origin is not None:
            _check_allowed(folder, origin, allow_code)
            import_origins([origin._replace(sha256="")], [])
        elif is_reference(name):
            raise errors.MissingError(
                f"{folder / CODE}: missing, or without the layer {name!r}, whose code is not part of the library; "
                "restore this file"
            )
        elif name in entry_points_by_name() and not allow_code:
            raise errors.ForbiddenError(
                f"{folder}: its layer {name!r} is code of an installed package; to run it, add --allow-code "
                "(in Python: allow_code=True)"
            )


def require_recorded_code(folder: Path, names: Iterable[str], *, allow_code: AllowCode) -> None:
    """Do `require_code` for those of some layers that a folder records, if it is the folder of a run at all."""
    origins = read_origins(folder)
    recorded = [name for name in outside_names(names) if name in origins]
    require_code(folder, recorded, allow_code=allow_code, origins=origins)


def _check_allowed(folder: Path, origin: Origin, allow_code: AllowCode) -> None:
    """Raise InputError where code may not be imported: not allowed, missing or changed."""
    if not origin.path:
        raise errors.MissingError(
            f"{folder}: its layer {origin.name!r} is the class {origin.qualname} of a notebook; define the class "
            "again, call seriatim.register and load the run again"
        )
    path = Path(origin.path)
    if not path.is_file():
        raise errors.MissingError(
            f"{path}: missing, and defines the layer {origin.name!r} of {folder}; restore the file"
        )

    # Permission is given for the code of the training, so that a changed file needs one of its own.
    digest = digest_of(path)
    if digest != origin.sha256:
        change = (
            f"{path}: changed since {folder} was trained with its class {origin.qualname} (SHA-256 "
            f"{origin.sha256[:SHOWN]} then, {digest[:SHOWN]} now)"
        )
        if allow_code != "changed":
            accepting = "accept the change with --allow-changed-code (in Python: allow_code='changed')"
            raise errors.MismatchError(f"{change}; restore the file, or {accepting}")
        warnings.warn(f"{change}; the changed file is used", stacklevel=4)
    if not allow_code:
        raise errors.ForbiddenError(
            f"{folder}: needs the class {origin.qualname} of {path}, and opening it would run this file; to allow it, "
            "add --allow-code (in Python: allow_code=True)"
        )


def _check_registered(folder: Path, name: str, origin: Origin | None, allow_code: AllowCode) -> None:
    """Compare a registered class with the code that a run was trained with.

    If they differ, a class that was imported here is refused; for a class that the user registered, a warning is given.
    """
    if origin is None or not origin.sha256 or allow_code == "changed":
        return
    try:
        present = origin_of(name)
    except errors.InputError:  # of a notebook: it has no file to compare
        return
    if present.sha256 == origin.sha256:
        return
    digests = f"SHA-256 {origin.sha256[:SHOWN]} of {origin.path} then, {present.sha256[:SHOWN]} of {present.path} now"
    if name in _imported:
        raise errors.MismatchError(
            f"{folder}: its layer {name!r} was trained with other code than this process has under the name "
            f"({digests}); restore the file, or accept the difference with --allow-changed-code"
        )
    warnings.warn(f"{folder}: its layer {name!r} was trained with other code ({digests})", stacklevel=3)
