"""The tables of a comparison: the summary, every metric, learning rates and seeds, the machine, what figures mean."""

from collections.abc import Callable
from typing import NamedTuple

from ..evaluation.intervals import written
from ..report.number_formats import in_bytes, in_time, rounded
from ..report.page import Cell, Table
from . import words
from .ranking import Row, Rows, ranked, tested, told_apart, value_of

SPEED = "training tokens/s"
"""A heading: what is counted is much faster than what is trained, and is not compared with it."""


class Column(NamedTuple):
    """A column of the summary: its heading, what it reads of a row, how that is written, and which is best."""

    heading: str
    of: Callable[[Row], float | None]
    written: Callable[[float], str]
    best: Callable[..., float] | None = None


def summary_table(results: Row) -> Table:
    """One row a layer, best first, the best of each column marked; what failed says why."""
    rows = ranked(results)
    columns = [column for column in _columns(results) if any(column.of(row) is not None for row in rows)]
    best = [_best(column, rows) for column in columns]
    cells: list[list[str | Cell]] = []
    for row in rows:
        if row.get("failed"):
            cells.append([_heading(row), Cell(f"failed: {row['failed']}", span=max(1, len(columns)))])
        else:
            cells.append([_heading(row), *(_cell(row, *each, results) for each in zip(columns, best, strict=True))])
    alike = any(tested(row) and not told_apart(row) for row in rows)
    caption = "Best first; the best of a column is bold and underlined; below the metric stands its 95 % interval."
    if alike:
        caption += " ≈: not significantly different from the best (paired bootstrap, p > 0.05)."
    return Table(["layer", *(each.heading for each in columns)], cells, caption, range(1, len(columns) + 1))


def words_table(results: Row) -> Table:
    """The summary in words, best first: what a layer keeps, how it trains and generates, what limits it."""
    ran = [row for row in results["rows"] if not row.get("failed")]
    cells: list[list[str | Cell]] = []
    for row in ranked(results):
        if row.get("failed"):
            cells.append([row["layer"], words.keeping(row), Cell(f"failed: {row['failed']}", span=5)])
        else:
            said = (words.keeping(row), words.training(row, ran), words.generating(row, ran), words.seeing(row))
            cells.append([row["layer"], *said, words.standing(row, results), words.limits(row, results)])
    headings = ["layer", "keeps", "trains", "generates", "far back", results["metric"]["name"], "limited by"]
    caption = (
        "What each layer keeps and what limits it, by the figures of this page. A limit is a cost of at least "
        f"{words.NOTABLE} times the median layer's, or seeing less than half as far as the best."
    )
    return Table(headings, cells, caption, stacked=True)


def metrics_table(results: Row) -> Table | None:
    """Every figure of the task with its interval; None where there is but the metric."""
    rows = [row for row in ranked(results) if not row.get("failed")]
    figures = [each for each in results["figures"] if any(value_of(row, each["key"]) is not None for row in rows)]
    if len(figures) < 2 or not rows:
        return None
    cells = [[row["layer"], *(_metric_cell(row, each["key"], each["digits"]) for each in figures)] for row in rows]
    caption = "Every figure of the task on the same text, with its 95 % interval."
    return Table(["layer", *(each["name"] for each in figures)], cells, caption, range(1, len(figures) + 1))


def seeds_table(results: Row) -> Table | None:
    """The metric of every seed; None where there is one seed."""
    seeds, metric = results.get("seeds") or [], results["metric"]
    if len(seeds) < 2:
        return None
    cells: list[list[str | Cell]] = []
    for row in ranked(results):
        of = {run["seed"]: run["metrics"].get(metric["key"]) for run in row.get("runs") or ()}
        found = [value for value in of.values() if value is not None]
        if found:
            values = ["–" if of.get(seed) is None else f"{of[seed]:,.{metric['digits']}f}" for seed in seeds]
            cells.append([row["layer"], *values, f"{max(found) - min(found):,.{metric['digits']}f}"])
    caption = f"{metric['name'].capitalize()} of each seed, and how far apart they are."
    headings = ["layer", *(f"seed {seed}" for seed in seeds), "highest less lowest"]
    return Table(headings, cells, caption, range(1, len(seeds) + 2)) if cells else None


