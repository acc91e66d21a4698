"""The output of ``seriatim compare``: the current run, the time left and the best so far; then the table."""

from collections.abc import Callable

from ..comparison.comparing import Comparison, ComparisonProgress, ComparisonReporter, PresentTraining
from ..comparison.findings import CONSOLE, Setup, Verdict, warnings_of
from ..comparison.plan import Plan, is_non_neural
from ..comparison.results import ResultRow, Results, TrainingRow
from ..comparison.tables import metric_column, texts_of
from ..core.errors import InputError, printable
from ..core.json_object import JsonMapping
from ..pages import missing_packages
from ..pages.wording import in_time, listed
from ..storage.files import to_json
from ..tasks import FITTED
from ..training.reporting import duration
from .console import ProgressLine, show, table_of

MAX_LINES = 6
"""Lines below the table, with that of the report; of many warnings the gravest are told, and the report has all."""


class ComparisonConsole(ProgressLine, ComparisonReporter):
    """Reports a comparison on standard error."""

    def begin(self, plan: Plan, progress: ComparisonProgress) -> None:
        """Print the layers, the budget and the sizes."""
        self.metric, self.several, self.tells_failures = plan.metric, len(plan.seeds) > 1, not self.quiet
        (name, value), *_ = plan.budget.amount().items()
        equal = "" if plan.parameters is None else f", {plan.parameters:,} parameters each"
        layers = f"{len(plan.layers)} layer{'s' if len(plan.layers) > 1 else ''}"
        measured = plan.task().files.name_of(str(plan.measured()))
        self.say(f"{layers}, {value:,} {name} each{equal}, measured on {measured}")
        if progress.count > len(plan.layers):
            self.say(f"{len(plan.seeds)} seeds")
        if progress.workers > 1:
            self.say(f"{progress.workers} trainings at the same time")
        self.start()

    def run(self, progress: ComparisonProgress, training: PresentTraining) -> None:
        """Report the start of a training."""
        self.show(progress, at_once=True)

    def hear(self, progress: ComparisonProgress, training: PresentTraining, event: JsonMapping) -> None:
        """Move the bar, or print a line now and then."""
        if event["event"] in ("step", "timing", "measuring"):
            self.show(progress)

    def row(self, progress: ComparisonProgress, row: TrainingRow) -> None:
        """Print one line for a row of the table."""
        value = row.metrics.get(self.metric)
        figure = "" if value is None else f"{self.metric} {value:,.4g}, "
        learned = FITTED[row.layer].fitting if is_non_neural(row.layer) else ""
        steps = learned or f"{row.steps:,} steps"
        name = progress.name(row.layer, row.seed)
        self.say(f"{name}: {figure}{steps} in {in_time(1000 * row.training_seconds)}")

    def failure(self, layer: str, seed: int, reason: str) -> None:
        """Print why there is no row, once and at once."""
        self.say(f"✗ {layer}{f', seed {seed}' if self.several else ''}  {reason}")

    def show(self, progress: ComparisonProgress, *, at_once: bool = False) -> None:
        """Show what is being trained, the time left in total, and the best row so far."""
        several = len(progress.present) > 1
        numbers = sorted({training.number for training in progress.present})
        trainings = ", ".join(_training(progress, training, short=several) for training in progress.present)
        left, best = progress.seconds_left, progress.best
        rest = "" if left is None else f"  all: {duration(left)} left"
        top = "" if best is None else f"  best: {best[0]} {best[1]:,.4g}"
        text = f"{listed([str(number) for number in numbers])} of {progress.count}  {trainings}{rest}{top}"
        self.update(text, progress.fraction, at_once=at_once)


