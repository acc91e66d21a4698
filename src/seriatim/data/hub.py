"""Corpora of the ``datasets`` package: ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:FOLDER``."""

import io
import json
import tempfile
from typing import BinaryIO

from ..errors import InputError

SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}


def hub_source(spec: str, split: str) -> BinaryIO:
    """One part of a data set as JSONL, spooled to disk.

    Raises:
        InputError: the package is missing, or the data set, its part, or its column ``text``.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(f"{spec}: needs the datasets package; pip install 'seriatim[hub]'") from None
    name, _, config = spec.removeprefix("hf:").partition(":")
    try:
        parts = load_dataset(name, config or None)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{spec}: the datasets package cannot load it ({reason}); check the name") from None
    chosen = next((part for part in SPLIT_NAMES[split] if part in parts), None)
    if chosen is None or "text" not in parts[chosen].column_names:
        raise InputError(f"{spec}: no part {split!r} with a column 'text'; it has {', '.join(parts)}")
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    writer = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
    for text in parts[chosen]["text"]:
        writer.write(json.dumps({"text": text}) + "\n")
    writer.detach()
    file.seek(0)
    return file
