"""The folder of a comparison: where it is written, what is replaced, and checks of its rows and runs."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import InputError
from ..evaluation.intervals import Metrics
from ..storage.atomic_files import remove
from ..storage.lock import LOCK
from ..storage.safe_files import read_json
from ..training.run_files import check_name
from .plan import Plan, check_version, stack_name

REPORT = "report.html"
WRITTEN = ("runs", "trials", "rows", REPORT, "results.json", "comparison.yaml")
"""What comparisons write. The last one marks the folder of a comparison, so it is removed last."""
ROW_DIGESTS = {"train": "trained_on", "tokenizer": "tokenizer", "measured": "data"}
"""Digests of a plan, and the fields of a row that hold the same."""
MAX_BYTES = 1 << 26
"""Size of the file of a row."""


def default_out(task: str, data: str) -> str:
    """Return ``comparisons/TASK-DATA``."""
    stem = (
        data.split(":")[1] if data.startswith("builtin:") else Path(data.split(",")[0].rstrip("/")).name.split(".")[0]
    )
    return f"comparisons/{task}-{re.sub(r'[^A-Za-z0-9_-]+', '-', stem).strip('-') or 'data'}"


def check_folder(out: str, *, overwrite: bool) -> Path:
    """Return the folder to write a comparison into.

    Raises:
        InputError: the folder is not empty, holds something else than a comparison, or cannot be written.
    """
    check_name(out)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, not a folder; choose another --out")
    entries = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []
    if entries and not overwrite:
        raise InputError(
            f"{folder}: not empty; choose another --out, continue with --resume {folder}, or replace the comparison "
            "there with --overwrite"
        )
    if entries and "comparison.yaml" not in entries:
        raise InputError(f"{folder}: not a comparison, and its {entries[0]} would be lost; choose another --out")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        raise InputError(f"{folder}: cannot be written (no permission in {existing}); choose another --out")
    return folder


def clear(folder: Path) -> None:
    """Remove what comparisons write, and nothing else."""
    for name in WRITTEN:
        remove(folder / name)


def read_row(folder: Path, name: str, plan: Plan) -> Metrics | None:
    """Read a finished row; None where it is not finished.

    Raises:
        InputError: the row is damaged, of another version, or of other data than the plan's.
    """
    path = folder / "rows" / f"{name}.json"
    if not path.exists() or not path.with_suffix(".safetensors").exists():
        return None
    hint = "remove it to measure this row again"
    row = read_json(path, max_bytes=MAX_BYTES, remedy=hint)
    if not isinstance(row, dict) or not {"metrics", "version", "tokenizer", "data"} <= row.keys():
        raise InputError(f"{path}: is damaged, or not a row of a comparison; {hint}")
    check_version(path, row["version"])
    check_row(path, row, plan)
    return row


def check_row(path: Path, row: Mapping[str, object], plan: Plan) -> None:
    """Raise InputError where a row was trained or measured on other data than the comparison's.

    Args:
        path: of the row, for the message.
        row: its content; a row of an older version may lack the digest of its training data.
        plan: of the comparison; a plan of an older version takes the digests of its first row.
    """
    for part, key in ROW_DIGESTS.items():
        if key in row and row[key] != plan.digests.setdefault(part, str(row[key])):
            how = "with a different tokenizer" if part == "tokenizer" else "on different data"
            verb = "trained" if part == "train" else "measured"
            raise InputError(
                f"{path}: was {verb} {how}; remove it and resume, or start a new comparison with another --out"
            )


def check_runs(folder: Path, plan: Plan) -> None:
    """Raise InputError where a run was made by another version, or its layer differs from the plan's."""
    for path in sorted((folder / "runs").glob("*/summary.json")):
        summary = read_json(path, max_bytes=1 << 20, remedy="remove the folder of the run to train it again")
        summary = summary if isinstance(summary, dict) else {}
        check_version(path.parent, summary.get("versions", {}).get("seriatim"))
        expected = next((row for row in plan.layers if path.parent.name.rpartition("-")[0] == row), None)
        if expected is not None and summary.get("layer") != stack_name(expected):
            raise InputError(
                f"{path.parent}: is a run of {summary.get('layer')}, not of {expected}; remove it to train it again"
            )
