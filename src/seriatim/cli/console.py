"""The output of the command: a progress bar on a terminal, plain lines elsewhere, and tables."""

import io
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ..core.errors import printable
from ..core.json_object import JsonMapping, JsonObject
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Paired
from ..tasks.beside_baseline import main_metric
from ..tasks.task import Task
from ..training.reporting import LineReporter
from .conclusions import Difference, cautions, conclusion
from .main import Messages

if TYPE_CHECKING:
    from ..runs.weight_rounding import RoundingCost

PLAIN_SECONDS = 10.0
"""The time between two lines of progress where there is no terminal."""
SENTENCES = ("repairs", "skipped_files")
"""Keys of lists whose items contain spaces."""
MAX_CELL = 40
"""The largest number of characters of an entry that is shown in a column."""
PATH_STEPS = 1_000
"""The number of steps over which the table of layers shows path lengths."""


class ProgressLine:
    """Progress on standard error: a bar on a terminal, a line now and then elsewhere.

    If standard error cannot be written, the work continues silently.
    """

    def __init__(self, *, quiet: bool = False, bar_width: int | None = 40) -> None:
        stderr = cast(TextIO, sys.stderr or io.StringIO())  # None if it was closed at the start
        stream = cast(IO[str], Messages(stderr, escapes=False))
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, quiet=quiet)
        self.quiet, self._bar_width = quiet, bar_width
        self._bar: Progress | None = None
        self._last_line = -math.inf

    def start(self) -> None:
        """Show the bar on a terminal, unless it is shown."""
        if self._bar is None and self._console.is_terminal and not self.quiet:
            description, fraction = "{task.description}", "{task.percentage:>3.0f} %"
            columns = (TextColumn(description, markup=False), BarColumn(self._bar_width), TextColumn(fraction))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
            self._bar.add_task("", total=1.0)

    def update(self, text: str, fraction: float, *, line: str | None = None, at_once: bool = False) -> None:
        """Move the bar, or print ``line`` (by default ``text``) if the last line is old, or else ``at_once``."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=printable(text), completed=fraction)
        elif at_once or time.monotonic() - self._last_line >= PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self.say(line or text)

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        self._console.print(printable(text), soft_wrap=True)

    def close(self) -> None:
        """Remove the bar, if there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class ConsoleReporter(ProgressLine, LineReporter):
    """Reports a training on standard error."""

    def reading(self, text: str, share: float) -> None:
        """Show how much of a large text is read."""
        self.start()
        super().reading(text, share)

    def begin(self, record: JsonObject) -> None:
        """Print what stays, and show the bar on a terminal."""
        super().begin(record)
        self.start()

    def show(self, text: str, fraction: float) -> None:
        """Move the bar, or print a line now and then."""
        self.update(text, fraction, line=f"{text}  ({fraction:.0%})")

    def end(self, record: JsonObject) -> None:
        """Print the metrics of the run, what it cost, and one line if a simpler model reaches them, too."""
        self.close()
        super().end(record)
        for sentence in cautions(record, self.headline, is_fitted=self.work_unit == "tokens")[:1]:
            self.say(f"! {sentence}")


def print_metrics(
    metrics: JsonObject, task: Task, baseline: JsonObject | None = None, network: JsonObject | None = None
) -> None:
    """Print metrics with their intervals, beside those of the simple baseline and of the network alone, if any."""
    others = [*([baseline] if baseline else []), *([{**network, "name": "network alone"}] if network else [])]
    table = table_of("", "", "95 % interval", *[other["name"] for other in others])
    for figure in task.evaluator.metrics:
        if figure.key in metrics:
            beside = [figure.text(other, metrics) if figure.key in other else "" for other in others]
            table.add_row(figure.name, figure.text(metrics), figure.interval(metrics), *beside)
    for key in task.evaluator.counts:
        note = f"{_percentage(key, metrics)} of the tokens" if key == "unknown_tokens" else ""
        table.add_row(key.replace("_", " "), f"{metrics[key]:,}", note)
    show(table)

    # A verdict says in words whether the differences above are more than chance.
    for other in others:
        if "verdict" in other:
            print(printable(other["verdict"]))
    for details in task.evaluator.tables(metrics):
        print()
        table = table_of(*details.headings, left=())
        for row in details.rows:
            table.add_row(*row)
        show(table)
        if details.note:
            print(printable(details.note))


def print_differences(heading: str, rows: Iterable[tuple[str, str, str, Difference]], main: Difference) -> None:
    """Print values of two systems, their differences and p-values, and which system is better.

    Args:
        heading: what the names of the rows are.
        rows: the name of each row, the values of both systems, and their difference.
        main: the difference that decides which system is better.
    """
    table = table_of(heading, main.first, main.second, "difference", "95 % interval", "p")
    for name, first, second, difference in rows:
        p_value = "" if difference.paired.p_value is None else f"{difference.paired.p_value:.3f}"
        table.add_row(name, first, second, difference.size, difference.interval, p_value)
    show(table)
    print(*map(printable, conclusion(main)), sep="\n")


