"""The report of a comparison: ``report.html``, one file, made of what ``results.json`` holds."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..core.json_object import JsonMapping
from ..inspection.together import PAGE
from ..pages.page import (
    Cell,
    Code,
    Folded,
    PageBlock,
    PageSection,
    Plot,
    Plots,
    Prose,
    Sample,
    Samples,
    Table,
    render,
    write_page,
)
from ..pages.wording import in_bytes, in_short, in_time, listed, sentence_case, short_name
from . import tables_and_plots
from .differences_section import differences_section
from .plan import REPORT
from .results import MAX_DRAWN, ResultRow, Results
from .sentences import controlled_variables, state_sizes
from .tables_and_plots import SPEED, TOKEN, Cells
from .verdict import beside_baseline, beside_simplest, finding

# The tables of a comparison page that explain its figures, and name the machine that measured them.


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
    metric, data, several = results.metric, results.section("data"), len(results.seeds) > 1
    better = f"{'higher' if metric.more_is_better else 'lower'} is better"
    measured = f"{better}; measured on {short_name(str(data.get('measured_on') or 'held-out data'))}"
    if data.get("valid") is not None and data.get("valid") == data.get("measured_on"):
        measured += ", which also selected the weights of each training, so all values are a little too good"
    seeds = "the bounds are means over seeds" if several else "it does not cover other seeds"
    together = "; the items of all seeds are resampled together, so differences between seeds are not covered"
    work = results.values.get("timed_work", "reading and answering")
    meanings = {
        metric.name: measured,
        "95 % interval": "percentile bootstrap over the items (lines, blocks of a text, sentences) of the measured "
        f"data; {seeds}",
        "difference from the best": "paired bootstrap: both layers on the same resampled items; significant if the "
        "two-sided p is at most 0.05 and the 95 % interval excludes 0. There is no correction for comparing many layers"
        + together
        * several,
        "learning rate": "the default of the layer, the one that was set, or with tuning the best of those tried",
        "parameters": "all numbers that are learned, including embeddings and the output layer",
        SPEED: "tokens read in training per second, without the time of validations",
        "memory": "the peak of resident memory of the training process, with the data, above that of the idle program",
        "on disk": "the size of the file of the weights",
        "state": "bytes that must be kept of one text to continue it; 1 kB is 1,000 bytes",
        TOKEN: f"the time of {work}, one text at a time, divided by the number of tokens: the median of the "
        "repetitions, and below it the range of the middle half of them",
    }
    if not results.is_tested:
        del meanings["difference from the best"]
    distance = results.at_distance()
    if distance.kind:
        count = f", over {distance.count:,} {distance.items} each" if distance.count else ""
        meanings[f"{distance.of} {'by length' if distance.kind == 'length' else 'at distance'}"] = (
            f"{distance.name}{count}"
        )
    return Table(["figure", "meaning"], [[*row] for row in meanings.items()], "What the figures mean.")


if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = tuple["Figure | None", str, str]
"""A figure, None where there is nothing to draw, with its title and its caption."""
MIN_RATIO = 1.1  # the ratio of the largest to the smallest cost from which quality is drawn against it
SHORT = 24  # characters up to which answers are shown in the columns of a table
BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
"""Two or more blank lines, which badly trained models write in large numbers."""
LEARNING_CAPTIONS = {
    "seconds": "The time is that of training on this machine, without validations.",
    "tokens": "The better the value after few tokens, the more a layer learns from little data.",
    "compute": "Operations are 6 for every multiplied parameter and every token; attention and element-wise operations "
    "are not counted.",
}


def write_report(folder: Path, results: JsonMapping) -> Path:
    """Write ``report.html`` into the folder of a comparison, and return its path."""
    write_page(folder / REPORT, report(results, inspected_pages(folder, results)))
    return folder / REPORT


def first_runs(values: JsonMapping) -> dict[str, str]:
    """Return the name of the first run of each layer that did not fail, best layer first, from ``results.json``."""
    rows = [row for row in Results(values).ranked if row.runs]
    return {row.layer: f"{row.layer}-{row.runs[0]['seed']}" for row in rows}


def inspected_pages(folder: Path, values: JsonMapping) -> dict[str, str]:
    """Return the address of the page that inspects the first run of a layer, by layer, relative to the report."""
    runs = first_runs(values).items()
    return {layer: f"runs/{quote(run)}/{PAGE}" for layer, run in runs if (folder / "runs" / run / PAGE).is_file()}


def report(values: JsonMapping, pages: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the page as HTML, which is the same for the same results.

    ``values`` is what ``results.json`` holds; rows may lack anything but the name of their layer. ``pages`` has the
    address of the page that inspects a layer, by the name of the layer.
    """
    results = Results(values)
    drawn = results.drawn()
    widths = results if len(results.by_width()) <= MAX_DRAWN else drawn
    name = short_name(str(results.section("data").get("train") or "a text"))
    runs = [(row.layer, run) for row in results.ranked for run in row.runs if run.get("command")]
    commands = [f"# {layer}, seed {run['seed']}\n{run['command']}" for layer, run in runs]
    details = [
        tables_and_plots.metrics_table(results),
        tables_and_plots.shapes_table(results),
        tables_and_plots.trials_table(results),
        tables_and_plots.seeds_table(results),
    ]

    # A reader can repeat the whole comparison, or one row of it.
    reproduce: list[PageBlock] = [Code(values.get("command") or "seriatim compare", "The whole comparison:")]
    if commands:
        caption = "Each row alone, from the folder in which the comparison was started:"
        alone = Code("\n".join(commands), caption)
        reproduce.append(alone if len(commands) <= MAX_DRAWN else Folded(f"The {len(commands):,} commands", [alone]))

    # A section without parts is left out of the page.
    sections = [
        PageSection("summary", "Summary", _summary(results, drawn, pages)),
        PageSection("words", "In words", [tables_and_plots.words_table(results)]),
        PageSection("differ", "Where models differ", differences_section(drawn)),
        PageSection("learning", "Learning", _learning(drawn)),
        PageSection("trade", "Quality against cost", _quality_against_cost(drawn)),
        PageSection("growth", "Cost and length of the text", _growth(drawn)),
        PageSection("bottleneck", "Quality against state size", _state_size(widths)),
        PageSection("samples", "Samples", _samples(drawn)),
        PageSection("details", "All figures and settings", list(filter(None, details))),
        PageSection("reproduce", "How to reproduce it", reproduce),
        PageSection("meaning", "What the figures mean", [meanings_table(results), machine_table(results)]),
    ]
    title = f"{len(results.rows)} sequence models on {name}"
    baselines = " ".join(filter(None, [beside_baseline(results), beside_simplest(results)]))
    lead = "\n\n".join(filter(None, [finding(results), baselines, controlled_variables(results)]))
    return render(title, lead, sections)


