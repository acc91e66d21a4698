"""The report of a comparison: ``report.html``, one file, from what ``results.json`` holds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..inspection.sparsity import sparsity_parts
from ..report.number_formats import in_bytes, in_short, listed
from ..report.page import Code, Part, Plot, Plots, Prose, Section, render, write_page
from . import figures, summary
from .answers import answers
from .bottleneck import bottleneck
from .folder import REPORT
from .ranking import Row, ranked, tested, value_of
from .words import equal, finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVEN = 1.1
"""How many times the smallest the largest must be for quality to be drawn against it."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Writes ``report.html`` into the folder of a comparison.

    Args:
        folder: of the comparison.
        results: what its ``results.json`` holds; rows may lack anything but the name of their layer.

    Returns:
        The path of the page.

    Raises:
        InputError: it may not be written there.
    """
    path = folder / REPORT
    write_page(path, report(results))
    return path


def report(results: Row) -> str:
    """The page as HTML; the same for the same results."""
    title = f"{len(results['rows'])} sequence models on {_name(results)}"
    sections = [
        Section("summary", "Summary", _summary(results)),
        Section("words", "In words", [summary.words_table(results)]),
        Section("learning", "Learning", _learning(results)),
        Section("trade", "Quality against cost", _trade(results)),
        Section("growth", "Cost as the text grows", _growth(results)),
        *bottleneck(results),
        *_sparsity(results),
        Section("samples", "Samples", answers(results)),
        Section("details", "All figures and settings", _details(results)),
        Section("reproduce", "How to reproduce it", _reproduce(results)),
        Section("meaning", "What the figures mean", [summary.meanings_table(results), summary.machine_table(results)]),
    ]
    return render(title, f"{finding(results)}\n\n{equal(results)}", sections)


def _name(results: Row) -> str:
    """Of the data: of a path its last two parts."""
    spec = str((results.get("data") or {}).get("train") or "a text")
    return "/".join(Path(spec).parts[-2:])


def _summary(results: Row) -> list[Part]:
    rows, metric = results["rows"], results["metric"]
    dots = "Dots are the measured values, lines their 95 % intervals over items of the text."
    if any(map(tested, rows)):
        dots += " Hollow dots differ significantly from the best (paired bootstrap), filled dots do not."
    if len(results.get("seeds") or []) > 1:
        dots += " Small strokes are single seeds."
    size, equal_size = _against_size(results)
    plots = [
        _plot(figures.metric_plot(rows, metric), f"{_sentence(metric['name'])} of each layer", dots, results),
        _far_back(results),
        size,
    ]
    notes = [f"{row['layer']}: {row['note']}." for row in rows if row.get("note")]
    drawn = _side_by_side(plots, "No layer has a value of the metric.")
    return [summary.summary_table(results), *([Prose(" ".join(notes))] if notes else []), *drawn, *equal_size]


def _far_back(results: Row) -> Plot | None:
    """What distance does, which is measured in one of three ways."""
    distance: Row = next((row["distance"] for row in results["rows"] if row.get("distance")), {})
    title, caption = {
        "context": (
            "How far back it helps to see",
            "Accuracy where only the last so many tokens are seen. Where a line goes level, a layer makes no use of "
            "what lies further back.",
        ),
        "distance": (
            "How far apart things may lie",
            f"{_sentence(distance.get('of', ''))} where what must be remembered lies so far back. Training showed "
            "distances up to half of the last.",
        ),
        "length": (
            "Short inputs and long ones",
            f"{_sentence(distance.get('of', ''))} over the shortest quarter of the inputs, the next, and so on, at the "
            "greatest length of each.",
        ),
    }.get(distance.get("kind", ""), ("Accuracy at distance", str(distance.get("name", ""))))
    return _plot(figures.distance_plot(results["rows"]), title, caption, results)


def _against_size(results: Row) -> tuple[Plot | None, list[Part]]:
    """Quality against parameters, or why that is not drawn."""
    rows, metric = results["rows"], results["metric"]
    trained = [row for row in rows if not row.get("counted") and value_of(row, metric["key"]) is not None]
    sizes = [row["parameters"] for row in trained if row.get("parameters")]
    if sizes and max(sizes) < EVEN * min(sizes):
        return None, [
            Prose("All trained layers have nearly the same number of parameters, so quality is not drawn against it.")
        ]
    figure = figures.quality_against(rows, metric, of=lambda row: row.get("parameters"), name="parameters")
    caption = f"Better is {_better(metric)} and to the left."
    return _plot(figure, f"{_sentence(metric['name'])} against size", caption, results), []


def _learning(results: Row) -> list[Part]:
    rows = results["rows"]
    keys = {each["key"] for row in rows for each in row.get("held_out") or ()}
    points = "; points the loss on held-out text" if keys & {"loss", "perplexity"} else ""
    plots = []
    for against, name in figures.AGAINST.items():
        lines = f"Lines are training loss, smoothed, without its steep start{points}."
        if any(row.get("counted") for row in rows):
            lines += " The level line is the loss on the measured text of what was counted."
        caption = f"{lines} {_reading_of(against)}"
        plots.append(_plot(figures.learning_curves(rows, against), f"Loss against {name}", caption, results))
    for key in sorted(keys - {"loss", "perplexity"}):
        name = next((each["name"] for each in results["figures"] if each["key"] == key), key)
        for against, other in figures.AGAINST.items():
            figure = figures.held_out_curves(rows, against, key=key, name=name)
            title = f"{_sentence(name)} against {other}"
            plots.append(_plot(figure, title, "On held-out text, while training.", results))
    return _side_by_side(plots, "Nothing here was trained by steps, so there is no curve to show.")


def _reading_of(against: str) -> str:
    return {
        "seconds": "Time is that of training on this machine; measuring on held-out text is left out.",
        "tokens": "What is low here learns much from little text, however long it takes.",
        "compute": "Operations are 6 for every parameter that multiplies and every token; they leave out attention "
        "and what is computed element by element.",
    }[against]


def _trade(results: Row) -> list[Part]:
    rows, metric = results["rows"], results["metric"]
    costs: list[tuple[str, str, Callable[[Row], float | None], Callable[[float], str], str]] = [
        ("training speed", "training tokens/s", _trained, in_short, "right"),
        ("generating speed", "tokens generated a second", _generated, in_short, "right"),
        ("memory in training", "most memory in training", lambda row: row.get("memory_bytes"), in_bytes, "left"),
    ]
    plots, even = [], []
    for name, unit, of, written, way in costs:
        known = [cost for row in rows if (cost := of(row)) and value_of(row, metric["key"]) is not None]
        if len(known) > 1 and max(known) < EVEN * min(known):
            even.append(name)
            continue
        figure = figures.quality_against(rows, metric, of=of, name=unit, written=written)
        caption = f"Better is {_better(metric)} and to the {way}."
        plots.append(_plot(figure, f"{_sentence(metric['name'])} against {name}", caption, results))
    said = [Prose(f"Not drawn, because the layers differ by less than 10 %: {listed(even)}.")] if even else []
    return [*_side_by_side(plots, "Fewer than two layers have what these plots need."), *said]


def _better(metric: Row) -> str:
    return "up" if metric["more_is_better"] else "down"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _trained(row: Row) -> float | None:
    return None if row.get("counted") else row.get("tokens_per_second")


def _generated(row: Row) -> float | None:
    each = row.get("milliseconds_per_token")
    return 1000 / each if each else None


def _growth(results: Row) -> list[Part]:
    rows = results["rows"]
    nothing = [row["layer"] for row in rows if row.get("state_bytes") and not any(row["state_bytes"].values())]
    verbs = ("keeps", "is") if len(nothing) == 1 else ("keep", "are")
    kept = f" {listed(nothing)} {verbs[0]} no state and {verbs[1]} not drawn." if nothing else ""
    plots = [
        _plot(
            figures.state_growth(rows),
            "State size",
            f"Bytes of the state of one text after so many tokens. A level line is a state of constant size.{kept}",
            results,
        ),
        _plot(
            figures.step_cost(rows),
            "One step",
            "Time of a step after so many tokens, one text at a time: what generating costs late in a text.",
            results,
        ),
        _plot(
            figures.reading_cost(rows),
            "Reading a text",
            "Time to read a text of so many tokens at once, one text at a time, without gradients.",
            results,
        ),
    ]
    return _side_by_side(plots, "No layer has costs measured.")


def _sparsity(results: Row) -> list[Section]:
    """How sparse the counts of n-grams are, where there are any."""
    counted = [row for row in results["rows"] if row.get("ngrams")]
    if not counted:
        return []
    figures = {**counted[0]["metrics"], "ngrams": counted[0]["ngrams"]}
    return [Section("sparsity", "Sparsity of the counts", sparsity_parts({"the measured text": figures}))]


def _details(results: Row) -> list[Part]:
    seeds = summary.seeds_table(results)
    one = "One seed was run: the intervals are over items of the text, and another seed may give another order."
    tables = [summary.metrics_table(results), summary.shapes_table(results), summary.tried_table(results), seeds]
    return [*filter(None, tables), *([] if seeds else [Prose(one)])]


def _reproduce(results: Row) -> list[Part]:
    runs = [
        f"# {row['layer']}, seed {run['seed']}\n{run['command']}"
        for row in ranked(results)
        for run in row.get("runs") or ()
        if run.get("command")
    ]
    whole = Code(results.get("command") or "seriatim compare", "All of it:")
    return [
        whole,
        *([Code("\n".join(runs), "Each row by itself, from where the comparison was started:")] if runs else []),
    ]


def _order(results: Row) -> str:
    """The order of the layers, for who does not see a plot."""
    metric = results["metric"]
    values = [
        f"{row['layer']} {value:,.{metric['digits']}f}"
        for row in ranked(results)
        if (value := value_of(row, metric["key"])) is not None
    ]
    return f"One mark or line a layer. {_sentence(metric['name'])}, best first: {', '.join(values)}."


def _plot(figure: "Figure | None", title: str, caption: str, results: Row) -> Plot | None:
    return Plot(figure, title, caption, _order(results)) if figure else None


def _side_by_side(plots: Sequence[Plot | None], otherwise: str) -> list[Part]:
    """The plots that there are; where there are none, a sentence."""
    drawn = [plot for plot in plots if plot]
    return [Plots(drawn)] if drawn else [Prose(otherwise)]