def print_metric_differences(
    names: tuple[str, str],
    first: JsonObject,
    second: JsonObject,
    paired: Mapping[str, Paired],
    task: Task,
    vocabulary: Vocabulary,
) -> None:
    """Print the metrics of two runs and their differences; see `print_differences`."""
    differences = {
        metric.key: Difference(*names, metric, paired[metric.key])
        for metric in task.evaluator.metrics
        if metric.key in paired
    }
    rows = [
        (each.metric.name, each.metric.text(first), each.metric.text(second), each) for each in differences.values()
    ]

    # The main metric decides, or else a headline that differs: answers that are never exactly right can differ in BLEU.
    main = main_metric(task, vocabulary)
    ranked = sorted(differences.values(), key=lambda each: (each.metric.key != main.key, not each.metric.headline))
    differing = (each for each in ranked if each.paired.difference and each.metric.headline)
    print_differences("", rows, next(differing, ranked[0]))


def print_cost_of_rounding(metrics: JsonObject, cost: "RoundingCost", task: Task, vocabulary: Vocabulary) -> None:
    """Print the metrics of a run with rounded weights beside those without, their differences, and both speeds."""
    print(f"\nweights rounded to {cost.weights}, and as they are in the run:")
    print_metric_differences((cost.weights, "the run"), metrics, cost.metrics, cost.differences, task, vocabulary)
    first, second, ratio, low, high = cost.speeds
    print(
        f"writing one text greedily: {first:,.0f} tokens/s instead of {second:,.0f} "
        f"({ratio:.2f} times; {low:.2f} to {high:.2f} in single turns)"
    )


def print_statistics(report: JsonMapping) -> None:
    """Print the counts of every split of the data side by side, and longer entries below them."""
    splits = [split for split in ("train", "valid", "test") if split in report]
    table, below = table_of("", *splits), []
    for key in dict.fromkeys(key for split in splits for key in report[split]):
        name, cells = key.replace("_", " "), [_cell(key, report[split]) for split in splits]
        if max(map(len, cells)) <= MAX_CELL:
            table.add_row(name, *cells)
        else:
            below += [f"{name} ({split}): {printable(cell)}" for split, cell in zip(splits, cells, strict=True)]
    show(table)
    print(*below, sep="\n", end="\n" if below else "")
    tokenizer = report["tokenizer"]
    print(f"tokenizer {tokenizer['kind']}: {tokenizer['vocabulary_size']:,} in the vocabulary of the training text")


def print_layers(rows: Sequence[JsonMapping]) -> None:
    """Print one line for each architecture."""
    sizes = [f"after {int(count):,}" for count in rows[0]["state_bytes"]]
    headings = ("layer", "keeps of the past", *sizes, f"path over {PATH_STEPS:,}", "in parallel", "paper")
    table = table_of(*headings, left=(0, 1, len(headings) - 2, len(headings) - 1))
    for row in rows:
        sizes = ["-" if size is None else f"{size:,}" for size in row["state_bytes"].values()]
        path = row["path_lengths"][str(PATH_STEPS)]
        length = "none" if path is None else f"{path:,}"
        table.add_row(row["name"], row["keeps"], *sizes, length, "yes" if row["parallel"] else "no", row["paper"])
    show(table)

    # The headings are too short to be understood alone.
    size = rows[0]["hidden_size"]
    print(f"after N: bytes of the state after N tokens, one layer of width {size} in float32")
    print(f"path over {PATH_STEPS:,}: operations along time from an input to the output {PATH_STEPS:,} steps later")
    print("in parallel: whether training runs in parallel over time; --json also lists each layer's options")


def print_options(rows: Sequence[JsonMapping]) -> None:
    """Print the options of some layers: name, values, default and meaning."""
    for row in rows:
        print(printable(f"options of {row['name']} (--model.options.NAME VALUE)"))
        table = table_of("option", "values", "default", "meaning", left=(0, 1, 2, 3))
        for name, option in row["option_details"].items():
            values = ", ".join(option["choices"] or [option["type"]])
            limits = f": {option['range']}" if option["range"] else ""
            table.add_row(name, f"{values}{limits}", str(option["default"]), option["help"])
        show(table)


def _cell(key: str, split: JsonMapping) -> str:
    value = split.get(key, "")
    if isinstance(value, str):
        return value
    if key == "files":
        return str(value[0]) if len(value) == 1 else f"{value[0]} and {len(value) - 1} more"
    if isinstance(value, list):
        return (", " if key in SENTENCES else " ").join(value)
    if key == "unknown_tokens":
        return f"{value:,} ({_percentage(key, split)})"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _percentage(key: str, split: JsonMapping) -> str:
    """Return a count as a percentage of the tokens; an empty text has no tokens."""
    return f"{split[key] / max(1, split['tokens']):.2%}"


class CleanTable(Table):
    """A table that writes control characters as escapes: its cells may quote data."""

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        """Add a row of cells."""
        super().add_row(*[printable(cell) if isinstance(cell, str) else cell for cell in cells], **settings)


def table_of(*headings: str, left: Sequence[int] = (0,)) -> Table:
    """Return an empty table; the columns ``left`` are aligned left, the others right."""
    headings = tuple(map(printable, headings))
    table = CleanTable(box=None, pad_edge=False, show_header=any(headings))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i in left else "right", overflow="fold")
    return table


def show(table: Table) -> None:
    """Print a table on standard output."""
    text = io.StringIO()  # at a closed pipe, rich would end the process
    width = None if sys.stdout.isatty() else 200
    Console(file=text, width=width, highlight=False, markup=False, emoji=False).print(table)
    print(text.getvalue(), end="")
