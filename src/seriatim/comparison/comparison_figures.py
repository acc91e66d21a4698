"""The plots of a comparison. A layer has the same style in all plots; rows without the values to plot are left out."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..evaluation.displayed_metrics import Metric
from ..pages.charts import ChartLine, Format, Point, end_labels, line_chart, logarithmic, point_labels, tall_figure
from ..pages.drawing import show
from ..pages.palette import INK, PAPER, SOFT
from ..pages.theme import layer_style, new_figure, plain
from ..pages.wording import in_bytes, in_short
from .results import ResultRow, Results

AGAINST = {"seconds": "training time", "tokens": "tokens read", "compute": "floating-point operations"}
"""Horizontal axes of learning curves, and their names."""
MAX_POINTS = 150  # points of a curve, at most, which keeps the page small
WIDE = 3  # ratio of the largest to the smallest value above which the axis of an error is logarithmic


def metric_plot(results: Results) -> Figure | None:
    """Draw the metric of each layer with its interval, best on top; small strokes are seeds.

    The dots of rows that differ significantly from the best one are hollow.
    """
    metric, rows = results.metric, results.measured[::-1]
    if not rows:
        return None
    figure, grid = new_figure(height=0.9 + 0.24 * len(rows))
    axes = grid[0, 0]

    # Intervals are drawn first and dots last, so that a dot covers its line.
    for y, row in enumerate(rows):
        colour, value = layer_style(row.layer)["color"], results.of(row)
        if interval := row.interval(metric.key):
            show(axes.plot(interval, [y, y], color=colour, linewidth=1.5), row.layer, is_interval=True)
        seeds = [run["metrics"].get(metric.key) for run in row.runs if len(row.runs) > 1]
        for seed in (value for value in seeds if value is not None):
            show(axes.plot(seed, y - 0.28, marker="|", markersize=5, color=SOFT), row.layer, part="one seed")
        face = PAPER if row.differs else colour
        show(axes.plot(value, y, marker="o", markersize=6, color=colour, markerfacecolor=face), row.layer)
        beside = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(
            metric.written(value, row.interval(metric.key)), (1, y), **beside, va="center", fontsize=9, color=INK
        )
    axes.set_yticks(range(len(rows)), [plain(row.layer) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    if _is_wide([results.of(row) for row in rows], metric):
        logarithmic(axes.xaxis, "{:g}".format)
    axes.set_xlabel(plain(f"{metric.name}, {'higher' if metric.more_is_better else 'lower'} is better"))
    return figure


def learning_curves(results: Results, against: str) -> Figure | None:
    """Draw smoothed training losses against a key of `AGAINST`."""
    rows = results.rows
    curves = {i: curve for i, row in enumerate(rows) if (curve := _smooth(_losses(row, against)))}
    if not curves:
        return None
    figure, axes = tall_figure(len(curves))
    ends = [(rows[i].layer, rows[i].layer, curve[-1][1]) for i, curve in curves.items()]
    for i, curve in curves.items():
        look = layer_style(rows[i].layer) | {"marker": ""}
        show(axes.plot(*zip(*_thinned(curve), strict=True), **look), rows[i].layer)
    _set_limits(axes, list(curves.values()), [end[2] for end in ends])
    logarithmic(axes.xaxis, in_short)
    axes.set_xlabel(_axis_name(against))
    axes.set_ylabel("training loss (nats)")
    end_labels(axes, ends)
    return figure


def held_out_curves(results: Results, against: str, *, key: str, name: str) -> Figure | None:
    """Draw a figure that was measured on held-out data during training, against a key of `AGAINST`."""
    lines = [ChartLine(row.layer, _held_out(row, against, key)) for row in results.rows]
    if not any(len(line.points) > 1 for line in lines):
        return None
    values = [value for line in lines for _, value in line.points]
    wide = min(values) > 0 and max(values) > WIDE * min(values) and not results.more_is_better(key)
    return line_chart(lines, x=_axis_name(against), y=name, y_format="{:g}".format if wide else None)


def quality_against(
    results: Results, cost: Callable[[ResultRow], float | None], *, name: str, written: Format = in_short
) -> Figure | None:
    """Draw the metric of each layer with its interval against a cost, and the Pareto front.

    The axis of the cost is logarithmic; ``name`` is that of the cost with its unit, and ``written`` writes its numbers.
    Rows whose cost is None or not positive are left out; None with fewer than two rows.
    """
    rows = [row for row in results.rows if row in results.measured and (cost(row) or 0) > 0]
    points = [(row.layer, float(cost(row) or 0), results.of(row)) for row in rows]
    if len(points) < 2:
        return None
    figure, grid = new_figure()
    axes = grid[0, 0]
    front = [(float(cost(row) or 0), results.of(row)) for row in pareto_front(results, cost)]
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=SOFT, linewidth=1, linestyle=":", drawstyle="steps-post", zorder=1)
    for row, (layer, x, y) in zip(rows, points, strict=True):
        show(axes.plot(x, y, **layer_style(layer) | {"markersize": 7}), layer)
        if ends := row.interval(results.metric.key):
            show(axes.plot([x, x], ends, color=layer_style(layer)["color"], linewidth=0.8), layer, is_interval=True)
    if _is_wide([y for *_, y in points], results.metric):
        logarithmic(axes.yaxis, "{:g}".format)
    axes.margins(0.12)
    logarithmic(axes.xaxis, written)
    axes.set_xlabel(plain(name))
    axes.set_ylabel(plain(results.metric.name))
    point_labels(axes, points)
    return figure


def pareto_front(results: Results, cost: Callable[[ResultRow], float | None]) -> list[ResultRow]:
    """Return the rows that no other row equals or exceeds in the metric at a smaller cost, smallest cost first."""
    front: list[ResultRow] = []
    known = [row for row in results.measured if (cost(row) or 0) > 0]  # best metric first, also among equal costs
    for row in sorted(known, key=lambda row: cost(row) or 0):
        if not front or results.metric.best([results.of(row), results.of(front[-1])]) != results.of(front[-1]):
            front.append(row)
    return front


def growth(results: Results, field: str, *, x: str, y: str, written: Format = in_short) -> Figure | None:
    """Draw a cost of each layer against a number of tokens, both logarithmic.

    ``field`` of a row holds the cost by the number of tokens; values of 0 are left out. ``x`` and ``y`` name the axes,
    and ``written`` writes the numbers of the vertical one.
    """
    lines = [
        ChartLine(row.layer, sorted((float(at), cost) for at, cost in getattr(row, field).items() if cost))
        for row in results.rows
    ]
    return line_chart(lines, x=x, y=y, y_format=written)


def distance_plot(results: Results) -> Figure | None:
    """Draw a figure of each layer against distance: tokens of context, distance to remember, or length of inputs."""
    distance = results.at_distance()
    lines = []
    for row in results.rows:
        bounds = [(float(far), low, high) for far, (low, high) in row.at_distance.bounds.items()]
        known = [(far, low, high) for far, low, high in bounds if low is not None and high is not None]
        lines.append(ChartLine(row.layer, row.at_distance.points, known))
    is_context = distance.kind == "context"
    wide = is_context and distance.of == "perplexity"
    x = "last tokens seen" if is_context else distance.unit
    figure = line_chart(lines, x=x, y=distance.of, y_format="{:g}".format if wide else None)
    if figure is not None:
        figure.axes[0].set_xticks(sorted({x for line in lines for x, _ in line.points}))
        figure.axes[0].set_xticks([], minor=True)
    return figure


def state_size_plot(results: Results) -> Figure | None:
    """Draw the metric against the bytes of the state, one line for each layer, with 95 % intervals."""
    lines = []
    for layer, rows in results.by_width().items():
        points = [(float(row.state), results.of(row)) for row in rows]
        bars = [(float(row.state), *ends) for row in rows if (ends := row.interval(results.metric.key))]
        lines.append(ChartLine(layer, points, bars))
    return line_chart(lines, x="state of one text", y=results.metric.name, x_format=in_bytes)


def _losses(row: ResultRow, against: str) -> list[Point]:
    known = [each for each in row.curve if (each.get(against) or 0) > 0 and each.get("loss") is not None]
    return [(each[against], each["loss"]) for each in known]


def _held_out(row: ResultRow, against: str, key: str) -> list[Point]:
    """Return the values of a figure at the validations of a training."""
    return [
        (each[against], each["value"])
        for each in row.held_out
        if each["key"] == key and (each.get(against) or 0) > 0 and each.get("value") is not None
    ]


def _smooth(curve: Sequence[Point]) -> list[Point]:
    """Average each point with those before it, over a twentieth of the curve so far."""
    sums = [0.0]
    for _, y in curve:
        sums.append(sums[-1] + y)
    return [(x, (sums[i + 1] - sums[i - i // 20]) / (1 + i // 20)) for i, (x, _) in enumerate(curve)]


def _thinned(curve: Sequence[Point]) -> Sequence[Point]:
    """Return as many points as can be seen, evenly spaced on a logarithmic scale, with the last one."""
    if len(curve) <= MAX_POINTS:
        return curve
    places = {round(len(curve) ** (k / (MAX_POINTS - 1))) - 1 for k in range(MAX_POINTS)}
    return [curve[i] for i in sorted(places)]


def _set_limits(axes: Axes, curves: Sequence[Sequence[Point]], ends: Sequence[float]) -> None:
    """Set vertical limits that leave out the steep start of the curves, where all are alike."""
    top = max(max(curve[len(curve) // 20][1] for curve in curves), *ends)
    bottom = min(min(y for curve in curves for _, y in curve), *ends)
    top = min(top, max(ends) + max(max(ends) - min(ends), 0.35 * max(ends)))
    if bottom > 0 and top > 6 * bottom:
        logarithmic(axes.yaxis, in_short)
        axes.set_ylim(bottom / 1.1, top * 1.1)
    else:
        margin = 0.06 * max(top - bottom, 1e-3 * abs(top)) or 0.06
        axes.set_ylim(bottom - margin, top + margin)


def _axis_name(against: str) -> str:
    return AGAINST[against] + (" (seconds)" if against == "seconds" else "")


def _is_wide(values: Sequence[float], metric: Metric) -> bool:
    """Return whether values need a logarithmic axis, which shares such as accuracy never get."""
    return not metric.more_is_better and min(values) > 0 and max(values) > WIDE * min(values)
