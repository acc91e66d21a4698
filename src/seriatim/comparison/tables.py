"""The tables of a comparison page: all rows, their settings, the machine, and what the figures mean."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from ..evaluation.intervals import Metric, supported_digits, written
from ..pages.page import Cell, Table
from ..pages.wording import in_bytes, in_time, rounded, same_digits, sentence_case, short_name
from .findings import MAX_DIFFERENCE_DIGITS, Caveats, same_conditions, shown_digits, tested_metric
from .results import ResultRow, Results

MISSING = "–"
Cells = list[str | Cell]


class Column(NamedTuple):
    """A column of the table: its heading, the value of a row, how all values are written, notes, and what is best.

    ``ends`` are those of repeated measurements of a value, or of its interval. The best value is marked only where the
    values are comparable, it is written differently from the others, its ends do not overlap with theirs, and the next
    one differs by more than the fraction ``noise``, where a measurement is not repeated.
    """

    heading: str
    value: Callable[[ResultRow], float | None]
    written: Callable[[Sequence[float]], list[str]]
    note: Callable[[ResultRow], str] = lambda row: ""
    ends: Callable[[ResultRow], Sequence[float]] = lambda row: ()
    best: Literal["min", "max", ""] = ""
    is_comparable: bool = True
    noise: float = 0.0


def _bytes(values: Sequence[float]) -> list[str]:
    return list(map(in_bytes, values))


def _whole(values: Sequence[float]) -> list[str]:
    return [f"{value:,.0f}" for value in values]


TRAINING = Column(
    "training (s)",
    lambda row: row.training_seconds,
    same_digits,
    lambda row: "" if row.epochs is None else f"{rounded(row.epochs, 2)} epochs",
    lambda row: row.seconds_range,
)
TOKEN_TIME = Column(
    "ms per token",
    lambda row: row.milliseconds_per_token,
    same_digits,
    lambda row: " to ".join(same_digits(list(row.milliseconds_spread))),
    lambda row: row.milliseconds_spread,
    "min",
)
PARAMETERS = Column("parameters", lambda row: row.parameters, _whole)
MEMORY = Column("memory", lambda row: row.memory_bytes, _bytes, best="min", noise=0.05)
STATE = Column("state", lambda row: row.state_after_thousand, _bytes, best="min")
DISK = Column("on disk", lambda row: row.disk_bytes, _bytes, best="min")


def summary_table(results: Results, pages: Mapping[str, str] = MappingProxyType({})) -> Table:
    """Return one row for each layer, best first; ``pages`` has the address that the name of a layer leads to."""
    has_ranks = any(row.rank is not None for row in results.rows)
    columns = [column for column in _columns(results) if texts_of(column, results)]
    texts = [texts_of(column, results) for column in columns]
    best = [_best(column, results, text) for column, text in zip(columns, texts, strict=True)]
    cells: list[Cells] = []
    for row in results.ranked:
        figures: Cells = [Cell(f"failed: {row.failed}", span=max(1, len(columns)))]
        if not row.failed:
            marks = ["best" * (layer == row.layer) for layer in best]
            figures = [_cell(*each, row) for each in zip(columns, texts, marks, strict=True)]
        notes = [*["baseline"] * row.baseline, *["not trained by steps"] * row.counted, *filter(None, [row.lacking])]
        rank: Cells = [MISSING if row.rank is None else str(row.rank)] if has_ranks else []
        cells.append([Cell(row.layer, note=", ".join(notes), address=pages.get(row.layer, "")), *rank, *figures])
    headings = ["layer", *["rank"] * has_ranks, *(column.heading for column in columns)]
    directions = ["", *["min"] * has_ranks, *(column.best for column in columns)]
    caption = (
        "Best first. Bold: best of the column, by more than the ranges below the values, of memory by more than 5 %."
    )
    return Table(headings, cells, caption, range(1, len(headings)), best=directions)


def _cell(column: Column, texts: Mapping[str, str], mark: str, row: ResultRow) -> str | Cell:
    if row.layer not in texts:
        return MISSING
    return Cell(texts[row.layer], mark, column.note(row), value=column.value(row))


def texts_of(column: Column, results: Results) -> dict[str, str]:
    """Return the values of a column by layer, written alike, of the rows that have one."""
    known = {row.layer: value for row in results.ran if (value := column.value(row)) is not None}
    return dict(zip(known, column.written(list(known.values())), strict=True))


def _best(column: Column, results: Results, texts: Mapping[str, str]) -> str:
    """Return the layer with the best value of a column; empty where the figures do not tell it from the others."""
    rows = [row for row in results.measured if row.layer in texts and not row.lacking]
    if not column.best or not column.is_comparable or len(rows) < 2:
        return ""
    sign = 1 if column.best == "max" else -1
    first, *others = sorted(rows, key=lambda row: -sign * (column.value(row) or 0.0))
    worst = min((sign * end for end in column.ends(first)), default=math.inf)
    reached = max((sign * end for row in others for end in column.ends(row)), default=-math.inf)
    value, second = (column.value(row) or 0.0 for row in (first, others[0]))
    is_near = texts[first.layer] == texts[others[0].layer] or abs(value - second) < column.noise * abs(second)
    return "" if is_near or worst <= reached else first.layer


def metric_column(results: Results, metric: Metric) -> Column:
    """Return the column of a figure."""
    digits = shown_digits(results, metric)
    return Column(
        metric.name,
        lambda row: row.value(metric.key),
        lambda values: [written(value, digits) for value in values],
        lambda row: metric.interval(row.metrics),
        lambda row: row.interval(metric.key) or (),
        "max" if metric.more_is_better else "min",
        results.is_tested,
    )


def _columns(results: Results) -> list[Column]:
    timed = same_conditions(results.ran)
    speed = Column(
        "training tokens/s",
        lambda row: None if row.counted else row.tokens_per_second,
        lambda values: [rounded(value) for value in values],
        ends=lambda row: [value for run in row.runs if (value := run.get("tokens_per_second"))],
        best="max",
        is_comparable=timed and len(results.seeds) > 1,  # one training is no repetition
    )
    quality = [metric_column(results, results.metric), _difference(results)]
    return [*quality, PARAMETERS, TRAINING, speed, TOKEN_TIME._replace(is_comparable=timed), MEMORY, STATE, DISK]


def _difference(results: Results) -> Column:
    tests = {row.layer: row.difference for row in results.measured if row.is_tested}
    metric = tested_metric(results, next(iter(tests.values()), {}))
    scale, unit = (100.0, " (points)") if metric.is_fraction else (1.0, "")
    of = "" if metric.key == results.metric.key else f" in {metric.key}"
    bounds = [(scale * test["low"], scale * test["high"]) for test in tests.values() if test.get("low") is not None]
    digits = max((supported_digits(*ends, MAX_DIFFERENCE_DIGITS) for ends in bounds), default=2)

    def text(value: float) -> str:
        return written(scale * value, digits, signed=True).replace("-", "−")

    return Column(
        f"difference{of} from the best{unit}",
        lambda row: tests.get(row.layer, {}).get("difference"),
        lambda values: [text(value) for value in values],
        lambda row: (
            ""
            if (test := tests.get(row.layer, {})).get("low") is None
            else f"{text(test['low'])} to {text(test['high'])}"
        ),
    )


def metrics_table(results: Results) -> Table | None:
    """Return every figure of the task with its interval; None where there is only the metric."""
    rows = [row for row in results.ranked if not row.failed]
    figures = [figure for figure in results.figures if any(row.value(figure.key) is not None for row in rows)]
    if len(figures) < 2:
        return None
    columns = [metric_column(results, figure) for figure in figures]
    texts = [texts_of(column, results) for column in columns]
    cells: list[Cells] = [
        [row.layer, *(_cell(column, text, "", row) for column, text in zip(columns, texts, strict=True))]
        for row in rows
    ]
    headings, best = ["layer", *(column.heading for column in columns)], ["", *(column.best for column in columns)]
    return Table(headings, cells, "All figures of the task, with 95 % intervals.", range(1, len(headings)), best=best)


def seeds_table(results: Results) -> Table | None:
    """Return the metric of every seed; None where there is one seed."""
    metric, cells = results.metric, list[Cells]()
    for row in results.ranked:
        by_seed = {run["seed"]: run["metrics"].get(metric.key) for run in row.runs}
        values = [value for value in by_seed.values() if value is not None]
        if values:
            bounds = row.interval(metric.key)
            known = [by_seed.get(seed) for seed in results.seeds]
            shown = [MISSING if value is None else metric.written(value, bounds) for value in known]
            cells.append([row.layer, *shown, metric.written(max(values) - min(values), bounds)])
    if not cells or len(results.seeds) < 2:
        return None
    headings = ["layer", *(f"seed {seed}" for seed in results.seeds), "range"]
    return Table(headings, cells, f"{sentence_case(metric.name)} of each seed.", range(1, len(headings)))


def trials_table(results: Results) -> Table | None:
    """Return the learning rates that were tried, the chosen one marked; None where none were tried."""
    rows = [row for row in results.ranked if row.tried]
    rates = sorted({trial["learning_rate"] for row in rows for trial in row.tried})
    cells: list[Cells] = []
    for row in rows:
        values = {trial["learning_rate"]: trial.get("value") for trial in row.tried}
        texts = {rate: "failed" if value is None else f"{value:.4g}" for rate, value in values.items()}
        chosen = row.learning_rate
        cells.append([row.layer, *(Cell(texts.get(rate, MISSING), "best" * (rate == chosen)) for rate in rates)])
    caption = "The validation figure of each learning rate that was tried; bold: the one that was used."
    headings = ["layer", *(f"{rate:g}" for rate in rates)]
    return Table(headings, cells, caption, range(1, len(headings))) if rows else None


def settings_table(results: Results) -> Table:
    """Return the sizes and options of each layer, and its paper."""
    cells: list[Cells] = []
    for row in results.ranked:
        if row.failed:
            continue
        run = next(iter(row.runs), {})  # all seeds have the same sizes
        numbers = (row.embedding_size, row.hidden_size, row.num_layers, run.get("steps"), run.get("tokens"))
        texts = [MISSING if number is None else f"{number:,.0f}" for number in numbers]
        options = ", ".join(f"{key} {_option(value)}" for key, value in row.options.items())
        rate = MISSING if row.learning_rate is None else f"{row.learning_rate:g}"
        cells.append([row.layer, *texts, rate, options or MISSING, row.keeps or MISSING, row.paper or MISSING])
    sizes = ["embedding", "hidden", "layers", "steps", "tokens", "learning rate"]
    headings = ["layer", *sizes, "options", "keeps", "paper"]
    return Table(headings, cells, "Sizes and options, and what each layer keeps of a text.", range(1, 7))


def _option(value: object) -> str:
    """Return the value of an option as the command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def equal_table(results: Results) -> Table:
    """Return what was equal for all trained layers, and what was not."""
    caveats, tokenizer = Caveats(results), results.section("tokenizer")
    size = tokenizer.get("vocabulary_size")
    rows = {
        "budget": caveats.setup.budget,
        "spent": caveats.spent,
        "parameters": caveats.setup.parameters,
        "tokenizer": ", ".join(filter(None, [tokenizer.get("kind"), f"{size:,} entries" if size else ""])),
        "training data": caveats.setup.data,
        "measured on": caveats.setup.measured_on,
        "seeds": ", ".join(map(str, results.seeds)),
        "learning rate": f"the best of {results.values['tune']} for each layer"
        if results.values.get("tune")
        else "the default of each layer, or the one that was set",
    }
    return Table(["of all trained layers", "value"], [[*row] for row in rows.items() if row[1]], "The same for all.")


