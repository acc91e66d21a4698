"""What a safetensors file says it holds, read before anything is made of it.

The file begins with the length of its header (8 bytes, little endian) and the header, in JSON: a name to the type, the
shape and the place of a tensor; and some texts. That places and shapes fit one another and the file is checked by the
safetensors library; here, that there is a header of a size that ours have.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import InputError
from .safe_files import open_regular

LONGEST = 1 << 22
"""Bytes of a header, at most: some 30,000 tensors."""


class Entry(NamedTuple):
    """One tensor: its type as the format names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Header(NamedTuple):
    """Tensors by name, and the texts beside them."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """The header of a file.

    Raises:
        InputError: missing, no regular file, or damaged.
    """
    try:
        with open(open_regular(path), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST, os.fstat(file.fileno()).st_size - 8):
                raise ValueError(f"a header of {length:,} bytes")
            return _header(json.loads(file.read(length), object_pairs_hook=_once))
    except OSError as error:
        raise InputError(
            f"{path}: missing or unreadable ({error.strerror}); is this the folder of a whole run?"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); restore it, or train again") from None


def _header(kept: dict[str, Any]) -> Header:
    metadata = kept.pop("__metadata__", None) or {}
    if not {str}.issuperset(map(type, metadata.values())):
        raise ValueError("texts that are none")
    return Header({name: _entry(name, given) for name, given in kept.items()}, metadata)


def _entry(name: str, given: dict[str, Any]) -> Entry:
    """One tensor of a header."""
    shape = given["shape"]
    if not {int}.issuperset(map(type, shape)) or any(not 0 <= size < 2**48 for size in shape):
        raise ValueError(f"{name!r} has a shape that is none")
    return Entry(str(given["dtype"]), tuple(shape))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which no name stands there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found
