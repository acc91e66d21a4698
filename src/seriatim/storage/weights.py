"""Parameters in a safetensors file: nothing is unpickled, and every name and shape is checked."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..core.errors import InputError
from .atomic_files import whole
from .parameter_names import with_present_names
from .safetensors_header import Entry, read_header

HEADER = 1 << 16
"""Bytes kept for the names and shapes of what is yet to come, where a file is written as it comes."""
TYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
DIGEST, DIGEST_OF_BYTES = "sha256", "sha256 of bytes"
"""The names of digests among the texts of a file: of its tensors; of all that follows its header, as it is written."""
LOOKED_AT = 1 << 28
"""Bytes of a file of the second kind that is looked at when it is opened; a larger one is read in use alone."""


def save_weights(model: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes every parameter once, tied ones under their first name."""
    save_tensors({name: value.detach() for name, value in model.named_parameters()}, path, metadata)


def load_weights(model: nn.Module, path: Path) -> None:
    """Reads what `save_weights` wrote into ``model``.

    Raises:
        InputError: missing, damaged, not finite, or the weights of another model.
    """
    expected = dict(model.named_parameters())
    entries = with_present_names(model, read_header(path).tensors)
    if odd := sorted(set(entries) ^ set(expected)):
        raise InputError(f"{path}: the weights of another model (they differ in {odd[0]}); restore the run's own file")
    for name, parameter in expected.items():
        found, needed = entries[name], Entry(TYPES[parameter.dtype], tuple(parameter.shape))
        if found != needed:
            raise InputError(
                f"{path}: {name} has shape {found.shape} of {found.dtype}, the model needs {needed.shape} of "
                f"{needed.dtype}; restore the run's own file"
            )
    tensors = load_tensors(path)
    refuse_nonfinite(tensors, path)
    tensors = with_present_names(model, tensors)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(tensors[name])


def refuse_nonfinite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raises InputError for the first tensor that holds NaN or infinity: a model would answer from it all the same."""
    for name, values in tensors.items():
        if not is_finite(values):
            raise InputError(f"{path}: {name} holds NaN or infinity; restore the file, or train again")


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite, in one pass and without a copy."""
    if not values.is_floating_point() or not values.numel():
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes named tensors with a digest of their values, whole or not at all.

    Raises:
        OSError: the disk is full, or the file may not be written.
    """
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    with whole(path) as aside:
        aside.touch()
        usual = aside.stat().st_mode
        try:
            save_file(tensors, aside, {**(metadata or {}), DIGEST: digest(tensors)})
        except SafetensorError as error:  # which knows the number of an error in its message alone
            number = re.search(r"\(os error (\d+)\)", str(error))
            raise (OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error) from None
        aside.chmod(usual)  # the library lets nobody else read what it writes
        _sort_metadata(aside)


def _sort_metadata(path: Path) -> None:
    """Equal tensors and texts make equal files: safetensors writes the texts in any order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(ordered) <= size
        file.seek(8)
        file.write(ordered.ljust(size))


def stream_tensors(arrays: Iterable[tuple[str, np.ndarray]], path: Path, metadata: Mapping[str, str]) -> None:
    """Writes named arrays one after another, so that no two need be held; as `save_tensors` otherwise.

    Arrays of one name that follow one another become one, joined along their first dimension. The header of a
    safetensors file stands first and may end in blanks: it is filled in when everything is there.
    """
    end, sums = 0, hashlib.sha256()
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    with whole(path) as aside, aside.open("wb") as file:
        file.seek(HEADER)
        for name, values in arrays:
            values.tofile(file)
            sums.update(np.ascontiguousarray(values).data)
            new = {
                "dtype": TYPES[torch.from_numpy(values[:0]).dtype],
                "shape": [0, *values.shape[1:]],
                "data_offsets": [end, end],
            }
            entry = entries.setdefault(name, new)
            assert entry["data_offsets"][1] == end  # they do follow one another
            end += values.nbytes
            entry["shape"][0] += len(values)
            entry["data_offsets"][1] = end
        entries["__metadata__"][DIGEST_OF_BYTES] = sums.hexdigest()
        header = json.dumps(entries).encode()
        assert len(header) <= HEADER - 8
        file.seek(0)
        file.write((HEADER - 8).to_bytes(8, "little") + header.ljust(HEADER - 8))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Reads named tensors; where there is no digest of their values, they are not read but mapped.

    Raises:
        InputError: missing or damaged.
    """
    metadata = read_header(path).metadata
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except OSError:
        raise InputError(f"{path}: missing or unreadable; is this the folder of a whole run?") from None
    except (SafetensorError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: damaged ({error}); restore it, or train again") from None
    if not _as_written(path, tensors, metadata):
        raise InputError(f"{path}: damaged (its values are not those that were written); restore it, or train again")
    return tensors


def _as_written(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Whether the digests that a file has agree with it; older files have none."""
    if DIGEST in metadata and metadata[DIGEST] != digest(tensors):
        return False
    if DIGEST_OF_BYTES not in metadata or path.stat().st_size > LOOKED_AT:
        return True
    with path.open("rb") as file:
        file.seek(int.from_bytes(file.read(8), "little"), os.SEEK_CUR)
        return hashlib.file_digest(file, "sha256").hexdigest() == metadata[DIGEST_OF_BYTES]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The same for the same names, types, shapes and bits, and only for them."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
        found.update(value.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def unusable(path: Path) -> str | None:
    """What is wrong with a file of tensors that is missing or damaged; None where nothing is."""
    try:
        load_tensors(path)
    except InputError as error:
        return str(error).partition(";")[0]
    return None


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that were given to be stored beside the tensors.

    Raises:
        InputError: missing or damaged.
    """
    return {name: text for name, text in read_header(path).metadata.items() if name not in (DIGEST, DIGEST_OF_BYTES)}