def _training(progress: ComparisonProgress, training: PresentTraining, *, short: bool) -> str:
    """Return a training and what it does: ``rnn  step 1,200  loss 2.345, 20 s left``, or in short ``rnn 45 %``."""
    trial = "" if training.trial is None else f" (learning rate {training.trial} of {progress.plan.tune})"
    event, name = training.event, f"{progress.name(training.layer, training.seed)}{trial}"
    kind = event.get("event")
    if kind != "step":
        activity = {"timing": "timing its steps", "measuring": "measuring"}.get(str(kind), "starting")
        return f"{name} {activity}" if short else f"{name}  {activity}"
    if short:
        return f"{name} {training.fraction:.0%}".replace("%", " %")
    left = "" if event["seconds_left"] is None else f", {duration(event['seconds_left'])} left"
    return f"{name}  step {event['step']:,}  loss {event['loss']:.3f}{left}"


def may_draw(console: ComparisonConsole) -> bool:
    """Return whether reports can be drawn; if not, say so before hours of training."""
    if missing := missing_packages():
        console.say(
            f"report.html will not be written, because {' and '.join(missing)} cannot be imported; install them with: "
            "pip install 'seriatim[report]', and write the report with --resume"
        )
    return not missing


def finish(comparison: Comparison, console: ComparisonConsole, *, report: bool, as_json: bool) -> None:
    """Print the results, and write the report."""
    if as_json:
        print(to_json(comparison.results))
    elif not console.quiet:
        print_results(comparison.results)
    if report:
        from ..comparison.comparison_page import write_report

        try:
            console.say(f"report: {write_report(comparison.folder, comparison.results)}")
        except InputError as error:
            console.say(f"report.html was not written: {error}")


def print_results(values: JsonMapping) -> None:
    """Print the table of a comparison, best first, and what it shows in at most six lines."""
    results = Results(values)
    ran = [row for row in results.ranked if not row.failed]
    if ran:
        columns = [(heading, cell) for heading, cell in _columns(results) if any(map(cell, ran))]
        table = table_of("layer", *(heading for heading, _ in columns))
        for row in ran:
            table.add_row(row.title, *(cell(row) for _, cell in columns))
        show(table)
    _print_widths(results)
    # What the table shows, what to know before trusting it, and what it rests on.
    verdict, setup = Verdict(results), Setup(results)
    lines = [(name, statement.of(verdict)) for name, statement in CONSOLE if statement.when(verdict)]
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        print(printable(f"{name:<{width}}  {text}"))
    warnings = warnings_of(results, on_console=True)
    for warning in warnings[: max(1, MAX_LINES - 2 - len(lines))]:
        print(printable(f"! {warning}"))
    print(printable(f"{setup.seeds}, measured on {setup.measured_on}"))


def _columns(results: Results) -> list[tuple[str, Callable[[ResultRow], str]]]:
    first, *others = [figure for figure in results.figures if figure.headline or figure is results.figures[0]]
    texts = {figure.key: texts_of(metric_column(results, figure), results) for figure in (first, *others)}
    return [
        ("rank", lambda row: "" if row.rank is None else str(row.rank)),
        (first.name, lambda row: texts[first.key].get(row.layer, "")),
        ("95 % interval", lambda row: first.interval(row.metrics)),
        *((figure.name, lambda row, key=figure.key: texts[key].get(row.layer, "")) for figure in others),
        ("epochs", lambda row: "" if row.epochs is None else f"{row.epochs:.2g}"),
        ("seconds", lambda row: "" if row.training_seconds is None else f"{row.training_seconds:.1f}"),
        ("tokens/s", lambda row: "" if row.counted else f"{row.tokens_per_second or 0:,.0f}"),
    ]


def _print_widths(results: Results) -> None:
    """Print several widths of a layer by their states, which the ranking scatters."""
    groups = results.by_width()
    if not groups:
        return
    print()
    table = table_of("layer", "width", "state after the longest input (bytes)", results.metric.name)
    for layer, rows in groups.items():
        for row in rows:
            table.add_row(layer, f"{row.width:,}", f"{row.state:,}", results.metric.written(results.of(row)))
    show(table)
