"""The charts of a comparison page, each declared from the rows."""

from collections.abc import Callable, Mapping, Sequence

from ..core.json_object import JsonMapping
from ..pages.chart import Axis, Chart, Series, Switch, log_axis
from ..pages.page import PageBlock
from ..pages.ranking import Bar, RankedRow, Ranking
from ..pages.theme import colour_name
from ..pages.wording import in_bytes, in_short, sentence_case
from . import tables
from .findings import value_text
from .results import ResultRow, Results
from .tables import Column

AGAINST = {"seconds": "training time (s)", "tokens": "tokens read", "step": "steps"}
"""Horizontal axes of the learning curves, and their names."""
SMOOTHED = 3
"""Validations of which a point of a smoothed learning curve is the mean."""
WIDE = 3
"""Ratio of the largest to the smallest error above which its axis is logarithmic."""
UNKNOWN, NOTHING, NO_VALUE = "not measured", "it is 0", "without a finite value"
"""Reasons why a layer is not in a chart; a logarithmic axis has no 0."""
MIN_RATIO = 1.1
"""The ratio of the largest to the smallest cost from which quality is drawn against it."""


COSTS: tuple[tuple[str, Column, Callable[[float], str]], ...] = (
    ("training time (s)", tables.TRAINING, in_short),
    ("milliseconds per token", tables.TOKEN_TIME, in_short),
    ("peak memory in training", tables.MEMORY, in_bytes),
    ("state", tables.STATE, in_bytes),
    ("parameters", tables.PARAMETERS, in_short),
    ("size on disk", tables.DISK, in_bytes),
)
"""Costs: the name with the unit, the column of the table, and how an axis writes it."""
BARS = (tables.TRAINING, tables.TOKEN_TIME, tables.MEMORY, tables.STATE)
"""The costs that stand as small bars beside the metric."""


def ranking(results: Results, pages: dict[str, str]) -> Ranking:
    """Return the first chart of the page: the metric of each row, ties, and costs."""
    metric = results.metric
    costs = [(column, texts) for column in BARS if (texts := tables.texts_of(column, results))]
    rows = []
    for row in results.ranked:
        notes = ["baseline"] * row.baseline + [row.lacking] * bool(row.lacking)
        value = row.value(metric.key)
        reason = f"failed: {row.failed}" if row.failed else NO_VALUE
        rows.append(
            RankedRow(
                row.layer,
                value,
                "" if value is None else value_text(results, row),
                row.interval(metric.key),
                [_bar(column, texts, row) for column, texts in costs],
                row.rank,
                ", ".join(notes) if value is not None else reason,
                colour_name(row.layer),
                pages.get(row.layer, ""),
            )
        )
    is_log = _is_wide(results, [results.of(row) for row in results.measured])
    better = f"{'higher' if metric.more_is_better else 'lower'} is better{', logarithmic' * is_log}"
    kind = str(results.section("tokenizer").get("kind") or "")
    name = metric.name.replace("per token", f"per {kind} token") if kind else metric.name
    baseline = next((row for row in results.measured if row.baseline), None)
    level = None if baseline is None else (f"baseline {baseline.layer}", results.of(baseline))
    has_intervals = any(row.interval(metric.key) for row in results.measured)
    captions = ["Lines are 95 % intervals."] * has_intervals
    ranks = [row.rank for row in results.rows if row.rank is not None]
    captions += ["Brackets join layers of one rank, by paired tests."] * (len(set(ranks)) < len(ranks))
    return Ranking(
        f"{name}, {better}",
        rows,
        [column.heading for column, _ in costs],
        is_log,
        level,
        " ".join(captions),
    )


def _bar(column: Column, texts: Mapping[str, str], row: ResultRow) -> Bar:
    if row.layer not in texts:
        return Bar(tables.MISSING)
    return Bar(texts[row.layer], column.value(row), column.ends(row))


def learning(results: Results) -> list[PageBlock]:
    """Return the held-out metric while the layers are trained, against what the training has cost so far."""
    rows = [row for row in results.ran if not row.counted]
    key = max((results.metric.key, "loss"), key=lambda key: sum(bool(_validated(row, key)) for row in rows))
    name = next((figure.name for figure in (results.metric, *results.figures) if figure.key == key), key)
    choices = [
        (f"{sentence_case(against)}{', smoothed' * is_smooth}", chart)
        for is_smooth in (False, True)
        for field, against in AGAINST.items()
        if (chart := _curves(results, key, name, field, is_smooth=is_smooth))
    ]
    return [Switch(f"{sentence_case(name)} while training", choices)] if choices else []


def _curves(results: Results, key: str, name: str, field: str, *, is_smooth: bool) -> Chart:
    series, levels, missing = list[Series](), list[tuple[str, float]](), dict[str, str]()
    for row in results.rows:
        known = _validated(row, key)
        values = [value for _, value in known]
        if row.counted and values:
            levels.append((row.title, values[-1]))  # a counted model is not trained by steps
        elif len(values) > 1 and all(point.get(field) for point, _ in known):
            values = _smoothed(values) if is_smooth else values
            series.append(Series(row.layer, [float(point[field]) for point, _ in known], values))
        else:
            missing[row.layer] = "failed" if row.failed else "validated once" if len(known) == 1 else UNKNOWN
    tokens = results.section("validated_on").get("tokens")
    caption = f"On {tokens:,} tokens spread over the validation data." if tokens else "On the validation data."
    values = [value for each in series for value in each.y]
    y = Axis(name, "{:g}".format, is_log=_is_wide(results, values))
    caption += f" Means of {SMOOTHED} validations." * is_smooth
    return Chart("", Axis(AGAINST[field], in_short), y, series, caption, levels, missing)


