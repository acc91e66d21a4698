"""What a small state costs: the metric of layers of several widths against the bytes of their states."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..report.number_formats import in_bytes, listed, percent
from ..report.page import Cell, Plot, Plots, Prose, Section, Table
from ..report.plot_labels import end_labels
from ..report.theme import new_figure, plain, style
from .figures import logarithmic
from .ranking import Row, Rows, tested, told_apart, value_of

NEAR = 0.1
"""The share of the best figure within which another one counts as near to it."""


def bottleneck(results: Row) -> list[Section]:
    """The section on state sizes; none where no layer was trained at several widths."""
    curves = by_layer(results)
    if not any(len(rows) > 1 for rows in curves.values()):
        return []
    metric = results["metric"]
    tokens = max(row["state_at_length"]["tokens"] for rows in curves.values() for row in rows)
    read = f"{tokens:,} token{'' if tokens == 1 else 's'}"
    caption = f"Each line is a layer at several widths. The state is what one text needs after {read}."
    plot = Plot(
        bottleneck_figure(curves, metric),
        f"{metric['name'][:1].upper()}{metric['name'][1:]} against state size",
        caption,
        "; ".join(f"{layer}: {_described(rows, metric)}" for layer, rows in curves.items()),
    )
    sentences = [f"{one[:1].upper()}{one[1:]}." for one in in_words(curves, metric)]
    table = bottleneck_table(curves, metric)
    return [Section("bottleneck", "Quality against state size", [Prose(" ".join(sentences)), Plots([plot]), table])]


def by_layer(results: Row) -> dict[str, list[Row]]:
    """The measured rows of every layer with widths, smallest state first."""
    metric, found = results["metric"], dict[str, list[Row]]()
    for row in results["rows"]:
        state = row.get("state_at_length") or {}
        if row.get("width") and state.get("bytes") and value_of(row, metric["key"]) is not None:
            found.setdefault(row["architecture"], []).append(row)
    return {layer: sorted(rows, key=_bytes) for layer, rows in found.items()}


def in_words(curves: dict[str, list[Row]], metric: Row) -> list[str]:
    """The best figure, and the smallest state with which each layer comes near to it."""
    more, key, digits = metric["more_is_better"], metric["key"], metric["digits"]
    rows = [row for each in curves.values() for row in each]
    best = (max if more else min)(rows, key=lambda row: row["metrics"][key])
    value = best["metrics"][key]
    bound = value - NEAR * abs(value) if more else value + NEAR * abs(value)
    said = [
        f"the best {metric['name']} is {value:,.{digits}f}, of {best['architecture']} at width {best['width']} with "
        f"{in_bytes(_bytes(best))} of state"
    ]
    others = [row for row in rows if row is not best]
    if others and all(tested(row) and not told_apart(row) for row in others):
        said.append("nothing else is significantly different from it, so that no effect of the state size is shown")
        return said
    near, far = [], []
    for layer, each in curves.items():
        reached = [row for row in each if (row["metrics"][key] >= bound if more else row["metrics"][key] <= bound)]
        if reached:
            near.append(f"{layer} with {in_bytes(_bytes(reached[0]))} (width {reached[0]['width']})")
        else:
            far.append(layer)
    limit = f"{bound:,.{digits}f} or {'more' if more else 'less'}, within {percent(NEAR)} of the best,"
    said.append(f"the smallest measured states that reach {limit} are: {listed(near)}")
    if far:
        said.append(f"not reached at any of the widths by {listed(far)}")
    return said


def bottleneck_table(curves: dict[str, list[Row]], metric: Row) -> Table:
    """A row for each layer and width: state, parameters, and the metric with its interval."""
    cells: list[list[str | Cell]] = []
    for layer, rows in curves.items():
        for row in rows:
            ends = (value_of(row, f"{metric['key']}_{end}") for end in ("low", "high"))
            low, high = (None if end is None else f"{end:,.{metric['digits']}f}" for end in ends)
            note = "" if low is None or high is None else f"{low} to {high}"
            value = Cell(f"{row['metrics'][metric['key']]:,.{metric['digits']}f}", note=note)
            parameters = f"{row['parameters']:,}" if row.get("parameters") else "–"
            cells.append([layer, f"{row['width']:,}", in_bytes(_bytes(row)), parameters, value])
    headings = ["layer", "width", "state", "parameters", metric["name"]]
    return Table(headings, cells, "The widths of each layer, smallest state first.", range(1, len(headings)))


def bottleneck_figure(curves: dict[str, list[Row]], metric: Row) -> Figure:
    """The metric against bytes of state, on a logarithmic scale, a line a layer with 95 % intervals."""
    figure, axes = new_figure(height=max(3.0, 0.7 + 0.17 * len(curves)))
    plotted = axes[0, 0]
    for i, rows in enumerate(curves.values()):
        sizes, values = [_bytes(row) for row in rows], [row["metrics"][metric["key"]] for row in rows]
        plotted.plot(sizes, values, **style(i))
        for size, row in zip(sizes, rows, strict=True):
            low, high = (value_of(row, f"{metric['key']}_{end}") for end in ("low", "high"))
            if low is not None and high is not None:
                plotted.plot([size, size], [low, high], color=style(i)["color"], linewidth=0.8)
    logarithmic(plotted.xaxis, in_bytes)
    plotted.set_xlabel("state of one text")
    plotted.set_ylabel(plain(metric["name"]))
    lasts = [(i, layer, rows[-1]["metrics"][metric["key"]]) for i, (layer, rows) in enumerate(curves.items())]
    end_labels(plotted, lasts)
    return figure


def lines_of(results: Row) -> list[Sequence[str]]:
    """The table for a terminal: layer, width, bytes of state, the metric."""
    metric = results["metric"]
    return [
        (layer, f"{row['width']:,}", f"{_bytes(row):,}", f"{row['metrics'][metric['key']]:,.{metric['digits']}f}")
        for layer, rows in by_layer(results).items()
        for row in rows
    ]


def _bytes(row: Row) -> int:
    return int(row["state_at_length"]["bytes"])


def _described(rows: Rows, metric: Row) -> str:
    key, digits = metric["key"], metric["digits"]
    return ", ".join(f"{row['metrics'][key]:,.{digits}f} at {in_bytes(_bytes(row))}" for row in rows)
