"""The tables and the plots of a comparison page."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..evaluation.intervals import Metric
from ..pages.charts import ChartLine, Format, Point, end_labels, line_chart, logarithmic, point_labels, tall_figure
from ..pages.drawing import show
from ..pages.page import Cell, Table
from ..pages.palette import INK, PAPER, SOFT
from ..pages.theme import layer_style, new_figure, plain
from ..pages.wording import in_bytes, in_short, in_time, in_time_range, listed, percent, rounded, sentence_case, times
from . import sentences
from .results import DEVIATION, ResultRow, Results
from .verdict import difference_and_interval

# What a longer budget would bring: a curve through the held-out figures of a training, and its error.
# The error of a model (a loss, or the distance of a fraction from 1) falls with the tokens read as a power law with a
# floor, ``a + b · tokens^−c`` (J. Hestness et al., "Deep learning scaling is predictable, empirically", 2017). The same
# fit without the last validations predicts them, which shows how far it can be trusted.


FACTOR = 4
"""The budget of the extrapolation, in budgets of the comparison."""
MIN_POINTS, HELD_BACK = 6, 2
"""The smallest number of validations that are extrapolated, and how many of the last are held back for the error."""
CERTAIN = 2
"""How many times larger than the error a change must be to be shown."""
EXPONENTS = np.geomspace(0.02, 3, 120)
"""Exponents c that are tried."""


class Extrapolation(NamedTuple):
    """The value now and at `FACTOR` times the budget, and the largest error at the points that were held back.

    All are in the unit of the figure. ``value`` is None unless the change is at least `CERTAIN` times the error.
    ``horizon`` is how far ahead the error was measured: the tokens at the last point, in tokens at the last one that
    was not held back.
    """

    now: float
    value: float | None
    error: float
    horizon: float


def extrapolate(points: Sequence[Point], *, ceiling: float | None = None) -> Extrapolation | None:
    """Extrapolate a figure at several numbers of tokens, ``(tokens, value)``, to `FACTOR` times the last number.

    ``ceiling`` is the largest possible value of a figure of which more is better; None for one that falls towards 0 or
    a floor above it. Perplexities should be given as losses. None if there are fewer than `MIN_POINTS` points.
    """
    known = np.array([point for point in points if np.isfinite(point).all() and point[0] > 0])
    if len(known) < MIN_POINTS:
        return None
    tokens, values = known.T
    errors = values if ceiling is None else ceiling - values
    shown = errors[:-HELD_BACK]
    held_back = np.abs(_predict(tokens[:-HELD_BACK], shown, tokens[-HELD_BACK:]) - errors[-HELD_BACK:]).max()
    later = float(_predict(tokens, errors, tokens[-1:] * FACTOR)[0])
    value = later if ceiling is None else ceiling - later
    is_certain = abs(later - errors[-1]) >= CERTAIN * held_back
    horizon = float(tokens[-1] / tokens[-HELD_BACK - 1])
    return Extrapolation(float(values[-1]), value if is_certain else None, float(held_back), horizon)


def _predict(tokens: np.ndarray, errors: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Fit the law to errors by least squares of relative deviations, with a, b ≥ 0, and return its values ``at``."""
    scale, weights = tokens[-1], 1 / np.maximum(errors, 1e-9)
    best, result = np.inf, np.full(len(at), errors.mean())
    for exponent in EXPONENTS:
        powers = (tokens / scale) ** -exponent
        for columns in (np.stack([np.ones_like(powers), powers], 1), powers[:, None]):
            coefficients, *_ = np.linalg.lstsq(columns * weights[:, None], errors * weights, rcond=None)
            deviation = float((((columns @ coefficients) * weights - 1) ** 2).sum())
            if (coefficients >= 0).all() and deviation < best:
                later = (at / scale) ** -exponent
                best, result = deviation, coefficients[-1] * later + (coefficients[0] if len(coefficients) > 1 else 0)
    return result


SPEED, TRAINING, TOKEN = "training tokens/s", "training time", "time per token"
BEYOND = 4
GAIN = f"gained a token by context beyond {BEYOND} tokens"
"""The number of tokens beyond which the gain from context stands in the summary, and its heading."""
MISSING = "–"
EXPONENTIAL = ("perplexity", "word_perplexity")
"""Figures whose logarithm is extrapolated."""
Cells = list[str | Cell]


class Column(NamedTuple):
    """A column of the summary: heading, value of a row, its text and note, and how the best value is chosen."""

    heading: str
    value: Callable[[ResultRow], float | None]
    written: Callable[[ResultRow], tuple[str, str] | str]
    best: Callable[[Sequence[float]], float] | None = None


