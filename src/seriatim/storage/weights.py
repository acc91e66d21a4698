"""Parameters in safetensors files: nothing is unpickled, and every name and shape is checked.

A file begins with the length of its header (8 bytes, little endian), and the header in JSON: the type, shape and
offsets of each tensor by name, and some texts, the metadata. Whoever wrote the configuration beside it, no model is
built that is larger than its file.
"""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import DamagedError, InputError, MismatchError, MissingError
from .files import atomic, open_regular, unique_fields

MAX_HEADER_BYTES = 1 << 22  # the largest size of a header: about 30,000 tensors
HEADER_BYTES = 1 << 16  # the space reserved for the header of a file that is written array by array
TYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
DIGEST, DIGEST_OF_BYTES = "sha256", "sha256 of bytes"
"""The names of two digests in the metadata: of the tensors, and of all bytes that follow the header."""
MAX_CHECKED_BYTES = 1 << 28  # a larger file with a digest of its bytes is not read when it is opened
INCOMPLETE = "check that the folder of the run is complete"


class _Entry(TypedDict):
    """One tensor in the header of a file."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


class _Header(NamedTuple):
    """The type and shape of each tensor, and the texts of a file."""

    tensors: dict[str, tuple[str, tuple[int, ...]]]
    metadata: dict[str, str]


def _read_header(path: Path) -> _Header:
    """Read the header of a file, and check its size and metadata; the safetensors library checks the tensors."""
    try:
        with open(open_regular(path), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size - 8):
                raise ValueError(f"a header of {length:,} bytes")
            fields = json.loads(file.read(length), object_pairs_hook=unique_fields)
        metadata = fields.pop("__metadata__", None) or {}
        if not {str}.issuperset(map(type, metadata.values())):
            raise ValueError("metadata that is not text")
        return _Header({name: (entry["dtype"], tuple(entry["shape"])) for name, entry in fields.items()}, metadata)
    except OSError as error:
        raise MissingError(f"{path}: missing or unreadable ({error.strerror}); {INCOMPLETE}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, problem: object) -> InputError:
    return DamagedError(f"{path}: damaged ({problem}); restore it, or train again")


def save_weights(model: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write every parameter once; tied parameters under their first name."""
    save_tensors({name: value.detach() for name, value in model.named_parameters()}, path, metadata)


def load_weights(model: nn.Module, path: Path) -> None:
    """Read what `save_weights` wrote into ``model``.

    Raises:
        InputError: the file is missing, damaged, not finite, or holds the weights of another model.
    """
    expected = dict(model.named_parameters())
    entries = _read_header(path).tensors
    if differing := sorted(set(entries) ^ set(expected)):
        raise MismatchError(f"{path}: weights of another model ({differing[0]} differs); restore the file of the run")
    for name, parameter in expected.items():
        (dtype, shape), required = entries[name], (TYPES[parameter.dtype], tuple(parameter.shape))
        if (dtype, shape) != required:
            raise MismatchError(
                f"{path}: {name} has shape {shape} of {dtype}, the model needs {required[1]} of {required[0]}; restore "
                "the file of the run"
            )

    # The header is compared first: it is small, and the tensors may be many gigabytes.
    tensors = load_tensors(path)
    refuse_nonfinite(tensors, path)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(tensors[name])


def refuse_nonfinite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise InputError for the first tensor that holds NaN or infinity."""
    for name, values in tensors.items():
        if not is_finite(values):
            raise DamagedError(f"{path}: {name} holds NaN or infinity; restore the file, or train again")


def is_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite, in one pass and without a copy."""
    if not values.is_floating_point() or not values.numel():
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write named tensors with a digest of their values, completely or not at all.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    with atomic(path) as temporary:
        write_safetensors(tensors, temporary, {**(metadata or {}), DIGEST: digest(tensors)})
        _sort_metadata(temporary)


def write_safetensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file; an error of the system is an OSError, and others may read the file as any new file."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # the error number is only in its message
        number = re.search(r"\(os error (\d+)\)", str(error))
        raise (OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error) from None
    path.chmod(mode)  # the library lets only the user read the file


