"""Samples side by side: what each layer made of the same inputs."""

from collections.abc import Mapping

from ..inspection.page import Cell, Part, Prose, Sample, Samples, Table
from .ranking import Row, ranked

SHORT = 24
"""Characters up to which answers fit the columns of a table."""


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
    return [_texts(asked, names, given) for asked in inputs]


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


def _texts(asked: str, names: list[str], given: Mapping[tuple[str, str], Row]) -> Part:
    items = []
    truth = None
    for name in names:
        sample = given.get((name, asked))
        if sample:
            truth = sample.get("truth", truth)
            lead = str(sample.get("prompt") or "")
            items.append(Sample(name, str(sample["text"]), lead, _mark(sample)))
    if truth is not None:
        items.insert(0, Sample("truth", str(truth)))
        return Samples(items, f"Input: {asked}")
    return Samples(items, f"Beginning with “{asked}”:" if asked else "From an empty beginning:")
