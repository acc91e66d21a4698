"""The tables of a comparison page."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..evaluation.displayed_metrics import Metric
from ..pages.page import Cell, Table
from ..pages.wording import in_bytes, in_time, in_time_range, listed, percent, rounded, sentence_case, times
from . import sentences
from .results import DEVIATION, ResultRow, Results
from .verdict import difference_and_interval

# What a longer budget would bring: a curve through the held-out figures of a training, and its error.
# The error of a model (a loss, or the distance of a share from 1) falls with the tokens read as a power law with a
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
Point = tuple[float, float]


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
GAIN = f"perplexity lowered by context beyond {BEYOND} tokens"
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
        return Column(GAIN, lambda row: (row.at_distance.gain_beyond(BEYOND) or {}).get("share"), _gain)
    farthest = max((far for row in results.rows for far, _ in row.at_distance.points), default=0)
    length = distance.kind == "length"  # the figure is the metric then
    heading = f"{distance.of}, longest inputs" if length else f"{distance.of} at {farthest} {distance.unit}"
    best = results.metric.best if length else max
    return Column(
        heading,
        lambda row: row.at_distance.values.get(str(farthest)),
        lambda row: row.at_distance.written(farthest),
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
    gain = row.at_distance.gain_beyond(BEYOND) or {}
    text, _, bounds = sentences.in_share(gain).partition(" (")
    return f"−{text}" if gain["share"] < 0 and text != "0 %" else text, bounds.removesuffix(")")


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