def _sort_metadata(path: Path) -> None:
    """Sort the texts, which safetensors writes in any order, so that equal tensors and texts make equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(ordered) <= size
        file.seek(8)
        file.write(ordered.ljust(size))


def stream_tensors(arrays: Iterable[tuple[str, np.ndarray]], path: Path, metadata: Mapping[str, str]) -> None:
    """Write named arrays one after another, so that only one is in memory; otherwise as `save_tensors`.

    Successive arrays of the same name are joined along their first dimension. The header comes first in the file and
    may end in blanks; it is written last.
    """
    end, sums = 0, hashlib.sha256()
    entries: dict[str, _Entry] = {}
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.seek(HEADER_BYTES)
        for name, values in arrays:
            values.tofile(file)
            sums.update(np.ascontiguousarray(values).data)
            dtype = TYPES[torch.from_numpy(values[:0]).dtype]
            new = _Entry(dtype=dtype, shape=[0, *values.shape[1:]], data_offsets=[end, end])
            entry = entries.setdefault(name, new)
            assert entry["data_offsets"][1] == end  # arrays of one name are successive
            end += values.nbytes
            entry["shape"][0] += len(values)
            entry["data_offsets"][1] = end

        # Only now the sizes are known; the space for them was left at the beginning.
        texts = {**metadata, DIGEST_OF_BYTES: sums.hexdigest()}
        header = json.dumps({"__metadata__": texts, **entries}).encode()
        assert len(header) <= HEADER_BYTES - 8
        file.seek(0)
        file.write((HEADER_BYTES - 8).to_bytes(8, "little") + header.ljust(HEADER_BYTES - 8))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors. Without a digest of their values they are mapped into memory instead of read.

    Raises:
        InputError: the file is missing or damaged.
    """
    metadata = _read_header(path).metadata
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except OSError:
        raise MissingError(f"{path}: missing or unreadable; {INCOMPLETE}") from None
    except (SafetensorError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise _damaged(path, error) from None
    if not _digests_agree(path, tensors, metadata):
        raise _damaged(path, "its values have changed")
    return tensors


def _digests_agree(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Return whether the digests of a file agree with its content; older files have no digests."""
    if DIGEST in metadata and metadata[DIGEST] != digest(tensors):
        return False
    if DIGEST_OF_BYTES not in metadata or path.stat().st_size > MAX_CHECKED_BYTES:
        return True
    with path.open("rb") as file:
        file.seek(int.from_bytes(file.read(8), "little"), os.SEEK_CUR)
        return hashlib.file_digest(file, "sha256").hexdigest() == metadata[DIGEST_OF_BYTES]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest that is equal exactly for the same names, types, shapes and bits."""
    sums = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        sums.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
        if value.numel():  # the stride of an empty tensor may not fit bytes
            sums.update(value.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return sums.hexdigest()


def unusable(path: Path) -> str | None:
    """Return the problem of a file of tensors that is missing or damaged; None if there is none."""
    try:
        load_tensors(path)
    except InputError as error:
        return str(error).partition(";")[0]
    return None


def read_metadata(path: Path) -> dict[str, str]:
    """Return the texts that were stored with the tensors; raise InputError if the file is missing or damaged."""
    return {name: text for name, text in _read_header(path).metadata.items() if name not in (DIGEST, DIGEST_OF_BYTES)}


# Models that are larger than their file


CONSTRUCTORS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange}
METHODS = {torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full}
Arguments: TypeAlias = Any
"""Positional or named arguments of an operator."""
FACTOR, SPARE = 4, 1 << 20
"""Tolerance: tied parameters are created twice, and some tensors are temporary."""
CALLS, BYTES_PER_CALL = 1 << 17, 256
"""Calls of PyTorch while one model is built (about a hundred per layer), and bytes of the file that allow one more."""


class TooLargeError(Exception):
    """A model is too large: it has at least ``values`` values."""

    def __init__(self, values: int) -> None:
        super().__init__(f"{values:,} values")
        self.values = values


class bounded(TorchFunctionMode):  # noqa: N801 (a context manager, used like a function)
    """Raises TooLargeError before more than so many values of tensors are created, or more calls of PyTorch made."""

    def __init__(self, values: int, *, calls: int) -> None:
        super().__init__()
        self.values, self.left, self.calls = values, values, calls

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        self.calls -= 1
        if func in CONSTRUCTORS:
            self.left -= _num_values(func, args, kwargs or {})
        elif func in METHODS:
            self.left -= _num_values(func, args[1:], kwargs or {})
        if self.left < 0 or self.calls < 0:
            raise TooLargeError(self.values - self.left)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_larger_than(*files: Path) -> Iterator[None]:
    """Within this context a model may have as many values of four bytes as the largest of some files holds.

    Raises:
        InputError: the model is larger, or cannot be built.
    """
    size = max((file.stat().st_size for file in files if file.is_file()), default=0)
    try:
        with bounded(FACTOR * size // 4 + SPARE, calls=CALLS + size // BYTES_PER_CALL):
            yield
    except (TooLargeError, RuntimeError, OverflowError, MemoryError, ZeroDivisionError):
        raise MismatchError(
            f"{files[0]}: config.yaml describes a larger model than these weights, or one that cannot be built; "
            "restore both files of the run"
        ) from None


def _num_values(func: Callable[..., object], args: Arguments, kwargs: Arguments) -> int:
    """Return how many values a constructor creates."""
    if func is torch.arange:
        return int(max(args, key=abs, default=0))
    sizes = kwargs.get("size", args[:1] if func in (torch.full, torch.Tensor.new_full) else args)
    while len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    return math.prod(sizes)