def tried_table(results: Row) -> Table | None:
    """Which learning rates were tried, and which was taken; None where none were."""
    rows = [row for row in ranked(results) if row.get("tried")]
    rates = sorted({each["learning_rate"] for row in rows for each in row["tried"]})
    cells: list[list[str | Cell]] = []
    for row in rows:
        found = {each["learning_rate"]: each.get("value") for each in row["tried"]}
        taken = row.get("learning_rate")
        cells.append([row["layer"], *(Cell(_tried(found, rate), "best" if rate == taken else "") for rate in rates)])
    caption = "Learning rates tried within the budget and the held-out figure of each; the one taken is underlined."
    headings = ["layer", *(f"{rate:g}" for rate in rates)]
    return Table(headings, cells, caption, range(1, len(rates) + 1)) if rows else None


def shapes_table(results: Row) -> Table:
    """What was built of each layer: sizes, options, how long it trained, on how much."""
    cells = []
    for row in ranked(results):
        if row.get("failed"):
            continue
        run: Row = next(iter(row.get("runs") or ()), {})
        options = ", ".join(f"{key} {value}" for key, value in (row.get("options") or {}).items())
        shape = [row.get(key) for key in ("embedding_size", "hidden_size", "num_layers")]
        cells.append(
            [
                row["layer"],
                *("–" if each is None else f"{each:,}" for each in shape),
                options or "–",
                "–" if row.get("learning_rate") is None else f"{row['learning_rate']:g}",
                *("–" if run.get(key) is None else f"{run[key]:,.0f}" for key in ("steps", "tokens")),
                "–" if run.get("training_seconds") is None else in_time(1000 * run["training_seconds"]),
                row.get("paper") or "–",
            ]
        )
    headings = [
        "layer",
        "embedding",
        "hidden",
        "layers",
        "options",
        "learning rate",
        "steps",
        "tokens",
        "training time",
        "paper",
    ]
    return Table(headings, cells, "What was built, and what the first seed was trained on.", {1, 2, 3, 5, 6, 7, 8})


def machine_table(results: Row) -> Table:
    """Where and when it was measured, with what."""
    machine = dict(results.get("machine") or {})
    if machine.get("memory_bytes"):
        machine["memory"] = in_bytes(machine.pop("memory_bytes"))
    facts = machine | dict(results.get("versions") or {})
    facts |= {"finished": results.get("finished"), "took": in_time(1000 * (results.get("seconds") or 0))}
    cells = [[str(name), str(value)] for name, value in facts.items() if value is not None]
    return Table(["what", "which"], cells, "The machine, the versions and the date.")


def meanings_table(results: Row) -> Table:
    """What the figures of the page mean."""
    metric, several = results["metric"], len(results.get("seeds") or []) > 1
    interval = "the percentile bootstrap over items (lines, blocks of a text, sentences) of the measured text"
    drawn = "; the bounds are the means over seeds" if several else "; it says nothing of another seed"
    distance: Row = next((row["distance"] for row in results["rows"] if row.get("distance")), {})
    cells = [
        [metric["name"], f"{'more' if metric['more_is_better'] else 'less'} is better; " + _measured_on(results)],
        ["95 % interval", interval + drawn],
        [
            "different from the best",
            "the paired bootstrap: both layers on the same drawn items; significantly different if p, two-sided, is at "
            "most 0.05. "
            "No correction is made for comparing many layers"
            + ("; the items of all seeds are drawn together, so how seeds differ is not in it." if several else "."),
        ],
        ["learning rate", "the layer's own default, the one given, or with tuning the best of those tried"],
        ["parameters", "all numbers that are learned, embeddings and output layer included"],
        ["training tokens/s", "tokens read in training by second of training, measuring on held-out text left out"],
        ["memory", "the most that was resident in the process that trained, the interpreter and the data included"],
        ["state", "what must be kept of a text to go on with it, for one text, in bytes; a kB is 1,000 bytes"],
        ["time a token", _of_a_token(results)],
    ]
    if distance:
        places = f", over {distance['count']:,} {distance['items']} each" if distance.get("count") else ""
        cells.append(
            [f"{distance.get('of', 'accuracy')} at distance", f"{distance['name']}{places}; without intervals"]
        )
    return Table(["figure", "what it is"], cells, "What the figures mean.")