def _summary(results: Results, drawn: Results, pages: Mapping[str, str]) -> list[PageBlock]:
    """Return the table of all rows, with the figures of those that are drawn."""
    lines = ", lines are 95 % intervals over the items of the data" if results.has_intervals else ""
    caption = f"Dots are measured values{lines}."
    if any(row.is_tested for row in results.rows):
        caption += " Hollow dots differ significantly from the best (paired bootstrap), filled dots do not."
    if len(results.seeds) > 1:
        caption += " Small strokes are single seeds."

    # The plot by distance is left out where the differences below show the same with more ranges.
    name = sentence_case(results.metric.name)
    plots = [(tables_and_plots.metric_plot(drawn), f"{name} of each layer", caption), _distance_plot(drawn)]
    if any(buckets["by"] == results.at_distance().kind for buckets in results.section("differ").get("buckets") or ()):
        plots.pop()  # drawn among the differences, with more ranges

    # A reader of the table must learn here why a row has no rank, and where its page is.
    notes = " ".join(
        f"{': '.join(filter(None, [row.layer, row.lacking, row.note]))}." for row in results.rows if row.note
    )
    if pages:
        notes = f"{notes} The names of layers lead to pages that inspect their runs.".strip()

    # Plots of many layers cannot be read, so only the best are drawn; the table hides none.
    remarks: list[PageBlock] = []
    if drawn is not results:
        few = f"the best {MAX_DRAWN} of {len(results.rows):,} layers"
        remarks.append(Prose(f"Figures and samples show {few}. The tables show all of them."))
    shown = _plots(drawn, plots, "No layer has a value of the metric.")
    return [tables_and_plots.summary_table(results, pages), *([Prose(notes)] if notes else []), *shown, *remarks]


def _distance_plot(results: Results) -> Drawn:
    distance = results.at_distance()
    positions = f"the same {distance.count:,} places" if distance.count else "the same places"

    # What the axis means depends on the task, and only the caption can say how it was measured.
    title, caption = {
        "context": (
            "Use of context",
            f"Perplexity of {positions} of the text where only the last tokens are seen, each time from the initial "
            "state. Lines are 95 % intervals over blocks of neighbouring tokens, or lines of the text; Table 1 has "
            "those of paired differences. Where a curve is level, earlier tokens add little.",
        ),
        "distance": (
            "Memory over a distance",
            f"{sentence_case(distance.of)} where what must be remembered is this far back. Distances in training went "
            "up to half of the longest one here.",
        ),
        "length": (
            "Short and long inputs",
            f"{sentence_case(distance.of)} on inputs of similar lengths, at the largest length of each group, with "
            "95 % intervals.",
        ),
    }.get(distance.kind, (f"{sentence_case(distance.of)} at distance", distance.name))
    return tables_and_plots.distance_plot(results), title, caption


