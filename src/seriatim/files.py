"""Files that are whole or not there at all, and JSON that every program reads."""

import json
import math
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Writes UTF-8 text aside and renames it into place."""
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without the numbers it does not have: infinity and NaN become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