def summary_table(results: Results, pages: Mapping[str, str] = MappingProxyType({})) -> Table:
    """Return one row for each layer, best first; the best value of each column is marked.

    ``pages`` has the address that the name of a layer leads to.
    """
    columns = [column for column in _columns(results) if any(column.value(row) is not None for row in results.rows)]

    # The layers have ranks only where a test compared them.
    ranked = results.is_tested
    cells: list[Cells] = []
    for row in results.ranked:
        figures: Cells = [Cell(f"failed: {row.failed}", span=max(1, len(columns)))]
        if not row.failed:
            figures = [_summary_cell(row, column, results) for column in columns]
        notes = [*["baseline"] * row.baseline, *["not trained by steps"] * row.counted, *filter(None, [row.lacking])]
        rank: Cells = [MISSING if row.rank is None else str(row.rank)] if ranked else []
        cells.append([Cell(row.layer, note=", ".join(notes), address=pages.get(row.layer, "")), *rank, *figures])
    caption = "Best first. The best of a column is bold and underlined"
    caption += "; the 95 % interval is below the metric." if results.has_intervals else "."
    if ranked:
        caption += " Layers of one rank do not differ significantly from the first of them (paired bootstrap)."
    elif len(results.measured) > 1:
        caption += f" The layers were not tested against each other on {results.metric.name}, so no ranks are given."
    if any(row.lacking for row in results.rows):
        caption += " A layer of which a seed is missing has no rank."
    if any(row.counted for row in results.rows):
        caption += f" Models that are not trained by steps are left out when the best {SPEED} is marked."
    if any(row.missed_budget for row in results.rows):
        caption += f" ≠: more than {100 * DEVIATION:g} % longer or shorter than the budget."
    if len(results.seeds) == 1:
        caption += " One seed was run."
    headings = ["layer", *(["rank"] if ranked else []), *(column.heading for column in columns)]
    return _table(headings, cells, caption)


def _columns(results: Results) -> list[Column]:
    metric = results.metric

    # A test may be of another figure than the metric, such as the loss; the heading then says which.
    keys = {row.difference.get("key", metric.key) for row in results.measured if row.is_tested} - {metric.key}
    apart = f"difference in {keys.pop()} from the best" if keys else "difference from the best"
    columns = [
        Column(
            metric.name,
            lambda row: row.value(metric.key),
            lambda row: (metric.text(row.metrics), metric.interval(row.metrics)),
            metric.best,
        ),
        Column(
            apart,
            lambda row: row.difference.get("difference") if row.is_tested else None,
            lambda row: difference_and_interval(results, row.difference),
        ),
        Column("parameters", lambda row: row.parameters, lambda row: _number(row.parameters)),
        Column("on disk", lambda row: row.disk_bytes, lambda row: in_bytes(row.disk_bytes or 0), min),
        Column(TRAINING, lambda row: row.training_seconds, _training_time),
        Column(SPEED, lambda row: row.tokens_per_second, lambda row: rounded(row.tokens_per_second or 0), max),
        Column("memory", lambda row: row.memory_bytes, lambda row: in_bytes(row.memory_bytes or 0), min),
        Column("state at 1,000 tokens", _state, lambda row: in_bytes(_state(row) or 0), min),
        Column(TOKEN, lambda row: row.milliseconds_per_token, _token_time, min),
    ]
    return [*columns, _distance_column(results)]


def _distance_column(results: Results) -> Column:
    """Return the gain from context, or the figure at the largest distance or length."""
    distance = results.at_distance()
    if distance.kind == "context":
        return Column(GAIN, lambda row: (row.distance.gain_beyond(BEYOND) or {}).get("bits"), _gain)
    farthest = max((far for row in results.rows for far, _ in row.distance.points), default=0)
    length = distance.kind == "length"  # the figure is the metric then
    heading = f"{distance.of}, longest inputs" if length else f"{distance.of} at {farthest} {distance.unit}"
    best = results.metric.best if length else max
    return Column(
        heading,
        lambda row: row.distance.values.get(str(farthest)),
        lambda row: row.distance.written(farthest),
        best,
    )


def _state(row: ResultRow) -> float | None:
    return row.state_bytes.get("1000")


def _training_time(row: ResultRow) -> tuple[str, str]:
    text = in_time(1000 * (row.training_seconds or 0))
    epochs = "" if row.epochs is None else f"{rounded(row.epochs, 2)} epochs"
    return f"≠ {text}" if row.missed_budget else text, epochs


def _token_time(row: ResultRow) -> tuple[str, str]:
    spread = in_time_range(*row.milliseconds_spread) if row.milliseconds_spread else ""
    return in_time(row.milliseconds_per_token or 0), spread