def tests_table(results: Results) -> Table:
    """Return how the intervals were computed, and how two layers were compared."""
    how = results.section("interval")
    count = f"{how['count']:,} " if how.get("count") else ""
    rows = (
        [["95 % interval", f"{how['method']} of {count}{how['over']}; Wilson's where a fraction is 0 or 1"]]
        if how
        else []
    )
    if results.is_tested:
        seeds = " The items of all seeds are resampled together." if len(results.seeds) > 1 else ""
        paired = (
            "paired bootstrap, both on the same resamples; significant if p ≤ 0.05 and the 95 % interval excludes 0."
            + seeds
        )
        rows.append(["difference of two layers", f"{paired} Not corrected for the number of layers."])
        rows.append(["rank", "a rank begins with the first layer that differs significantly from the leader before it"])
    covered = "other texts" + (" and the seeds that were run" if len(results.seeds) > 1 else ", not other seeds")
    rows.append(["covers", covered])
    return Table(["what", "how"], rows, "How intervals and tests were computed.")


def machine_table(results: Results) -> Table:
    """Return the machine, the versions and the date."""
    rows = dict(results.section("machine"))
    if rows.get("memory_bytes"):
        rows["memory"] = in_bytes(rows.pop("memory_bytes"))
    rows |= results.section("versions")
    rows |= {"finished": results.values.get("finished"), "took": in_time(1000 * (results.values.get("seconds") or 0))}
    cells: list[Cells] = [[str(name), str(value)] for name, value in rows.items() if value is not None]
    return Table(["fact", "value"], cells, "The machine, the versions and the date.")


def meanings_table(results: Results) -> Table:
    """Return what the figures of the page mean."""
    metric = results.metric
    work = results.values.get("timed_work", "reading and answering")
    meanings = {
        metric.name: f"{'higher' if metric.more_is_better else 'lower'} is better; measured on "
        f"{short_name(str(results.section('data').get('measured_on') or 'held-out data'))}",
        "training (s)": "seconds of training, without validations",
        "parameters": "all numbers that are learned, with embeddings and the output layer",
        "memory": "the peak of the training process above that of the idle program",
        "state": "bytes that must be kept of one text to continue it, after 1,000 tokens, or of a source of 1,000 "
        "tokens to write its answer; 1 kB is 1,000 bytes",
        "ms per token": f"the time of {work}, one text at a time, per token: median and middle half of the repetitions",
    }
    return Table(["figure", "meaning"], [[*row] for row in meanings.items()], "What the figures mean.")