def _learning(results: Results) -> list[PageBlock]:
    """Return the held-out curves first, because training losses say nothing about other texts."""
    keys = {point["key"] for row in results.rows for point in row.held_out}
    names = {figure.key: figure.name for figure in results.figures}

    # The metric that ranks comes first, against each measure of what training has cost.
    plots = list[Drawn]()
    for key in sorted(keys, key=lambda key: (key != results.metric.key, key)):
        name = names.get(key, key)
        for against, other in tables_and_plots.AGAINST.items():
            figure = tables_and_plots.held_out_curves(results, against, key=key, name=name)
            caption = f"On held-out data, during training. {LEARNING_CAPTIONS[against]}"
            plots.append((figure, f"{sentence_case(name)} against {other}", caption))

    # The training loss comes last, with a warning: it falls even where a model only memorizes.
    caption = (
        "Smoothed, without the steep start. A model that memorizes its training data also has a low training loss."
    )
    plots.append((tables_and_plots.learning_curves(results, "tokens"), "Training loss against tokens read", caption))
    drawn = _plots(results, plots, "No layer was trained by steps, so there are no learning curves.")
    longer = tables_and_plots.longer_budget_table(results)
    return drawn if longer is None else [*drawn, longer]


def _quality_against_cost(results: Results) -> list[PageBlock]:
    plots, equal = list[Drawn](), []
    work = "generating" if results.continues_text else str(results.values.get("timed_work"))
    costs: Sequence[tuple[str, str, Callable[[ResultRow], float | None], Callable[[float], str]]] = (
        ("number of parameters", "parameters", lambda row: row.parameters, in_short),
        ("training time", "training time (seconds)", lambda row: row.training_seconds, in_short),
        ("time per token", f"milliseconds per token, {work}", lambda row: row.milliseconds_per_token, "{:.3g}".format),
        ("memory in training", "peak memory in training", lambda row: row.memory_bytes, in_bytes),
        ("size on disk", "size on disk", lambda row: row.disk_bytes, in_bytes),
        ("size of the state", "state after 1,000 tokens", lambda row: row.state_bytes.get("1000"), in_bytes),
    )

    # Where all layers cost nearly the same, a plot would magnify noise; a sentence says so instead.
    for name, axis, cost, written in costs:
        known = [value for row in results.measured if (value := cost(row))]
        if len(known) > 1 and max(known) < MIN_RATIO * min(known):
            equal.append(name)
        else:
            figure = tables_and_plots.quality_against(results, cost, name=axis, written=written)
            better = "Higher" if results.metric.more_is_better else "Lower"
            caption = f"{better} and further left is better. "
            caption += "Lines are 95 % intervals. " if results.has_intervals else ""
            caption += _front(results, cost)
            plots.append((figure, f"{sentence_case(results.metric.name)} against {name}", caption))
    remarks = [Prose(f"Not drawn, because the layers differ by less than 10 %: {listed(equal)}.")] if equal else []
    return [*_plots(results, plots, "Fewer than two layers have the values for these plots."), *remarks]


def _front(results: Results, cost: Callable[[ResultRow], float | None]) -> str:
    """Return which layers no other one equals at a smaller cost, and which have no such cost."""
    front = [row.layer for row in tables_and_plots.pareto_front(results, cost)]
    line = " (the dotted line)" if len(front) > 1 else ""
    text = f"{listed(front)}: no other layer that is drawn is as good at a smaller cost{line}."
    without = [row.layer for row in results.measured if not cost(row)]
    return f"{text} Not drawn, because this cost is 0 or not known: {listed(without)}." if without else text


def _growth(results: Results) -> list[PageBlock]:
    stateless = [row.layer for row in results.rows if row.is_stateless]
    keep = "keeps no state and is" if len(stateless) == 1 else "keep no state and are"
    remark = f" {listed(stateless)} {keep} not drawn." if stateless else ""
    size = tables_and_plots.growth(results, "state_bytes", x="tokens seen", y="state size", written=in_bytes)
    step = tables_and_plots.growth(results, "step_milliseconds", x="tokens seen", y="milliseconds per step")
    text = tables_and_plots.growth(results, "reading_milliseconds", x="tokens in the text", y="milliseconds to read it")
    level = f"Bytes of the state of one text. A level line is a state of constant size.{remark}"
    late = "Time of one step after a number of tokens, for one text: the cost of generating late in a text."
    at_once = "Time to read a whole text at once, for one text and without gradients."
    plots = [(size, "State size", level), (step, "Time of a step", late), (text, "Time to read a text", at_once)]
    return _plots(results, plots, "The costs of no layer were measured.")


