"""The folder of a comparison: taken only where nothing is lost, and looked through when it goes on."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..storage.atomic_files import remove
from ..storage.lock import LOCK
from ..storage.safe_files import read_json
from ..training.outputs import check_name
from .plan import Plan, refuse_version
from .row_names import bare

REPORT = "report.html"
WRITTEN = ("runs", "trials", "rows", REPORT, "results.json", "comparison.yaml")
"""What comparisons write; last what says that the folder is one."""
ROW_DIGESTS = {"train": "trained_on", "tokenizer": "tokenizer", "measured": "data"}
"""Digests of a plan, and the keys that hold the same in a row."""
LARGEST = 1 << 26
"""Bytes of a row, at most."""


def default_out(task: str, data: str) -> str:
    """``comparisons/TASK-DATA``."""
    if data.startswith("builtin:"):
        stem = data.split(":")[1]
    else:
        stem = Path(data.split(",")[0].rstrip("/")).name.split(".")[0]
    return f"comparisons/{task}-{re.sub(r'[^A-Za-z0-9_-]+', '-', stem).strip('-') or 'data'}"


def check_folder(out: str, *, overwrite: bool) -> Path:
    """The folder to write a comparison into.

    Raises:
        InputError: it is not empty, not a comparison that may be replaced, or cannot be written.
    """
    check_name(out)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, not a folder; choose another --out")
    found = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []
    if found and not overwrite:
        raise InputError(
            f"{folder}: not empty; choose another --out, go on with --resume {folder}, or replace the comparison there "
            "with --overwrite"
        )
    if found and "comparison.yaml" not in found:
        raise InputError(f"{folder}: not a comparison, and its {found[0]} would be lost; choose another --out")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        raise InputError(f"{folder}: cannot be written (no permission in {existing}); choose another --out")
    return folder


def clear(folder: Path) -> None:
    """Removes what comparisons write, and nothing else."""
    for name in WRITTEN:
        remove(folder / name)


def read_row(folder: Path, name: str, plan: Plan) -> dict[str, Any] | None:
    """A finished row; None where it is not finished.

    Raises:
        InputError: it is damaged, of another version, or of other data than the plan's.
    """
    path = folder / "rows" / f"{name}.json"
    if not path.exists() or not path.with_suffix(".safetensors").exists():
        return None
    hint = "remove it to measure this row again"
    row = read_json(path, most=LARGEST, hint=hint)
    if not isinstance(row, dict) or not {"metrics", "version", "tokenizer", "data"} <= row.keys():
        raise InputError(f"{path}: is damaged, or not a row of a comparison; {hint}")
    refuse_version(path, row["version"])
    check_row(path, row, plan)
    return row


def check_row(path: Path, row: Mapping[str, Any], plan: Plan) -> None:
    """Raises InputError where a row was trained or measured on other data than the comparison's.

    Args:
        path: of the row, for the message.
        row: as `measuring.measure` makes it; one of an older version may lack the digest of its training data.
        plan: of the comparison; one of an older version has no digests, and takes those of its first row.
    """
    for part, key in ROW_DIGESTS.items():
        if key in row and row[key] != plan.digests.setdefault(part, row[key]):
            what = "with a different tokenizer" if part == "tokenizer" else "on different data"
            done = "trained" if part == "train" else "measured"
            raise InputError(
                f"{path}: was {done} {what}; remove it and resume, or start a new comparison with another --out"
            )


def check_runs(folder: Path, plan: Plan) -> None:
    """Raises InputError where a run that goes on was made by another version, or is none of the plan's."""
    for path in sorted((folder / "runs").glob("*/summary.json")):
        summary = read_json(path, most=1 << 20, hint="remove the folder of the run to train it again")
        found = summary.get("versions", {}).get("seriatim") if isinstance(summary, dict) else None
        refuse_version(path.parent, str(found))
        expected = next((layer for layer in plan.layers if path.parent.name.rpartition("-")[0] == layer), None)
        if expected is not None and summary.get("layer") != bare(expected).replace("+", ","):
            raise InputError(
                f"{path.parent}: is a run of {summary.get('layer')}, not of {expected}; remove it to train it again"
            )
