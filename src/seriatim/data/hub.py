"""Data sets of the ``datasets`` package: ``hf:NAME``, ``hf:NAME:CONFIG`` and ``hf:NAME:CONFIG:PART``, or ``hf:FOLDER``.

NAME is that of a data set on the Hugging Face hub, or a folder that ``load_dataset`` reads or ``save_to_disk`` wrote.
CONFIG may be empty. PART is a split of the data set; without it the split is chosen by what the data is for.
"""

import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..core.errors import InputError, shown

SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
KINDS = re.compile("(large_)?string|u?int|bool")
"""Types of the columns that are read."""
SAVED = ("dataset_dict.json", "dataset_info.json")
"""Files that ``save_to_disk`` writes into a folder."""


def hub_source(spec: str, split: str) -> BinaryIO:
    """One part of a data set as JSONL, copied to a temporary file.

    Columns of text, whole numbers and truth values become fields; numbers of classes become the names of the classes.

    Raises:
        InputError: the package is missing, or the data set or its part; or a class is not labelled.
    """
    name, _, rest = spec.removeprefix("hf:").partition(":")
    config, _, part = rest.partition(":")
    parts = _load(spec, name, config)
    wanted = (part,) if part else SPLIT_NAMES[split]
    chosen = next((one for one in wanted if one in parts), None)
    if chosen is None:
        raise InputError(
            f"{spec}: no part {shown(part or split)}, it has {', '.join(parts)}; name one as hf:{name}:{config}:PART"
        )
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        _write(file, spec, parts[chosen])
    except BaseException:
        file.close()
        raise
    if not file.tell():
        file.close()
        raise InputError(f"{spec}: no part {chosen!r} with a column 'text' that holds anything; name another part")
    file.seek(0)
    return file


def _write(file: BinaryIO, spec: str, part: Any) -> None:
    """Writes the rows of a part as JSONL."""
    writer = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
    try:
        for record in _records(spec, part):
            writer.write(json.dumps(record) + "\n")
    finally:
        writer.detach()


def _load(spec: str, name: str, config: str) -> Mapping[str, Any]:
    """The parts of a data set by name."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{spec}: needs the datasets package; pip install 'seriatim[hub]'") from None
    try:
        if any((Path(name) / file).is_file() for file in SAVED):
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, config or None)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{spec}: the datasets package cannot load it ({reason}); check the name") from None
    return found if hasattr(found, "keys") else {"train": found}


def _records(spec: str, part: Any) -> Iterator[dict[str, Any]]:
    """Each row's fields; a column of another kind is left out, and named where it is asked for."""
    features = getattr(part, "features", None) or {}
    names = [name for name in part.column_names if KINDS.match(getattr(features.get(name), "dtype", "string"))]
    for number, values in enumerate(zip(*(part[name] for name in names), strict=True), start=1):
        record = {}
        for name, value in zip(names, values, strict=True):
            classes = getattr(features.get(name), "int2str", None)
            record[name] = value if classes is None else _class_name(f"{spec}:{number}", name, value, classes)
        yield record


def _class_name(where: str, column: str, value: Any, named: Any) -> str:
    try:
        return str(named(value))
    except ValueError:
        raise InputError(
            f"{where}: {value} in column {shown(column)} is not one of its classes, as where a part has no labels; "
            "choose another part"
        ) from None