def _of_a_token(results: Row) -> str:
    done = {"lm": "writing a text", "seq2seq": "writing an answer"}.get(
        results.get("task") or "", "reading and answering"
    )
    return f"the time of {done}, one at a time, by its tokens; the whole way from text to text where it answers"


def _measured_on(results: Row) -> str:
    data = results.get("data") or {}
    same = data.get("valid") is not None and data.get("valid") == data.get("measured_on")
    chosen = ", which also chose among the weights of each training, and so flatters all of them a little"
    return f"measured on {data.get('measured_on') or 'held-out text'}{chosen if same else ''}"


def _columns(results: Row) -> list[Column]:
    metric = results["metric"]
    more = max if metric["more_is_better"] else min
    longest = _longest_distance(results["rows"])
    return [
        Column(metric["name"], lambda row: value_of(row, metric["key"]), str, more),
        Column("parameters", lambda row: row.get("parameters"), lambda value: f"{value:,.0f}"),
        Column(SPEED, lambda row: row.get("tokens_per_second"), rounded, max),
        Column("memory", lambda row: row.get("memory_bytes"), in_bytes, min),
        Column("state at 1,000 tokens", lambda row: (row.get("state_bytes") or {}).get("1000"), in_bytes, min),
        Column("time a token", lambda row: row.get("milliseconds_per_token"), in_time, min),
        Column(
            _distance_heading(results["rows"], longest),
            lambda row: ((row.get("distance") or {}).get("values") or {}).get(longest),
            lambda value: f"{value:.3f}",
            more if _by_length(results["rows"]) else max,
        ),
    ]


def _distance_heading(rows: Rows, longest: str) -> str:
    distance: Row = next((row["distance"] for row in rows if row.get("distance")), {})
    if distance.get("kind") == "context":
        return f"accuracy, last {longest} tokens seen"
    if distance.get("kind") == "length":
        return f"{distance['of']}, longest quarter of inputs"
    return f"{distance.get('of', 'accuracy')} at {longest} {distance.get('unit', 'tokens')}"


def _by_length(rows: Rows) -> bool:
    """Whether the figure at distance is the metric itself, of which less may be better."""
    return any((row.get("distance") or {}).get("kind") == "length" for row in rows)


def _longest_distance(rows: Rows) -> str:
    keys = {key for row in rows for key in (row.get("distance") or {}).get("values") or {}}
    return max(keys, key=int, default="")


def _best(column: Column, rows: Rows) -> float | None:
    compared = [row for row in rows if not (column.heading == SPEED and row.get("counted"))]
    values = [value for row in compared if (value := column.of(row)) is not None]
    return column.best(values) if column.best and len(values) > 1 else None


def _cell(row: Row, column: Column, best: float | None, results: Row) -> Cell | str:
    value, metric = column.of(row), results["metric"]
    if value is None:
        return "–"
    mark = "best" if value == best and not (column.heading == SPEED and row.get("counted")) else ""
    if column.heading == metric["name"]:
        sign = "≈ " if tested(row) and not told_apart(row) else ""
        return _metric_cell(row, metric["key"], metric["digits"], mark=mark, sign=sign)
    return Cell(column.written(value), mark)


def _metric_cell(row: Row, key: str, digits: int, *, mark: str = "", sign: str = "") -> Cell | str:
    value, low, high = (value_of(row, name) for name in (key, f"{key}_low", f"{key}_high"))
    if value is None:
        return "–"
    note = "" if low is None or high is None else f"{written(low, digits)} to {written(high, digits)}"
    return Cell(f"{sign}{written(value, digits)}", mark, note)


def _heading(row: Row) -> Cell:
    return Cell(row["layer"], note="counted" if row.get("counted") else "")


def _tried(found: dict[float, float | None], rate: float) -> str:
    if rate not in found:
        return "–"
    value = found[rate]
    return "failed" if value is None else f"{value:.4g}"
