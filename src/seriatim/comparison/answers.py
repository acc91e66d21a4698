"""Samples side by side: what each layer made of the same inputs."""

import re
from collections.abc import Mapping

from ..report.page import Cell, Part, Prose, Sample, Samples, Table
from .ranking import Row, ranked

SHORT = 24
"""Characters up to which answers fit the columns of a table."""
_BLANK = re.compile(r"\n\s*\n\s*\n")
"""Two blank lines and more, of which badly trained models write whole pages."""


def answers(results: Row) -> list[Part]:
    """What each layer answered to each input, best layer first, wrong answers marked where the truth is known."""
    rows = [row for row in ranked(results) if row.get("samples")]
    if not rows:
        return [Prose("There are no samples.")]
    inputs = list(dict.fromkeys(_asked(sample) for row in rows for sample in row["samples"]))
    given = {(row["layer"], _asked(sample)): sample for row in rows for sample in row["samples"]}
    names = [row["layer"] for row in rows]
    if all(sample.get("truth") is not None and len(str(sample["text"])) <= SHORT for sample in given.values()):
        return [_table(inputs, names, given)]
    return [_texts(asked, names, given, tags=results.get("task") == "tag") for asked in inputs]


def _asked(sample: Row) -> str:
    return str(sample.get("prompt") or sample.get("input") or "")


def _mark(sample: Row) -> str:
    if sample.get("truth") is None:
        return ""
    return "right" if sample["text"] == sample["truth"] else "wrong"


def _table(inputs: list[str], names: list[str], given: Mapping[tuple[str, str], Row]) -> Part:
    cells: list[list[str | Cell]] = []
    for asked in inputs:
        found = [given.get((name, asked)) for name in names]
        truth = next(str(sample["truth"]) for sample in found if sample)
        cells.append([asked, truth, *(Cell(str(each["text"]), _mark(each)) if each else "–" for each in found)])
    return Table(["input", "truth", *names], cells, "Held-out inputs, their truth and every layer's answer.")


def _texts(asked: str, names: list[str], given: Mapping[tuple[str, str], Row], *, tags: bool) -> Part:
    items = []
    truth = None
    for name in names:
        sample = given.get((name, asked))
        if sample:
            truth = sample.get("truth", truth)
            found = _tags(name, sample) if tags else (name, _BLANK.sub("\n⋮\n", str(sample["text"])))
            items.append(Sample(*found, lead=str(sample.get("prompt") or ""), mark=_right(sample)))
    if truth is not None:
        return Samples([Sample("truth", str(truth)), *items], f"Input: {asked}")
    begun = f"Beginning with “{asked}”" if asked else "From an empty beginning"
    return Samples(items, f"{begun} (⋮ stands for many blank lines):")


def _right(sample: Row) -> str:
    """Of texts that are written only the very same is marked: another may be as good."""
    return "right" if _mark(sample) == "right" else ""


def _tags(name: str, sample: Row) -> tuple[str, str]:
    """How many tags are wrong, and the tags, the wrong ones marked."""
    mine, truth = str(sample["text"]).split(), str(sample.get("truth") or "").split()
    if len(mine) != len(truth):
        return name, str(sample["text"])
    marked = [one if one == right else f"{one}✗" for one, right in zip(mine, truth, strict=True)]
    wrong = sum(one != right for one, right in zip(mine, truth, strict=True))
    return f"{name}: {wrong} of {len(truth)} wrong" if wrong else name, " ".join(marked)
