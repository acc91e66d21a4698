"""The plots of a comparison, one function each, from the rows of ``results.json``.

Every function leaves out the rows that lack what it draws, and returns None where none is left. A layer looks the same
in all plots of the same rows.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..report.number_formats import in_bytes, in_short
from ..report.plot_labels import end_labels, point_labels
from ..report.theme import INK, PAPER, SOFT, new_figure, plain, style
from .ranking import Row, Rows, told_apart, value_of

AGAINST = {"seconds": "training time", "tokens": "tokens read", "compute": "floating-point operations"}
"""What a curve can be drawn against, and its name."""
POINTS = 150
"""Of a curve, so that a page of many is small."""
FEW = 1.5
"""How many times its beginning an axis must reach for numbers of a logarithmic scale to stand on it."""


def metric_plot(rows: Rows, metric: Row) -> Figure | None:
    """The metric of each layer with its interval, the best on top; small strokes are its seeds.

    What can be told from the best by the paired bootstrap is hollow.
    """
    drawn = [row for row in rows if value_of(row, metric["key"]) is not None]
    drawn.sort(key=lambda row: value_of(row, metric["key"]) or 0.0, reverse=not metric["more_is_better"])
    if not drawn:
        return None
    figure, axes = new_figure(height=0.9 + 0.24 * len(drawn))
    for y, row in enumerate(drawn):
        key, colour = metric["key"], style(list(rows).index(row))["color"]
        value = row["metrics"][key]
        low, high = (row["metrics"].get(f"{key}_{end}") for end in ("low", "high"))
        if low is not None and high is not None:
            axes[0, 0].plot([low, high], [y, y], color=colour, linewidth=1.5)
        for run in row.get("runs") or ():
            if len(row["runs"]) > 1 and run["metrics"].get(key) is not None:
                axes[0, 0].plot(run["metrics"][key], y - 0.28, marker="|", markersize=5, color=SOFT)
        filled = colour if not told_apart(row) else PAPER
        axes[0, 0].plot(value, y, marker="o", markersize=6, color=colour, markerfacecolor=filled)
        axes[0, 0].annotate(
            f"{value:,.{metric['digits']}f}", (1, y), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=9, color=INK,
        )  # fmt: skip
    axes[0, 0].set_yticks(range(len(drawn)), [plain(row["layer"]) for row in drawn])
    axes[0, 0].set_ylim(-0.6, len(drawn) - 0.4)
    if _is_wide([row["metrics"][metric["key"]] for row in drawn], metric):
        logarithmic(axes[0, 0].xaxis, lambda value: f"{value:g}")
    axes[0, 0].set_xlabel(_directed(metric))
    return figure


def learning_curves(rows: Rows, against: str) -> Figure | None:
    """Training loss, smoothed, against time, tokens or compute; points are losses on the held-out text.

    A counted model has no curve: where its loss is known it is a level line.

    Args:
        rows: of results.
        against: a key of `AGAINST`.
    """
    curves = {i: curve for i, row in enumerate(rows) if (curve := _smooth(_curve(row, against)))}
    if not curves:
        return None
    figure, axes = _tall(len(rows))
    levels = {i: row["metrics"]["loss"] for i, row in enumerate(rows) if _is_level(row) and i not in curves}
    ends = [(i, rows[i]["layer"], curve[-1][1]) for i, curve in curves.items()]
    ends += [(i, f"{rows[i]['layer']} (counted)", level) for i, level in levels.items()]
    for i, curve in curves.items():
        axes.plot(*zip(*_thinned(curve), strict=True), **style(i) | {"marker": ""})
        held = _held_out(rows[i], against, {"loss": float, "perplexity": math.log})
        axes.plot([x for x, _ in held], [y for _, y in held], **style(i) | {"linestyle": ""})
    for i, level in levels.items():
        axes.axhline(level, **style(i) | {"marker": ""})
    _frame_curves(axes, list(curves.values()), [end[2] for end in ends])
    _against(axes, against)
    axes.set_ylabel("training loss (nats)")
    end_labels(axes, ends)
    return figure


def held_out_curves(rows: Rows, against: str, *, key: str, name: str) -> Figure | None:
    """A figure measured on held-out text while training, against time, tokens or compute.

    Args:
        rows: of results.
        against: a key of `AGAINST`.
        key: of the figure.
        name: of the figure.
    """
    curves = {i: points for i, row in enumerate(rows) if (points := _held_out(row, against, {key: float}))}
    if not any(len(points) > 1 for points in curves.values()):
        return None
    figure, axes = _tall(len(rows))
    for i, points in curves.items():
        axes.plot(*zip(*points, strict=True), **style(i))
    axes.set_ylabel(plain(name))
    _against(axes, against)
    end_labels(axes, [(i, rows[i]["layer"], points[-1][1]) for i, points in curves.items()])
    return figure


def quality_against(
    rows: Rows, metric: Row, *, of: Callable[[Row], float | None], name: str, written: Callable[[float], str] = in_short
) -> Figure | None:
    """The metric of each layer against something that it costs or does, on a logarithmic scale.

    Args:
        rows: of results.
        metric: of results.
        of: what a layer costs; what is None or not above zero is left out.
        name: of that, with its unit.
        written: a number of it, as its axis shows it.
    """
    points = [
        (i, row["layer"], cost, value)
        for i, row in enumerate(rows)
        if (value := value_of(row, metric["key"])) is not None and (cost := of(row)) is not None and cost > 0
    ]
    if len(points) < 2:
        return None
    figure, axes = new_figure()
    for i, _, x, y in points:
        axes[0, 0].plot(x, y, **style(i) | {"markersize": 7})
    if _is_wide([y for *_, y in points], metric):
        logarithmic(axes[0, 0].yaxis, lambda value: f"{value:g}")
    axes[0, 0].margins(0.12)
    logarithmic(axes[0, 0].xaxis, written)
    axes[0, 0].set_xlabel(plain(name))
    axes[0, 0].set_ylabel(plain(metric["name"]))
    point_labels(axes[0, 0], [(layer, x, y) for _, layer, x, y in points])
    return figure


def state_growth(rows: Rows) -> Figure | None:
    """Bytes of the state against the tokens it has seen, both logarithmic; what keeps nothing is left out."""
    return _growth(rows, "state_bytes", "tokens seen", "state size", in_bytes)


def step_cost(rows: Rows) -> Figure | None:
    """Milliseconds that one step takes, against how many tokens came before it, both logarithmic."""
    return _growth(rows, "step_milliseconds", "tokens seen", "milliseconds a step", in_short)


def reading_cost(rows: Rows) -> Figure | None:
    """Milliseconds that reading a text at once takes, against its length in tokens, both logarithmic."""
    return _growth(rows, "reading_milliseconds", "tokens in the text", "milliseconds to read it", in_short)


def distance_plot(rows: Rows) -> Figure | None:
    """A figure of each layer against distance: of the tokens it sees, of what it must remember, or of input lengths."""
    curves = {i: points for i, row in enumerate(rows) if (points := _points((row.get("distance") or {}).get("values")))}
    if not curves:
        return None
    figure, axes = _tall(len(rows))
    for i, points in curves.items():
        axes.plot(*zip(*points, strict=True), **style(i))
    logarithmic(axes.xaxis, in_short)
    axes.set_xticks(sorted({x for points in curves.values() for x, _ in points}))
    axes.set_xticks([], minor=True)
    first = next(row["distance"] for row in rows if row.get("distance"))
    context = first.get("kind") == "context"
    axes.set_xlabel(plain("last tokens seen" if context else first.get("unit", "tokens")))
    axes.set_ylabel(plain(first.get("of", "accuracy")))
    end_labels(axes, [(i, rows[i]["layer"], points[-1][1]) for i, points in curves.items()])
    return figure


def _growth(rows: Rows, key: str, x: str, y: str, written: Callable[[float], str]) -> Figure | None:
    curves = {
        i: points for i, row in enumerate(rows) if (points := [each for each in _points(row.get(key)) if each[1] > 0])
    }
    if not curves:
        return None
    figure, axes = _tall(len(rows))
    for i, points in curves.items():
        axes.plot(*zip(*points, strict=True), **style(i))
    logarithmic(axes.xaxis, in_short)
    logarithmic(axes.yaxis, written)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    end_labels(axes, [(i, rows[i]["layer"], points[-1][1]) for i, points in curves.items()])
    return figure


def _tall(lines: int) -> tuple[Figure, Any]:
    """A figure with room for as many names beside its plot."""
    figure, axes = new_figure(height=max(3.0, 0.7 + 0.17 * lines))
    return figure, axes[0, 0]


def _points(values: Mapping[str, float | None] | None) -> list[tuple[float, float]]:
    return sorted((float(x), float(y)) for x, y in (values or {}).items() if y is not None)


def _curve(row: Row, against: str) -> list[tuple[float, float]]:
    return [
        (each[against], each["loss"])
        for each in row.get("curve") or ()
        if (each.get(against) or 0) > 0 and each.get("loss") is not None
    ]


def _is_level(row: Row) -> bool:
    return bool(row.get("counted")) and (row.get("metrics") or {}).get("loss") is not None


def _held_out(row: Row, against: str, keys: Mapping[str, Callable[[float], float]]) -> list[tuple[float, float]]:
    """Held-out values of the figures named, made what ``keys`` say."""
    return [
        (each[against], keys[each["key"]](each["value"]))
        for each in row.get("held_out") or ()
        if each["key"] in keys and (each.get(against) or 0) > 0 and each.get("value") is not None
    ]


def _smooth(curve: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each point the mean of those before it, as far back as a twentieth of the way it has come."""
    sums = [0.0]
    for _, y in curve:
        sums.append(sums[-1] + y)
    smooth = []
    for i, (x, _) in enumerate(curve):
        back = 1 + i // 20
        smooth.append((x, (sums[i + 1] - sums[i + 1 - back]) / back))
    return smooth


