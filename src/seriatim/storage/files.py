"""Files: written completely or not at all, read safely, as text, JSON and plain YAML; and locks of folders.

Anybody may have written the files that are read here: they must be regular files of a bounded size, and only data.
"""

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from filelock import FileLock, Timeout
from yaml.constructor import ConstructorError

from ..core.errors import BusyError, DamagedError, SizeError, UnreadableError, UnwritableError, shown

LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # those that JSON may hold as they are
PARTIAL = ".partial"  # the suffix of files that are not complete


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file there replaces ``path``, or is removed after an error, which names ``path``."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")  # unique among processes
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(temporary)):
            raise  # about another file
        number = errno.ENOSPC if error.errno is None else error.errno  # NumPy reports a full disk without a number
        raise OSError(number, os.strerror(number or 0), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name != "posix":  # other systems cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text, completely or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to a file without a buffer, into which one call may write a part only if the disk is nearly full."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents; the target of a link is not removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def json_line(value: object) -> str:
    """Return JSON on one line, also for readers that end lines as `str.splitlines` does; see `to_json`."""
    text = json.dumps(json_value(value), ensure_ascii=False, allow_nan=False)
    return LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON in which infinity and NaN, which JSON does not have, are null."""
    return json.dumps(json_value(value), indent=indent, allow_nan=False)


def json_value(value: object) -> object:
    """Return a value as JSON holds it: numbers that are infinite or NaN are None, also in lists and dictionaries."""
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


HEAD_BYTES, GZIP = 4096, b"\x1f\x8b"
"""Number of bytes at the beginning of a file that tell its kind, and how compressed files begin."""


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a regular file or a link to one, without waiting for a pipe.

    Raises:
        OSError, ValueError: the file cannot be opened, it is not a regular file, or the path is not valid.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("not a regular file")
    return descriptor


def read_head(path: Path) -> bytes | None:
    """Return the first bytes of a regular file, decompressed (gzip) where it is compressed; None if it has none."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(HEAD_BYTES)
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES) if head[:2] == GZIP else head
    except (OSError, ValueError, zlib.error):  # unreadable, or a pipe or a device
        return None


def read_text(path: Path, *, max_bytes: int, remedy: str) -> str:
    """Read a UTF-8 text file of at most ``max_bytes``; ``remedy`` ends the message if that is not possible.

    Raises:
        InputError: the file is missing, not a regular file, too large, or not text.
    """
    try:
        with open(open_regular(path), encoding="utf-8") as file:
            text = file.read(max_bytes + 1) if os.fstat(file.fileno()).st_size <= max_bytes else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"{path}: cannot be read ({reason}); {remedy}") from None
    if text is None or len(text) > max_bytes:
        raise SizeError(f"{path}: larger than {max_bytes:,} bytes, the limit for such a file; {remedy}")
    return text


def read_json(path: Path, *, max_bytes: int, remedy: str) -> Any:
    """Return the value of a JSON file; as `read_text`, and raise InputError if it is not JSON."""
    text = read_text(path, max_bytes=max_bytes, remedy=remedy)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedError(f"{path}: damaged, or not JSON; {remedy}") from None


class DuplicateFieldError(ValueError):
    """A JSON object has a field twice; a JSON reader would silently drop one of the values."""


def unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the fields of a JSON object; raise DuplicateFieldError if two have the same name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise DuplicateFieldError(f"duplicate field {shown(counts.most_common(1)[0][0])}")
    return fields


# YAML restricted to plain values: tags, anchors, aliases, merge keys and duplicate keys are refused. Numbers are
# decimal, as in YAML 1.2. PyYAML implements YAML 1.1, in which ``010`` is 8, ``1:30`` is 90, and ``yes``, ``no``,
# ``on`` and ``off`` are truth values; here ``010`` is 10 and the others are text.


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
DIGITS = "-+0123456789"
SCALARS = (
    (INT, r"[-+]?[0-9]+", DIGITS),
    (FLOAT, r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", DIGITS + "."),
    (FLOAT, r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
)
"""The values without quotes that are not text: tag, form and possible first characters."""
MAX_DEPTH = 20  # the deepest nesting of mappings and lists
MAX_DIGITS = 40  # the largest number of characters of a number


class _Loader(yaml.SafeLoader):
    """The safe loader of PyYAML without features that only a hostile file needs."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (an attribute of PyYAML)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused("anchors and aliases are not supported; write the value instead", event)
        if getattr(event, "tag", None) is not None:
            raise _refused(f"tags such as {event.tag[:40]!r} are not supported; write the plain value", event)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _refused(f"nested more than {MAX_DEPTH} levels deep", event)
        node = super().compose_node(parent, index)
        assert node is not None
        self.depth -= 1
        if node.tag in (INT, FLOAT) and len(node.value) > MAX_DIGITS:
            raise _refused(f"a number of more than {MAX_DIGITS} characters", node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, object]:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != self.DEFAULT_SCALAR_TAG:
                raise _refused("a key that is not text", key)
            if key.value in keys:
                raise _refused(f"duplicate key {key.value[:40]!r}", key)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full, and quotes text that any version of YAML could read as a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Loader.add_constructor(INT, lambda _, node: int(node.value))  # PyYAML would read leading zeros as octal
for _tag, _form, _first in SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"(?:{_form})$"), list(_first))


def dump_plain(tree: object) -> str:
    """Return a tree of plain values as YAML that `load_plain` reads."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _refused(problem: str, where: Any) -> ConstructorError:
    """Return the error for an event or a node of a YAML file."""
    return ConstructorError(None, None, problem, where.start_mark)


def load_plain(text: str) -> object:
    """Return the only document of a text.

    Raises:
        yaml.YAMLError, ValueError: the text is not YAML, or has more than plain values.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


# Locks of folders


LOCK = ".seriatim.lock"
"""An empty file that is never removed. The system releases the lock of a process that ends."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder, which is created; raise InputError if that is impossible."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise BusyError(f"{folder}: another process is writing this run; wait for it, or use another folder") from None
    except NotImplementedError:  # raised by some versions of filelock
        warnings.warn(
            f"{folder}: this file system does not support file locks; make sure that no other process writes there",
            stacklevel=3,
        )
    except OSError as error:
        raise UnwritableError(f"{folder}: cannot be written ({error.strerror}); check it, or use another one") from None

    # Where there are no locks, as on some network file systems, work goes on: few users start two processes.
    try:
        yield
    finally:
        lock.release()


def refuse_locked(folder: Path) -> None:
    """Raise InputError if another process is writing into a folder; otherwise change nothing."""
    if (folder / LOCK).exists():
        with locked(folder):
            pass