def _state_size(results: Results) -> list[PageBlock]:
    """Return the section on state sizes, which is empty where no layer was trained at several widths."""
    groups, metric = results.by_width(), results.metric
    figure = tables_and_plots.state_size_plot(results)
    if figure is None or not any(len(rows) > 1 for rows in groups.values()):
        return []
    tokens = max(row.state_at_length["tokens"] for rows in groups.values() for row in rows)
    after = f"{tokens:,} token{'' if tokens == 1 else 's'}"
    caption = f"Each line is a layer at several widths. The state is that of one text after {after}."
    curves = []
    for layer, rows in groups.items():
        points = ", ".join(f"{metric.written(results.of(row))} at {in_bytes(row.state)}" for row in rows)
        curves.append(f"{layer}: {points}")
    plot = Plot(figure, f"{sentence_case(metric.name)} against state size", caption, "; ".join(curves))
    return [Prose(" ".join(state_sizes(results))), Plots([plot]), tables_and_plots.state_size_table(results)]


def _samples(results: Results) -> list[PageBlock]:
    """Return the answers of the layers to each input, best layer first, with marks where the right answer is known."""
    rows = [row for row in results.ranked if row.samples]
    samples = [(row.layer, sample) for row in rows for sample in row.samples]
    answers = {(layer, str(each.get("prompt") or each.get("input") or "")): each for layer, each in samples}
    inputs, layers = list(dict.fromkeys(text for _, text in answers)), [row.layer for row in rows]
    if not answers:
        return [Prose("There are no samples.")]

    # Long answers, and those without a known right one, do not fit into the cells of one table.
    if not all(sample.get("truth") is not None and len(str(sample["text"])) <= SHORT for sample in answers.values()):
        return [_answers(text, layers, answers, tags=bool(results.values.get("tags_words"))) for text in inputs]

    # Short answers are compared best side by side: one row for each input.
    cells: list[list[str | Cell]] = []
    for text in inputs:
        truth = next(str(answers[layer, text]["truth"]) for layer in layers if (layer, text) in answers)
        given = [answers.get((layer, text)) for layer in layers]
        shown = [Cell(str(sample["text"]), _mark(sample)) if sample else tables_and_plots.MISSING for sample in given]
        cells.append([text, truth, *shown])
    return [
        Table(["input", "right answer", *layers], cells, "Inputs of the measured data, with the answers of all layers.")
    ]


def _answers(
    text: str, layers: Sequence[str], answers: Mapping[tuple[str, str], JsonMapping], *, tags: bool
) -> PageBlock:
    items, truth = [], None
    for layer in layers:
        if sample := answers.get((layer, text)):
            truth = sample.get("truth", truth)
            heading, answer = layer, BLANK_LINES.sub("\n⋮\n", str(sample["text"]))
            mark = "right" if _mark(sample) == "right" else ""
            if tags:
                heading, answer = _marked_tags(layer, answer, str(truth))
            items.append(Sample(heading, answer, str(sample.get("prompt") or ""), mark))
    if truth is not None:
        return Samples([Sample("right answer", str(truth)), *items], f"Input: {text}")
    beginning = f"Continuations of “{text}”" if text else "Texts from an empty beginning"
    return Samples(items, f"{beginning} (⋮ replaces blank lines):")


def _marked_tags(layer: str, answer: str, truth: str) -> tuple[str, str]:
    """Return a heading with the number of wrong tags, and the tags with the wrong ones marked."""
    tags, right = answer.split(), truth.split()
    if len(tags) != len(right):
        return layer, answer
    marked = [tag if tag == other else f"{tag}✗" for tag, other in zip(tags, right, strict=True)]
    wrong = sum(tag.endswith("✗") for tag in marked)
    return f"{layer}: {wrong} of {len(right)} wrong" if wrong else layer, " ".join(marked)


def _mark(sample: JsonMapping) -> str:
    if sample.get("truth") is None:
        return ""
    return "right" if sample.get("right", sample["text"] == sample["truth"]) else "wrong"


def _plots(results: Results, drawn: Sequence[Drawn], otherwise: str) -> list[PageBlock]:
    """Return the plots that exist, or a sentence where there are none.

    The order of the layers describes each plot for readers who cannot see it.
    """
    order = ", ".join(f"{row.layer} {results.metric.written(results.of(row))}" for row in results.measured)
    description = f"One mark or line for each layer. {sentence_case(results.metric.name)}, best first: {order}."
    plots = [Plot(figure, title, caption, description) for figure, title, caption in drawn if figure]
    return [Plots(plots)] if plots else [Prose(otherwise)]