def _gain(row: ResultRow) -> tuple[str, str]:
    gain = row.distance.gain_beyond(BEYOND) or {}
    text, _, bounds = sentences.in_bits(gain).partition(" (")
    return f"−{text}" if gain["bits"] < 0 else text, bounds.removesuffix(")")


def _summary_cell(row: ResultRow, column: Column, results: Results) -> Cell | str:
    """Return a cell; the speed of counted models is not compared with that of trained ones."""
    value = column.value(row)
    if value is None:
        return MISSING
    compared = [each for each in results.rows if not (each.lacking or (column.heading == SPEED and each.counted))]
    values = [other for each in compared if (other := column.value(each)) is not None]
    is_best = row in compared and column.best is not None and len(values) > 1 and value == column.best(values)
    written = column.written(row)
    text, note = (written, "") if isinstance(written, str) else written
    return Cell(text, "best" if is_best else "", note, value=value)


def _metric_cell(row: ResultRow, metric: Metric) -> Cell | str:
    value = row.value(metric.key)
    note = metric.interval(row.metrics)
    return MISSING if value is None else Cell(metric.text(row.metrics), note=note, value=value)


def words_table(results: Results) -> Table:
    """Return the summary in words, best first."""
    cells: list[Cells] = []
    for row in results.ranked:
        how: Cells = [Cell(f"failed: {row.failed}", span=5)]
        if not row.failed:
            how = [sentences.training(row, results), sentences.generating(row, results), sentences.using_context(row)]
            how += [sentences.metric_in_words(row, results), sentences.training_remarks(row, results)]
        cells.append([row.layer, sentences.kept_state(row), *how])
    answering = "generates" if results.continues_text else "answers"
    of_distance = {"context": "context", "length": "length of inputs"}.get(results.at_distance().kind, "distance")
    headings = ["layer", "keeps", "trains", answering, of_distance, results.metric.name, "its training"]
    return Table(headings, cells, "What each layer keeps and does, by the figures of this page.", stacked=True)


def state_size_table(results: Results) -> Table:
    """Return one row for each layer and width: state, parameters, and the metric with its interval."""
    metric, cells = results.metric, list[Cells]()
    for layer, rows in results.by_width().items():
        for row in rows:
            sizes = f"{row.width:,}", in_bytes(row.state), _number(row.parameters)
            cells.append([layer, *sizes, _metric_cell(row, metric)])
    headings = ["layer", "width", "state", "parameters", metric.name]
    return _table(headings, cells, "The widths of each layer, smallest state first.")


def metrics_table(results: Results) -> Table | None:
    """Return every figure of the task with its interval; None where there is only the metric."""
    rows = [row for row in results.ranked if not row.failed]
    figures = [figure for figure in results.figures if any(row.value(figure.key) is not None for row in rows)]
    if len(figures) < 2:
        return None
    cells: list[Cells] = [[row.layer, *(_metric_cell(row, figure) for figure in figures)] for row in rows]
    caption = "All figures of the task on the same data, with 95 % intervals."
    if bare := [figure.name for figure in figures if not any(row.interval(figure.key) for row in rows)]:
        caption += f" No interval is known for {listed(bare)}."
    return _table(["layer", *(figure.name for figure in figures)], cells, caption)


def seeds_table(results: Results) -> Table | None:
    """Return the metric of every seed; None where there is one seed."""
    metric, cells = results.metric, list[Cells]()
    for row in results.ranked:
        by_seed = {run["seed"]: run["metrics"].get(metric.key) for run in row.runs}
        values = [value for value in by_seed.values() if value is not None]
        if values:
            bounds = row.interval(metric.key)
            shown = [
                MISSING if (value := by_seed.get(seed)) is None else metric.written(value, bounds)
                for seed in results.seeds
            ]
            cells.append([row.layer, *shown, metric.written(max(values) - min(values), bounds)])
    caption = f"{sentence_case(metric.name)} of each seed, and the difference between the highest and the lowest."
    headings = ["layer", *(f"seed {seed}" for seed in results.seeds), "range"]
    return _table(headings, cells, caption) if cells and len(results.seeds) > 1 else None


def trials_table(results: Results) -> Table | None:
    """Return the learning rates that were tried, the chosen one marked; None where none were tried."""
    rows = [row for row in results.ranked if row.tried]
    rates = sorted({trial["learning_rate"] for row in rows for trial in row.tried})
    cells: list[Cells] = []
    for row in rows:
        values = {trial["learning_rate"]: trial.get("value") for trial in row.tried}
        texts = {rate: "failed" if value is None else f"{value:.4g}" for rate, value in values.items()}
        marks = {row.learning_rate: "best"}
        cells.append([row.layer, *(Cell(texts.get(rate, MISSING), marks.get(rate, "")) for rate in rates)])
    caption = (
        "Learning rates that were tried within the budget, with the held-out figure; the chosen one is underlined."
    )
    return _table(["layer", *(f"{rate:g}" for rate in rates)], cells, caption) if rows else None


