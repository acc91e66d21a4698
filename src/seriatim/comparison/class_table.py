"""The table of F1 by class on a comparison page, and a sentence on the classes that differ."""

from ..evaluation.intervals import SIGNIFICANT, supported_digits
from ..report.number_formats import listed
from ..report.page import Cell, Table
from .class_differences import MAX_DIFFERING, MIN_SUPPORT
from .results import Json

MAX_CHARACTERS = 60  # of the name of a class
LOWER, HIGHER = "▼", "▲"


def class_sentence(classes: Json) -> str:
    """Return in how many classes each layer differs significantly from the best one."""
    rows, best, total = classes["rows"], classes["best"], f"{classes['tested_classes']:,}"
    others = [layer for layer in next((row["f1"] for row in rows), {}) if layer != best]
    if not others or not classes["tested_classes"]:
        return f"F1 of each class, measured on {_part(classes)}."
    counts = classes["differing"]
    differing = [f"{layer} in {counts[layer]:,}" for layer in others if counts.get(layer)]
    same = [layer for layer in others if not counts.get(layer)]
    clauses = [
        f"F1 differs significantly from that of {best}: {listed(differing)} of {total} tested classes."
        if differing
        else f"No layer differs significantly from {best} in the F1 of one of the {total} tested classes."
    ]
    if differing and same:
        clauses.append(f"In no tested class: {listed(same)}.")
    return " ".join([*clauses, f"Measured on {_part(classes)}."])


def class_table(classes: Json) -> Table:
    """Return one row for each class: how often it is true, and F1 of each layer with its interval."""
    rows, best, unit = classes["rows"], classes["best"], classes["unit"]
    layers = list(next((row["f1"] for row in rows), {}))
    cells: list[list[str | Cell]] = []
    for row in rows:
        figures = [_cell(row["f1"][layer], row["f1"][best][0], row["p_values"].get(layer)) for layer in layers]
        cells.append([short(row["name"]) or "(no name)", f"{row['support']:,}", *figures])
    caption = f"F1 of each class, with 95 % intervals; the classes with the most {unit} first."
    if classes["tests"]:
        caption += (
            f" {LOWER} and {HIGHER}: significantly lower or higher than {best} in this class (random exchanges "
            f"of the answers of both, p ≤ {SIGNIFICANT}, adjusted for {classes['tests']:,} tests by Holm's method). "
            f"The {classes['tested_classes']:,} most frequent classes with at least {MIN_SUPPORT} {unit} are tested."
        )
    if hidden := classes["classes"] - len(rows):
        caption += (
            f" {hidden:,} of {classes['classes']:,} classes are left out: shown are up to {MAX_DIFFERING} of those "
            "that differ significantly, the largest differences first, and the most frequent ones."
        )
    return Table(["class", unit, *layers], cells, caption, range(1, 2 + len(layers)))


def short(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return the beginning of a long text, with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _cell(figure: list[float | None], best: float, p_value: float | None) -> Cell:
    value, low, high = figure
    assert value is not None
    sign = ""
    if p_value is not None and p_value <= SIGNIFICANT:
        sign = f" {LOWER if value < best else HIGHER}"
    if low is None or high is None or low == high:
        return Cell(f"{value:.2f}{sign}", value=value)
    digits = max(1, supported_digits(low, high, 3))
    return Cell(f"{value:.{digits}f}{sign}", note=f"{low:.{digits}f} to {high:.{digits}f}", value=value)


def _part(classes: Json) -> str:
    measured, total = classes["measured"], classes["total"]
    return f"all {total:,} test items" if measured == total else f"{measured:,} of {total:,} items, evenly spread"
