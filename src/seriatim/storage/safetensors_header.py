"""The header of a safetensors file, read and checked before the tensors are loaded.

The file begins with the length of the header (8 bytes, little endian), and the header in JSON: the type, shape and
place of each tensor by name, and some texts. The safetensors library checks that places and shapes fit each other and
the file. This module checks that there is a header of a reasonable size.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import InputError
from .safe_files import open_regular

MAX_HEADER_BYTES = 1 << 22
"""The largest size of a header: about 30,000 tensors."""


class Entry(NamedTuple):
    """The type of a tensor, as the format names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Header(NamedTuple):
    """The tensors by name, and the texts of the file."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read the header of a file.

    Raises:
        InputError: the file is missing, not a regular file, or damaged.
    """
    try:
        with open(open_regular(path), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size - 8):
                raise ValueError(f"a header of {length:,} bytes")
            return _header(json.loads(file.read(length), object_pairs_hook=_unique))
    except OSError as error:
        raise InputError(
            f"{path}: missing or unreadable ({error.strerror}); check that the folder of the run is complete"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); restore it, or train again") from None


def _header(fields: dict[str, Any]) -> Header:
    metadata = fields.pop("__metadata__", None) or {}
    if not {str}.issuperset(map(type, metadata.values())):
        raise ValueError("metadata that is not text")
    return Header({name: _entry(name, values) for name, values in fields.items()}, metadata)


def _entry(name: str, values: Mapping[str, Any]) -> Entry:
    shape = values["shape"]
    if not {int}.issuperset(map(type, shape)) or any(not 0 <= size < 2**48 for size in shape):
        raise ValueError(f"{name!r} has an invalid shape")
    return Entry(str(values["dtype"]), tuple(shape))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object, and refuse duplicate names."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a duplicate name")
    return fields
