"""The section of a comparison page on where models differ: by class, by length, by token, and on single items."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.json_object import JsonMapping
from ..evaluation.error_analysis import AnsweredItem, ConfusionCounts
from ..evaluation.intervals import SIGNIFICANT, is_significant, supported_digits
from ..pages.chart import Axis, Chart, Series, Switch
from ..pages.confusion import Confusion
from ..pages.items import Items
from ..pages.page import Cell, Folded, Interval, PageBlock, Table
from ..pages.statements import Statement, told
from ..pages.wording import cut, listed, sentence_case
from .charts import why_missing
from .differences import MIN_SUPPORT, UNKNOWN_NAME
from .results import Results

MAX_CHARACTERS = 60  # of the name of a class
LOWER, HIGHER = "▼", "▲"
DODGE, WIDEST = 0.05, 0.5
"""Distance of two layers in a bucket, where that of two buckets is 1, and the largest distance of all."""


def differences_section(results: Results) -> list[PageBlock]:
    """Return the blocks, none of which exists where `results.json` has no ``differ``."""
    differ = results.section("differ")
    blocks: list[PageBlock] = []
    if classes := differ.get("classes"):
        blocks.append(class_table(classes, results))
    if confused := differ.get("confusions"):
        best, *others = [Confusion(f"Confusions of {name}", ConfusionCounts(**each)) for name, each in confused.items()]
        blocks += [best, *([Folded("Confusions of the other layers", others)] if others else [])]
    charts = [(each["name"], bucket_chart(each, results, differ.get("measured"))) for each in differ.get("buckets", ())]
    if charts := [(name, chart) for name, chart in charts if chart]:
        blocks.insert(0, Switch(charts[0][1].y.name.capitalize(), charts, "by") if charts[1:] else charts[0][1])
    if items := differ.get("items"):
        rows, total = [AnsweredItem(**each) for each in items["items"]], items["total"]
        left_out = "" if len(rows) == total else f"{len(rows):,} of {total:,}, evenly spread."
        measured = f"{sentence_case(differ['measured'])}." if "measured" in differ else ""
        caption = " ".join(filter(None, [left_out, measured]))
        given = items["layers"], rows, items["figure"], items["more_is_better"]
        blocks.append(Items("Item by item", *given, caption))
    return blocks


def are_comparable(results: Results, first: str, second: str) -> bool:
    """Return whether two layers may be tested against each other: of unequal budgets, trained ones may not."""
    spent = results.spent
    return spent is None or spent.is_equal or not {first, second} <= {row.layer for row in results.trained}


# F1 by class


def class_table(classes: JsonMapping, results: Results) -> Table:
    """Return one row for each class: how often it is true, and F1 of each layer with its interval."""
    rows, best, unit = classes["rows"], classes["best"], classes["unit"]
    layers = list(next((row["f1"] for row in rows), {}))
    tested = [layer for layer in layers if layer != best and are_comparable(results, best, layer)]
    digits = {layer: max((_digits(*row["f1"][layer][1:]) for row in rows), default=2) for layer in layers}
    cells: list[list[str | Cell]] = []
    for row in rows:
        marked = {layer: row["p_values"].get(layer) for layer in tested}
        figures = [_cell(row["f1"][layer], digits[layer], row["f1"][best][0], marked.get(layer)) for layer in layers]
        cells.append([cut(row["name"], MAX_CHARACTERS) or "(no name)", f"{row['support']:,}", *figures])
    caption = f"F1 of each class, with 95 % intervals, on {classes['measured']:,} of {classes['total']:,} items."
    if classes["tests"] and tested:
        caption += (
            f" {LOWER} and {HIGHER}: lower or higher than {best} (approximate randomization, p ≤ {SIGNIFICANT} after "
            f"Holm's correction for {classes['tests']:,} tests, of classes with at least {MIN_SUPPORT} {unit})."
        )
    if hidden := classes["classes"] - len(rows):
        caption += f" {hidden:,} of {classes['classes']:,} classes, less frequent ones, are left out."
    numeric = range(1, 2 + len(layers))
    return Table(["class", unit, *layers], cells, caption, numeric, best=["", "", *["max"] * len(layers)])


def _digits(low: float | None, high: float | None) -> int:
    return 1 if low is None or high is None or low == high else supported_digits(low, high, 3)


def _cell(figure: Sequence[float], digits: int, best: float, p_value: float | None) -> Cell:
    value, low, high = figure
    sign = "" if p_value is None or p_value > SIGNIFICANT else f" {LOWER if value < best else HIGHER}"
    if low is None or high is None or low == high:
        return Cell(f"{value:.{digits}f}{sign}", value=value)
    interval = Interval(value, low, high)
    return Cell(f"{value:.{digits}f}{sign}", note=f"{low:.{digits}f} to {high:.{digits}f}", value=value, drawn=interval)


# Buckets by length, position and frequency


@dataclass(frozen=True)
class BucketFacts:
    """In which ranges the ``second`` layer differs significantly from the ``first`` one."""

    first: str
    second: str
    above: str
    below: str
    total: int
    figure: str


STATEMENTS = [
    Statement[BucketFacts](
        lambda facts: bool(facts.above), "{second} has a higher {figure} than {first} in the ranges {above}."
    ),
    Statement[BucketFacts](
        lambda facts: bool(facts.below), "{second} has a lower {figure} than {first} in the ranges {below}."
    ),
    Statement[BucketFacts](
        lambda facts: bool(facts.above or facts.below),
        f"Paired bootstrap, p ≤ {SIGNIFICANT} after Holm's correction for {{total}} ranges.",
    ),
]


def bucket_facts(buckets: JsonMapping, results: Results) -> BucketFacts | None:
    """Return the differences of the first two layers that a test supports; None if they are not comparable."""
    tests = buckets["tests"]
    if not tests or not are_comparable(results, tests["first"], tests["second"]):
        return None
    clear = [each for each in tests["results"] if is_significant(each["p_value"], each["low"], each["high"])]
    above, below = (
        listed([buckets["names"][each["bucket"]] for each in clear if sign * each["difference"] > 0])
        for sign in (1, -1)
    )
    figure = buckets["of"].partition(" (")[0]
    return BucketFacts(tests["first"], tests["second"], above, below, len(tests["results"]), figure)


def bucket_chart(buckets: JsonMapping, results: Results, measured: str | None) -> Chart:
    """Return the figure of each layer in each shown bucket, with 95 % intervals; empty with fewer than two buckets."""
    shown, names = buckets["shown"] if len(buckets["shown"]) > 1 else [], buckets["names"]
    labels = [f"{names[i]}: {buckets['counts'][i]:,} {buckets['counted']}" for i in shown]

    # Layers are moved apart within a bucket, so that their intervals do not cover each other.
    step, series = min(DODGE, WIDEST / max(1, len(buckets["values"]))), list[Series]()
    for i, (layer, values) in enumerate(buckets["values"].items()):
        chosen = [[math.nan if end is None else end for end in values[bucket]] for bucket in shown]
        xs = [at + step * (i - (len(buckets["values"]) - 1) / 2) for at in range(len(shown))]
        intervals = [(low, high) if low < high else None for _, low, high in chosen]
        series.append(Series(layer, xs, [value for value, *_ in chosen], intervals=intervals, names=labels))
    counts = " / ".join(f"{buckets['counts'][i]:,}" for i in shown)
    facts = bucket_facts(buckets, results)
    unknown = f"{UNKNOWN_NAME}: words outside the vocabulary." if UNKNOWN_NAME in names else ""
    caption = [f"95 % intervals; {counts} {buckets['counted']}{f', of {measured}' if measured else ''}.", unknown]
    return Chart(
        f"{buckets['of'].capitalize()} by {buckets['name']}",
        Axis(buckets["name"], names=[names[i] for i in shown]),
        Axis(buckets["of"]),
        series,
        " ".join(filter(None, [*caption, *(told(STATEMENTS, facts) if facts else ())])),
        missing={row.layer: why_missing(row, results) for row in results.ran if row.layer not in buckets["values"]},
    )