def _validated(row: ResultRow, key: str) -> list[tuple[JsonMapping, float]]:
    """Return the validations that have a figure, with its value."""
    points = [(point, point.get("value" if point["key"] == key else key)) for point in row.held_out]
    return [(point, float(value)) for point, value in points if value is not None]


def _smoothed(values: Sequence[float]) -> list[float]:
    """Average each value with those directly before it."""
    windows = [values[max(0, i - SMOOTHED + 1) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def quality_against_cost(results: Results) -> list[PageBlock]:
    """Return the metric against each cost in which the layers differ."""
    choices = []
    for name, column, written in COSTS:
        known = {row.layer: value for row in results.measured if (value := column.value(row))}
        if len(known) < 2 or max(known.values()) < MIN_RATIO * min(known.values()):
            continue
        rows = [row for row in results.measured if row.layer in known]
        series = [
            Series(
                row.layer,
                [known[row.layer]],
                [results.of(row)],
                "dots",
                [row.interval(results.metric.key)],
                x_intervals=[(ends[0], ends[1]) if (ends := column.ends(row)) else None],
            )
            for row in rows
        ]
        y = Axis(results.metric.name, is_log=_is_wide(results, [results.of(row) for row in rows]))
        absent = [row for row in results.measured if row.layer not in known]
        missing = {row.layer: UNKNOWN if column.value(row) is None else NOTHING for row in absent}
        caption = f"{'Up' if results.metric.more_is_better else 'Down'} and left is better. Lines are 95 % intervals"
        caption += ", and ranges of repeated measurements." if any(column.ends(row) for row in rows) else "."
        of = f" {'of a source of' if results.has_sources else 'after'} 1,000 tokens" * (column is tables.STATE)
        choices.append((name, Chart("", log_axis(name + of, written), y, series, caption, missing=missing)))
    return [Switch(f"{sentence_case(results.metric.name)} against cost", choices)] if choices else []


def growth(results: Results) -> list[PageBlock]:
    """Return how state and times grow with the length of a text."""
    of = ("state_by_source", "tokens of the source") if results.has_sources else ("state_bytes", "tokens read")
    kinds = (
        ("state", of[0], "", log_axis("state of one text", in_bytes), of[1]),
        ("time of a step", "step_milliseconds", "step_spread", log_axis("milliseconds a step"), "tokens read"),
        ("time of a text", "reading_milliseconds", "reading_spread", log_axis("milliseconds a text"), "tokens at once"),
    )
    choices = []
    for name, field, spread, y_axis, x in kinds:
        series = []
        for row in results.ran:
            known = sorted((float(at), value) for at, value in getattr(row, field).items() if value)
            ends = getattr(row, spread) if spread else {}
            if known:
                ranges = [ends.get(f"{at:g}") for at, _ in known]
                intervals = [(each[0], each[1]) if each else None for each in ranges]
                series.append(Series(row.layer, [x for x, _ in known], [y for _, y in known], intervals=intervals))
        absent = [row for row in results.ran if row.layer not in {each.name for each in series}]
        missing = {row.layer: NOTHING if 0 in getattr(row, field).values() else UNKNOWN for row in absent}
        chart = Chart(
            "",
            log_axis(x),
            y_axis,
            series,
            "Strokes are ranges of repeated measurements." * bool(spread),
            missing=missing,
        )
        choices += [(name, chart)] if chart else []
    return [Switch("Cost and length of the text", choices, "showing")] if choices else []


def why_missing(row: ResultRow, results: Results) -> str:
    """Return why a layer that did not fail has no values in a chart about its predictions."""
    return NO_VALUE if row.value(results.metric.key) is None else UNKNOWN


def context(results: Results) -> list[PageBlock]:
    """Return what context gains in bits a token, or the metric at known distances."""
    distance = results.at_distance()
    series, missing = [], {}
    for row in results.ran:
        if row.distance.points and row.value(results.metric.key) is not None:
            x, y, intervals = zip(*row.distance.points, strict=True)
            series.append(Series(row.layer, x, y, intervals=intervals))
        else:
            missing[row.layer] = why_missing(row, results)
    if not series:
        return []
    if distance.kind == "context":
        title = "Bits a token that more context saves"
        caption = f"On {distance.measured}. " * bool(distance.measured)
        axes = log_axis("tokens of context, beyond which all the rest is added"), Axis("bits a token")
    else:
        title, caption = f"{sentence_case(distance.of)} by distance", f"{sentence_case(distance.name)}. "
        axes = log_axis(distance.unit), Axis(distance.of)
    return [Chart(title, *axes, series, f"{caption}Lines are 95 % intervals.", missing=missing)]


def state_sizes(results: Results) -> list[PageBlock]:
    """Return the metric against the size of the state, where layers were trained at several widths."""
    groups = results.by_width()
    if not any(len(rows) > 1 for rows in groups.values()):
        return []
    series = [
        Series(
            layer,
            [float(row.state) for row in rows],
            [results.of(row) for row in rows],
            intervals=[row.interval(results.metric.key) for row in rows],
        )
        for layer, rows in groups.items()
    ]
    title = f"{sentence_case(results.metric.name)} against the size of the state"
    caption = "Each line is a layer at several widths. Strokes are 95 % intervals."
    return [Chart(title, log_axis("state of one text", in_bytes), Axis(results.metric.name), series, caption)]


def _is_wide(results: Results, values: Sequence[float]) -> bool:
    """Return whether values need a logarithmic axis, which figures of which more is better never get."""
    return not results.metric.more_is_better and bool(values) and 0 < WIDE * min(values) < max(values)