def _thinned(curve: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """As many points as can be seen, evenly spaced on a logarithmic scale; the last is kept."""
    if len(curve) <= POINTS:
        return curve
    kept = {round(len(curve) ** (k / (POINTS - 1))) - 1 for k in range(POINTS)}
    return [curve[i] for i in sorted(kept)]


def _frame_curves(axes: Any, curves: list[list[tuple[float, float]]], ends: list[float]) -> None:
    """Leaves out of the frame how high losses are at the very start, where all are alike."""
    top = max(max(curve[len(curve) // 20][1] for curve in curves), *ends)
    bottom = min(min(y for curve in curves for _, y in curve), *ends)
    apart = max(max(ends) - min(ends), 0.35 * max(ends))
    top = min(top, max(ends) + apart)
    if bottom > 0 and top > 6 * bottom:
        logarithmic(axes.yaxis, in_short)
        axes.set_ylim(bottom / 1.1, top * 1.1)
    else:
        room = (top - bottom or 1.0) * 0.06
        axes.set_ylim(bottom - room, top + room)


def _against(axes: Any, against: str) -> None:
    logarithmic(axes.xaxis, in_short)
    axes.set_xlabel(AGAINST[against] + (" (seconds)" if against == "seconds" else ""))


def _is_wide(values: list[float], metric: Row) -> bool:
    """Whether a logarithmic scale is called for, which shares such as accuracy are never shown on."""
    return not metric["more_is_better"] and min(values) > 0 and max(values) > 3 * min(values)


def _directed(metric: Row) -> str:
    return plain(f"{metric['name']}, {'higher' if metric['more_is_better'] else 'lower'} is better")


def logarithmic(axis: Any, written: Callable[[float], str]) -> None:
    """A logarithmic axis with numbers written out; between powers too where it spans few of them."""
    setter = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    setter("log")
    low, high = sorted(axis.get_view_interval())
    span = high / low if low > 0 else math.inf
    steps = {
        4: (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0),
        8: (1.0, 2.0, 3.0, 5.0),
        40 if axis.axis_name == "x" else 200: (1.0, 2.0, 5.0),
    }
    between = next((numbers for most, numbers in steps.items() if span < most), (1.0,))
    axis.set_major_locator(LogLocator(subs=between, numticks=12) if span > FEW else MaxNLocator(4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axis.set_minor_formatter(NullFormatter())
