"""Records of benchmarks: what is claimed, measured and set, on which machine and at which commit.

    python benchmarks/record.py

A script writes its record into `benchmarks/records/`. This command writes the sections of `PAGES` from the records:
``<!-- record: NAME -->`` begins all that a record holds, ``<!-- record: NAME, table 1 -->`` its first table alone, and
``<!-- end of record -->`` ends both.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import machine

import seriatim

FOLDER = Path(__file__).parent / "records"
RESULTS = Path(__file__).parent / "RESULTS.md"
PAGES = (RESULTS, FOLDER.parents[1] / "docs" / "defaults.md")
SECTION = re.compile(r"<!-- record: (\w[\w-]*)(?:, table (\d))? -->\n\n.*?\n\n<!-- end of record -->", re.DOTALL)


def save(
    name: str,
    *,
    claims: Mapping[str, bool],
    settings: Mapping[str, Any],
    figures: Any,
    tables: Sequence[Sequence[Sequence[object]]],
) -> Path:
    """Write a record, and return its file.

    Args:
        name: the name of the file, without its ending.
        claims: whether each claim, in words, is reached.
        settings: everything that the figures depend on, beside the code.
        figures: the figures with all digits.
        tables: the figures as they are shown; the first row of each table has the headings.
    """
    content = {
        "command": " ".join(["python", *_command()]),
        "date": date.today().isoformat(),
        "commit": commit(),
        "machine": machine.facts(),
        "claims": dict(claims),
        "settings": dict(settings),
        "figures": figures,
        "tables": [[[str(cell) for cell in row] for row in table] for table in tables],
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path}")
    return path


TRAINING: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "weight_decay": 0.0,
    "clip": 1.0,
    "average": 0.0,
    "precision": "float32",
    "baseline": "none",
    "baseline_weight": 0.0,
    "seed": 1,
}
"""What trainings of benchmarks have in common, if these do not study the defaults."""


def settled(run: seriatim.Run, stated: Mapping[str, Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    """Return all settings of a run, the names of its files left out.

    The script must have ``stated`` every setting that is otherwise chosen from the data, so that its figures do not
    depend on a default; ``but`` names those that it leaves open, because it studies them.
    """
    chosen = {}
    for name in ("tokenizer", "model", "training"):
        section, given = getattr(run.config, name), stated.get(name, {})
        chosen |= {f"{name}.{key}": value for key, value in _chosen(section, given).items()}
    declared = run.task.kind.options.model_fields if run.task.kind.options else {}
    given = stated.get("model", {}).get("options", {})
    usual = {key: field.get_default() for key, field in declared.items()}
    options = {key: value for key, value in run.config.model.options.items() if key not in given}
    chosen |= {f"model.options.{key}": value for key, value in options.items() if value != usual.get(key)}
    if unstated := sorted(chosen.keys() - set(but)):
        sys.exit(f"{run.config.task}: {', '.join(unstated)} must be stated, or the figures depend on a default")
    return dict(run.config.model_dump(exclude={"out": True, "data": {"train", "valid", "test"}}))


def _chosen(section: Any, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a section that were neither given nor have the value of the section's declaration."""
    fields = type(section).model_fields.items()
    values = {key: getattr(section, key) for key, field in fields if key not in given and key != "options"}
    return {key: value for key, value in values.items() if value != type(section).model_fields[key].get_default()}


def remembered(file: Path, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured under a key and is kept in a file, or else measure and keep it.

    A script of many trainings can so be interrupted. Remove the file if the code has changed.
    """
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if key not in known:
        known[key] = measure()
        file.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return dict(known[key])


def commit() -> str:
    """Return the commit of the source, marked if files of the package or of the benchmarks differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=FOLDER.parent)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../src", "*.py")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _command() -> list[str]:
    """Return the command line, with the names of files and folders without their folders."""
    script, *arguments = sys.argv
    return [f"benchmarks/{Path(script).name}", *(Path(one).name if "/" in one else one for one in arguments)]


def section(name: str, table: str | None = None) -> str:
    """Return the text of a section, made of its record."""
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    if table is not None:
        shown = _table(record["tables"][int(table) - 1])
        return f"<!-- record: {name}, table {table} -->\n\n{shown}\n\n<!-- end of record -->"
    threads = record["machine"]["threads"]
    where = f"{record['machine']['name']}, {threads} thread{'s' if threads > 1 else ''}"
    parts = [f"`{record['command']}` ({where}; commit {record['commit']}):", *map(_table, record["tables"])]
    for claim, is_reached in record["claims"].items():
        parts.append(f"Claim: {claim}: **{'reached' if is_reached else 'not reached'}**.")
    return "\n\n".join([f"<!-- record: {name} -->", *parts, "<!-- end of record -->"])


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *rest])


def with_sections(text: str) -> str:
    """Return the text of a page with its sections as the records have them."""
    return SECTION.sub(lambda found: section(*found.groups()), text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_sections(page.read_text(encoding="utf-8")), encoding="utf-8")
