"""What `seriatim compare` prints: which run it is, how long is left, the best so far; then the table."""

import math
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..comparison.comparing import Comparison
from ..comparison.comparison_progress import ComparisonProgress, ComparisonReporter
from ..comparison.plan import Plan, is_counted
from ..comparison.results import ResultRow, Results
from ..core.errors import InputError, printable
from ..storage.atomic_files import to_json
from ..training.reporting import duration
from .console import PLAIN_SECONDS, progress_console, show, table_of

DRAWN_WITH = ("matplotlib", "jinja2")
"""What a report needs."""
READABLE = 1e7
"""Figures beyond are written as a power of ten."""


class ComparisonConsole(ComparisonReporter):
    """Shows a comparison as it goes, on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = progress_console(quiet=quiet)
        self.bar: Progress | None = None
        self.last_line = -math.inf

    def begin(self, plan: Plan, progress: ComparisonProgress) -> None:
        """What is compared, under which budget, with which sizes."""
        self.metric, self.several = plan.metric, len(plan.seeds) > 1
        (name, value), *_ = plan.budget.amount().items()
        equal = "" if plan.parameters is None else f", {plan.parameters:,} parameters each"
        many = f"{len(plan.layers)} layer{'s' if len(plan.layers) > 1 else ''}"
        self.say(f"{many}, {value:,} {name} each{equal}, measured on {plan.measured()}")
        if progress.count > len(plan.layers):
            self.say(f"{len(plan.seeds)} seeds")
        if self.console.is_terminal and not self.console.quiet:
            columns = [
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.percentage:>3.0f} %"),
            ]
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=1.0)
            self.bar.start()

    def run(self, progress: ComparisonProgress) -> None:
        """A run begins."""
        self.show(progress, "starting", at_once=True)

    def hear(self, progress: ComparisonProgress, event: Mapping[str, Any]) -> None:
        """Moves the bar, or prints a line now and then."""
        if event["event"] == "step":
            left = "" if event["seconds_left"] is None else f", {duration(event['seconds_left'])} left"
            self.show(progress, f"step {event['step']:,}  loss {event['loss']:.3f}{left}")
        elif event["event"] in ("timing", "measuring"):
            self.show(progress, {"timing": "timing its steps", "measuring": "measuring"}[event["event"]])

    def row(self, progress: ComparisonProgress, row: Mapping[str, Any]) -> None:
        """One line for a row."""
        value = row["metrics"].get(self.metric)
        figure = "" if value is None else f"{self.metric} {value:,.4g}, "
        steps = "counted" if is_counted(progress.layer) else f"{row['steps']:,} steps"
        self.say(f"{progress.name}: {figure}{steps} in {duration(row['training_seconds'])}")

    def failure(self, layer: str, seed: int, reason: str) -> None:
        """Why there is no row."""
        self.say(f"{layer}{f', seed {seed}' if self.several else ''}: failed: {reason}")

    def show(self, progress: ComparisonProgress, what: str, *, at_once: bool = False) -> None:
        """What is being done, and how much is left in all."""
        trial = "" if progress.trial is None else f" (learning rate {progress.trial} of {progress.plan.tune})"
        left, best = progress.seconds_left, progress.best
        rest = "" if left is None else f"  all: {duration(left)} left"
        top = "" if best is None else f"  best: {best[0]} {best[1]:,.4g}"
        text = f"{progress.number} of {progress.count}  {progress.name}{trial}  {what}{rest}{top}"
        if self.bar is not None:
            self.bar.update(self.task, description=printable(text), completed=progress.share)
        elif at_once or time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.say(text)

    def close(self) -> None:
        """Takes the bar away, if there is one."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def say(self, text: str) -> None:
        """One line, above the bar if there is one."""
        self.console.print(printable(text), soft_wrap=True)


def may_draw(console: ComparisonConsole) -> bool:
    """Whether what draws reports is installed; if not, that is said before hours of training, not after them."""
    missing = [name for name in DRAWN_WITH if find_spec(name) is None]
    if missing:
        console.say(
            f"report.html will not be written, because {' and '.join(missing)} cannot be imported; install them with: "
            "pip install 'seriatim[report]', and write the report with --resume"
        )
    return not missing


def finish(found: Comparison, *, report: bool, quiet: bool, as_json: bool) -> None:
    """Prints the results, and writes the report."""
    if as_json:
        print(to_json(found.results))
    elif not quiet:
        print_results(found.results)
    if report:
        _report(found, progress_console(quiet=quiet))


def print_results(values: Mapping[str, Any]) -> None:
    """Print the table of a comparison, best first."""
    results, figures = Results(values), values["figures"]
    figures = [figure for figure in figures if figure["headline"] or figure is figures[0]]
    headings = ["layer", figures[0]["name"], "95 % interval", *(figure["name"] for figure in figures[1:])]
    headings += ["parameters", "tokens/s", "memory (MB)", "state (bytes)", "ms/token", "at distance"]
    table = table_of(*headings)
    for row in results.ranked:
        table.add_row(*([row.layer, "failed"] if row.failed else _cells(row, figures)))
    show(table)
    if groups := results.by_width():
        print()
        table = table_of("layer", "width", "state after the longest input (bytes)", results.metric.name)
        for layer, rows in groups.items():
            for row in rows:
                table.add_row(layer, f"{row.width:,}", f"{row.state:,}", results.metric.written(results.of(row)))
        show(table)
    _notes(results)


def _cells(row: ResultRow, figures: list[dict[str, Any]]) -> list[str]:
    first, *others = figures
    interval, points = row.interval(first["key"]), row.at_distance.points
    return [
        row.layer,
        _value(row, first) + (" =" if row.is_tied else ""),
        " to ".join(_number(end, first) for end in interval) if interval else "",
        *(_value(row, figure) for figure in others),
        f"{row.parameters:,}",
        f"{row.tokens_per_second:,.0f}",
        "" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:,.0f}",
        "" if (state := row.state_bytes.get("1000")) is None else f"{state:,}",
        "" if row.milliseconds_per_token is None else f"{row.milliseconds_per_token:.2f}",
        *(f"{value:.3f} ({far})" for far, value in points[-1:]),
    ]


def _value(row: ResultRow, figure: Mapping[str, Any]) -> str:
    value = row.metrics.get(figure["key"])
    return "" if value is None else _number(value, figure)


def _number(value: float, figure: Mapping[str, Any]) -> str:
    """Return a value with the digits of its figure, or with an exponent where it is very large."""
    return f"{value:,.{figure['digits']}f}" if abs(value) < READABLE else f"{value:.3g}"


def _notes(results: Results) -> None:
    print(printable(f"measured on {results.section('data')['measured_on']}; state: bytes after 1,000 tokens"))
    distance = results.at_distance()
    if distance.kind:
        print(printable(f"at distance: {distance.name} ({distance.unit})"))
    if any(row.is_tied for row in results.ran):
        print("=: not significantly different from the best (paired bootstrap, p > 0.05)")
    for row in results.rows:
        if row.failed or row.note:
            print(printable(f"{row.layer}: {row.failed or row.note}"))


def _report(found: Comparison, console: Console) -> None:
    """Writes `report.html`."""
    from ..comparison.comparison_page import write_report

    try:
        path = write_report(found.folder, found.results)
    except InputError as error:
        console.print(printable(f"report.html was not written: {error}"), soft_wrap=True)
        return
    console.print(printable(f"report: {path}"), soft_wrap=True)
