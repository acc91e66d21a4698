"""What the command prints: a progress bar on a terminal, plain lines elsewhere, tables."""

import io
import math
import sys
import time
from collections.abc import Sequence
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ..core.errors import printable
from ..evaluation.intervals import Metrics, Paired, written
from ..training.reporting import LineReporter, Record
from ..training.task import AnyTask
from .streams import ProgressStream

PLAIN_SECONDS = 10.0


def progress_console(*, quiet: bool = False) -> Console:
    """Prints on standard error, and goes on silently where that cannot be written."""
    stream = cast(IO[str], ProgressStream(sys.stderr or io.StringIO()))  # none where it is closed from the beginning
    return Console(file=stream, highlight=False, markup=False, emoji=False, quiet=quiet)


SENTENCES = ("repairs", "skipped_files")
"""Lists whose items hold spaces."""


class ConsoleReporter(LineReporter):
    """Shows a training as it goes, on standard error."""

    def __init__(self) -> None:
        self.console = progress_console()
        self.bar: Progress | None = None
        self.last_line = -math.inf

    def begin(self, record: Record) -> None:
        """What stays, and the bar on a terminal."""
        super().begin(record)
        if self.console.is_terminal:
            columns = [
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
            ]
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=1.0)
            self.bar.start()

    def show(self, text: str, share: float) -> None:
        """Moves the bar, or prints a line now and then."""
        if self.bar is not None:
            self.bar.update(self.task, description=printable(text), completed=share)
        elif time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.say(f"{text}  ({share:.0%})")

    def end(self, record: Record) -> None:
        """The figures of the run, beside those of the simplest model."""
        self.close()
        super().end(record)

    def close(self) -> None:
        """Takes the bar away, if there is one."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def say(self, text: str) -> None:
        """One line, above the bar if there is one."""
        self.console.print(printable(text), soft_wrap=True)


PATH = 1_000
"""Steps over which the table of layers shows path lengths."""


def print_metrics(metrics: Metrics, task: AnyTask) -> None:
    """The metrics of some data, with their intervals."""
    table = table_of("", "", "95 % interval")
    for figure in task.figures:
        if figure.key in metrics:
            table.add_row(figure.name, figure.of(metrics), figure.span(metrics))
    for key in task.counts:
        note = f"{_share(key, metrics)} of the tokens" if key == "unknown_tokens" else ""
        table.add_row(key.replace("_", " "), f"{metrics[key]:,}", note)
    show(table)
    for details in task.tables(metrics):
        print()
        table = table_of(*details.headings, left=())
        for row in details.rows:
            table.add_row(*row)
        show(table)
        if details.note:
            print(printable(details.note))


def print_weights(weights: dict[str, float]) -> None:
    """How much each run of a mixture counts."""
    print(printable("weights: " + ", ".join(f"{path} {weight:.4f}" for path, weight in weights.items())))


def print_differences(first: Metrics, second: Metrics, differences: dict[str, Paired], task: AnyTask) -> None:
    """The metrics of two runs, how far apart they are, and how likely that is by chance."""
    table = table_of("", "first", "second", "difference", "95 % interval", "p")
    for figure in task.figures:
        if figure.key in differences:
            found = differences[figure.key]
            apart, *ends = (written(value, figure.digits, signed=True) for value in found[:3])
            span = "" if found.low is None else " to ".join(ends)
            chance = "" if found.p_value is None else f"{found.p_value:.3f}"
            table.add_row(figure.name, figure.of(first), figure.of(second), apart, span, chance)
    show(table)


def print_statistics(report: dict[str, Any]) -> None:
    """The counts of every part of the data, side by side."""
    parts = [part for part in ("train", "valid", "test") if part in report]
    table = table_of("", *parts)
    for key in dict.fromkeys(key for part in parts for key in report[part]):
        table.add_row(key.replace("_", " "), *[_cell(key, report[part]) for part in parts])
    show(table)
    tokenizer = report["tokenizer"]
    print(f"tokenizer {tokenizer['kind']}: {tokenizer['vocabulary_size']:,} in the vocabulary of the training text")


def print_layers(rows: Sequence[dict[str, Any]]) -> None:
    """Every architecture, a line each."""
    tokens = list(rows[0]["state_bytes"])
    sizes_after = (f"after {int(count):,}" for count in tokens)
    headings = ("layer", "keeps of the past", *sizes_after, f"path over {PATH:,}", "in parallel", "paper")
    table = table_of(*headings, left=(0, 1, len(tokens) + 3, len(tokens) + 4))
    for row in rows:
        sizes = [f"{row['state_bytes'][count]:,}" for count in tokens]
        path = row["path_lengths"][str(PATH)]
        length = "none" if path is None else f"{path:,}"
        table.add_row(row["name"], row["keeps"], *sizes, length, "yes" if row["parallel"] else "no", row["paper"])
    show(table)
    size = rows[0]["hidden_size"]
    print(f"after N: bytes of the state after N tokens, one layer of width {size} in float32")
    print(f"path over {PATH:,}: operations along time between an input and the output {PATH:,} steps later, if any")
    print("in parallel: whether training runs in parallel over time; --json also lists each layer's options")
    former = [f"{old} (now {row['name']})" for row in rows for old in row.get("former_names", ())]
    if former:
        print(f"former names, which still work: {', '.join(former)}")


def print_options(rows: Sequence[dict[str, Any]]) -> None:
    """Print the options of some layers: name, values, default and meaning."""
    for row in rows:
        print(printable(f"options of {row['name']} (--model.options.NAME VALUE)"))
        table = table_of("option", "values", "default", "meaning", left=(0, 1, 2, 3))
        for name, facts in row["option_details"].items():
            values = ", ".join(facts["choices"] or [facts["type"]])
            span = f": {facts['range']}" if facts["range"] else ""
            table.add_row(name, f"{values}{span}", str(facts["default"]), facts["help"])
        show(table)


def _cell(key: str, part: dict[str, Any]) -> str:
    value = part.get(key, "")
    if isinstance(value, str):
        return value
    if key == "files":
        return value[0] if len(value) == 1 else f"{value[0]} and {len(value) - 1} more"
    if isinstance(value, list):
        return (", " if key in SENTENCES else " ").join(value)
    if key == "unknown_tokens":
        return f"{value:,} ({_share(key, part)})"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _share(key: str, part: dict[str, Any]) -> str:
    """Of the tokens, of which empty texts have none."""
    return f"{part[key] / max(1, part['tokens']):.2%}"


class CleanTable(Table):
    """A table whose cells cannot hold what a terminal would obey: they may quote data."""

    def add_row(self, *cells: Any, **settings: Any) -> None:
        """As of every table; control characters are spelled out."""
        super().add_row(*[printable(cell) if isinstance(cell, str) else cell for cell in cells], **settings)


def table_of(*headings: str, left: Sequence[int] = (0,)) -> Table:
    """An empty table; the columns ``left`` are set to the left, the others to the right."""
    headings = tuple(map(printable, headings))
    table = CleanTable(box=None, pad_edge=False, show_header=any(headings))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i in left else "right", overflow="fold")
    return table


def show(table: Table) -> None:
    """Prints a table on standard output."""
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(table)