def longer_budget_table(results: Results) -> Table | None:
    """Return the held-out metric of each trained layer with `FACTOR` times the budget, extrapolated, with its error."""
    metric, cells = results.metric, list[Cells]()

    # A power law describes losses, not perplexities, which are their exponentials.
    is_exponential = metric.key in EXPONENTIAL
    for row in results.ranked:
        validations = [each for each in row.held_out if each.get("key") == metric.key]
        points = [(each["tokens"], each["value"]) for each in validations]
        if is_exponential:
            points = [(tokens, math.log(value)) for tokens, value in points if value and value > 0]
        curve = extrapolate(points, ceiling=metric.ceiling if metric.more_is_better else None)
        if curve is not None:
            now, later = (
                None if value is None else math.exp(value) if is_exponential else value
                for value in (curve.now, curve.value)
            )
            error = math.expm1(curve.error) if is_exponential else curve.error / max(abs(curve.now), 1e-9)
            around = None if later is None else (later * (1 - error), later * (1 + error))
            value = "not known" if later is None else metric.written(later, around)
            last = {f"{metric.key}{end}": validations[-1].get(end[1:]) for end in ("_low", "_high")}
            end = Cell(metric.text({metric.key: now, **last}), note=metric.interval(last), value=now)
            ahead = f"{percent(error)} at {times(curve.horizon)} the tokens"
            cells.append([row.layer, end, Cell(value, value=later), Cell(ahead, value=error)])
    if not cells:
        return None
    caption = (
        f"An extrapolation, not a measurement: the held-out {metric.name} of the first seed with {FACTOR} times the "
        "budget, by a power law with a floor through the validations. The error is that of the same law at the last "
        f"{HELD_BACK} validations when it is fitted without them. It was measured only as far ahead as the table says, "
        f"in tokens; further ahead it is larger. Where the change is less than {CERTAIN} times the error, the value is "
        "not known. The law does not know whether a layer will overfit, and a longer training lowers its learning rate "
        "more slowly."
    )
    headings = ["layer", f"{metric.name} at the end", f"with {FACTOR} times the budget", "error at held-back points"]
    return _table(headings, cells, caption)


def shapes_table(results: Results) -> Table:
    """Return the sizes and options of each layer, and how long and on how much it was trained."""
    cells: list[Cells] = []
    for row in results.ranked:
        if row.failed:
            continue

        # One seed stands for all: they have the same sizes and nearly the same cost.
        run = next(iter(row.runs), {})
        seconds = run.get("training_seconds")
        cells.append(
            [
                row.layer,
                *map(_number, (row.embedding_size, row.hidden_size, row.num_layers)),
                ", ".join(f"{key} {_option(value)}" for key, value in row.options.items()) or MISSING,
                MISSING if row.learning_rate is None else f"{row.learning_rate:g}",
                *map(_number, (run.get("steps"), run.get("tokens"))),
                MISSING if seconds is None else in_time(1000 * seconds),
                row.paper or MISSING,
            ]
        )
    headings = ["layer", "embedding", "hidden", "layers", "options", "learning rate", "steps", "tokens"]
    caption = "Sizes and options of the layers, and the training of the first seed."
    return Table([*headings, "training time", "paper"], cells, caption, {1, 2, 3, 5, 6, 7, 8})


def _option(value: object) -> str:
    """Return the value of an option as the command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def _table(headings: Sequence[str], cells: list[Cells], caption: str) -> Table:
    """Return a table whose columns but the first are numbers."""
    return Table(headings, cells, caption, range(1, len(headings)))


AGAINST = {"seconds": "training time", "tokens": "tokens read", "compute": "floating-point operations"}
"""Horizontal axes of learning curves, and their names."""
MAX_POINTS = 150  # points of a curve, at most, which keeps the page small
WIDE = 3  # ratio of the largest to the smallest value above which the axis of an error is logarithmic


# Plots. A layer has the same style in all of them; rows without the values to plot are left out.


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

    # A single point is no front: no other layer is better or cheaper.
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
        bounds = [(float(far), low, high) for far, (low, high) in row.distance.bounds.items()]
        known = [(far, low, high) for far, low, high in bounds if low is not None and high is not None]
        lines.append(ChartLine(row.layer, row.distance.points, known))
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
    indices = {round(len(curve) ** (k / (MAX_POINTS - 1))) - 1 for k in range(MAX_POINTS)}
    return [curve[i] for i in sorted(indices)]


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
    """Return whether values need a logarithmic axis, which fractions such as accuracy never get."""
    return not metric.more_is_better and min(values) > 0 and max(values) > WIDE * min(values)
