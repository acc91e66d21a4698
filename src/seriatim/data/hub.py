"""Data sets of the ``datasets`` package: ``hf:NAME``, ``hf:NAME:CONFIG`` and ``hf:NAME:CONFIG:PART``, or ``hf:FOLDER``.

NAME is the name of a data set on the Hugging Face hub; FOLDER is a folder that ``load_dataset`` reads or
``save_to_disk`` wrote. CONFIG may be empty. PART is a split of the data set; without it the split is chosen by purpose.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from ..core.errors import InputError, shown

SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
KINDS = re.compile("(large_)?string|u?int|bool")  # the types of the columns that are read
SAVED = ("dataset_dict.json", "dataset_info.json")  # the files that `save_to_disk` writes into a folder


class HubSplit(Protocol):
    """A part of a data set: the interface of ``datasets.Dataset`` that is used."""

    column_names: list[str]

    def __getitem__(self, column: str) -> Sequence[object]: ...


def hub_source(spec: str, split: str) -> BinaryIO:
    """Return one part of a data set as JSONL in a temporary file.

    Columns of text, integers and truth values become fields; the numbers of classes become their names.

    Raises:
        InputError: the package, the data set or its part is missing, or a class has no name.
    """
    name, _, rest = spec.removeprefix("hf:").partition(":")
    config, _, part = rest.partition(":")
    parts = _load(spec, name, config)
    accepted = (part,) if part else SPLIT_NAMES[split]
    chosen = next((name for name in accepted if name in parts), None)
    if chosen is None:
        problem = f"no part {shown(part or split)} (it has {', '.join(parts)})"
        raise InputError(f"{spec}: {problem}; name one as hf:{name}:{config}:PART")
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        file.writelines(json.dumps(record).encode() + b"\n" for record in _records(spec, parts[chosen]))
        if not file.tell():
            raise InputError(f"{spec}: part {chosen!r} has no rows with text; name another part")
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _load(spec: str, name: str, config: str) -> Mapping[str, HubSplit]:
    """Return the parts of a data set by name."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{spec}: needs the datasets package; pip install 'seriatim[hub]'") from None
    try:
        if any((Path(name) / file).is_file() for file in SAVED):
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name, config or None)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{spec}: the datasets package cannot load it ({reason}); check the name") from None
    return loaded if hasattr(loaded, "keys") else {"train": loaded}


def _records(spec: str, part: HubSplit) -> Iterator[dict[str, object]]:
    """Iterate over the fields of each row; columns of other types are left out."""
    features = getattr(part, "features", None) or {}
    names = [name for name in part.column_names if KINDS.match(getattr(features.get(name), "dtype", "string"))]
    for number, values in enumerate(zip(*(part[name] for name in names), strict=True), start=1):
        record = {}
        for name, value in zip(names, values, strict=True):
            classes = getattr(features.get(name), "int2str", None)
            record[name] = value if classes is None else _class_name(f"{spec}:{number}", name, value, classes)
        yield record


def _class_name(where: str, column: str, value: object, name_of: Callable[[object], object]) -> str:
    try:
        return str(name_of(value))
    except ValueError:
        problem = f"{value} in column {shown(column)} is not one of its classes (a part may have no labels)"
        raise InputError(f"{where}: {problem}; choose another part") from None
