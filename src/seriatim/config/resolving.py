"""Reading a configuration from a YAML file, a dict, or dotted options on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import ValidationError

from ..core.errors import MalformedError, MismatchError, RangeError, UnknownNameError, nearest, shown
from ..storage.files import read_text
from ..storage.plain_yaml import load_plain
from .config_errors import explain, explain_all
from .sections import Config, Fields, Section

MAX_BYTES = 1 << 16
"""The largest size of a configuration."""
Settings = TypeVar("Settings", bound="Section")
ConfigSource: TypeAlias = Config | Mapping[str, Any] | str | Path
"""A configuration, a dict, the path of a YAML file, or ``builtin:`` and the name of a recipe, such as ``awd-lstm``."""
BUILT_IN = "builtin:"
RECIPES = Path(__file__).parent.parent / "recipes"
"""The folder of the recipes: configurations that come with the library."""


def resolve(source: ConfigSource, overrides: Mapping[str, object] | None = None) -> Config:
    """Return a `Config`; ``overrides``, values by dotted name, are applied last.

    Raises:
        InputError: an unknown key (the message names the nearest one) or a value that does not fit.
    """
    tree, where = _read(source, overrides or {})
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise RangeError(where + explain(error)) from None


def resolve_leniently(source: ConfigSource, overrides: Mapping[str, object] | None = None) -> tuple[Config, list[str]]:
    """Return a `Config` with the default for every field that does not fit, and a message for each of them.

    Raises:
        InputError: the file cannot be read.
    """
    tree, where = _read(source, overrides or {})
    try:
        return Config.model_validate(tree), []
    except ValidationError as error:
        for problem in error.errors():
            _drop(tree, [str(part) for part in problem["loc"]])
        return Config.model_validate(tree), [where + problem for problem in explain_all(error)]


def _drop(tree: Fields, path: list[str]) -> None:
    """Remove a field that does not fit, or the value that takes the place of its section."""
    for key in path[:-1]:
        if not isinstance(tree.get(key), dict):
            tree.pop(key, None)
            return
        tree = tree[key]
    tree.pop(path[-1], None)


def _read(source: ConfigSource, overrides: Mapping[str, object]) -> tuple[Fields, str]:
    """Return all fields that are given, and the beginning of messages about them."""
    where = ""
    if isinstance(source, Config):
        tree = _given(source)
    elif isinstance(source, Mapping):
        tree = _copy(source)
    elif not isinstance(source, str | Path):
        raise RangeError(f"config: {shown(source)} is not one; give a Config, a dict or the path of a YAML file")
    else:
        tree, where = read_yaml(_path_of(source)), f"{source}: "
        task = overrides.get("task")
        if where.startswith(BUILT_IN) and task not in (None, tree["task"]):
            raise MismatchError(f"{where}a recipe for {tree['task']}, not for {task}; leave out --config")
    for name, value in overrides.items():
        _set(tree, name, value)
    return tree, where


def _given(section: Section) -> Fields:
    """Return the fields of a section that were given, or changed in place; others keep their defaults.

    A task can choose what nobody gave, such as the layer.
    """
    tree: Fields = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            tree[name] = _given(value)
        elif name in section.model_fields_set or value != field.get_default(call_default_factory=True):
            tree[name] = _copy(value) if isinstance(value, Mapping) else value
    return tree


def _path_of(source: str | Path) -> Path:
    """Return the path of a configuration; raise InputError if it names a recipe that does not exist."""
    if not str(source).startswith(BUILT_IN):
        return Path(source)
    name, names = str(source).removeprefix(BUILT_IN), sorted(path.stem for path in RECIPES.glob("*.yaml"))
    if name not in names:
        raise UnknownNameError(f"no recipe is called {name!r}; {nearest(name, names)}")
    return RECIPES / f"{name}.yaml"


def read_settings(kind: type[Settings], settings: Mapping[str, object]) -> Settings:
    """Return keyword arguments as a settings object; raise InputError if one does not fit."""
    for name in settings:
        if name not in kind.model_fields:
            raise UnknownNameError(f"{name}: no such setting; {nearest(name, list(kind.model_fields))}")
    try:
        return kind.model_validate(dict(settings))
    except ValidationError as error:
        raise RangeError(explain(error)) from None


def changed(config: Config, values: Mapping[str, object]) -> Config:
    """Return a configuration with other values of some fields, by dotted name; see `Config.replaced`.

    Raises:
        InputError: a value that does not fit.
    """
    try:
        return config.replaced(values)
    except ValidationError as error:
        section = next(iter(values)).rpartition(".")[0] if len(values) == 1 else ""
        raise RangeError(f"{section}{'.' * bool(section)}{explain(error)}") from None


def read_yaml(path: Path) -> Fields:
    """Read a YAML mapping; nothing in it is executed.

    Raises:
        InputError: the file is missing, too large, not YAML, or not a mapping of plain values.
    """
    text = read_text(path, max_bytes=MAX_BYTES, remedy="give a YAML file")
    try:
        tree = load_plain(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", error)
        raise MalformedError(f"{path}{line}: not valid YAML ({problem}); correct this line") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise MalformedError(f"{path}:1: a configuration is a mapping of sections; see config.yaml of any run")
    return tree


def parse_value(text: str) -> object:
    """Return the value of a command-line option, read as a value in YAML: number, true, null, list or text."""
    if len(text) > MAX_BYTES:
        return text
    try:
        return load_plain(text)
    except (yaml.YAMLError, ValueError):
        return text


def _copy(tree: Mapping[str, object]) -> Fields:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _set(tree: Fields, name: str, value: object) -> None:
    *path, last = name.split(".")
    for key in path:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise RangeError(f"{name}: {key} is a value, not a section; remove the value")
        tree = branch
    tree[last] = value
