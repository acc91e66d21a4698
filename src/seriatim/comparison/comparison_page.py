"""The report of a comparison: ``report.html``, one file, made of what ``results.json`` holds."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from ..core.json_object import JsonMapping
from ..inspection.together import PAGE
from ..pages.page import (
    Banner,
    Code,
    Facts,
    Folded,
    Link,
    PageBlock,
    PageSection,
    Prose,
    Sample,
    Samples,
    render,
    with_links,
    write_page,
)
from ..pages.statements import told
from ..pages.wording import short_name
from . import charts, tables
from .differences_section import differences_section
from .findings import CONDITIONS, Caveats, facts_of, headline, warnings_of
from .plan import REPORT
from .results import MAX_DRAWN, Results

BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
"""Two or more blank lines, which badly trained models write in large numbers."""
UNFOLDED = 3
"""Samples of layers that are shown; those of the others are folded."""


def write_report(folder: Path, results: JsonMapping, *, is_inspected: bool = False) -> Path:
    """Write ``report.html`` into the folder of a comparison, and return its path.

    It leads to the page of all layers on one text if the comparison was, or is being, inspected.
    """
    links = [Link("all layers on one text", PAGE)] if is_inspected or (folder / PAGE).is_file() else []
    write_page(folder / REPORT, with_links(report(results, inspected_pages(folder, results)), links))
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
    drawn = results.drawn()  # figures of very many layers cannot be read; the table hides none

    # The first screen: who wins, one line of warnings, one chart, a few facts; how it was done is folded.
    warnings = warnings_of(results)
    opening: list[PageBlock] = [Banner(warnings)] if warnings else []
    opening += [charts.ranking(drawn, dict(pages)), Facts(facts_of(results)), *_folded(results)]

    few = [Prose(f"Figures and samples show the best {MAX_DRAWN} of {len(results.rows):,} layers.")]
    sections = [
        PageSection("table", "Table", [*few * (drawn is not results), tables.summary_table(results, pages)]),
        PageSection("learning", "Learning", charts.learning(drawn)),
        PageSection("differ", "Where they differ", [*charts.context(drawn), *differences_section(drawn)]),
        PageSection("cost", "Cost", [*charts.quality_against_cost(drawn), *charts.growth(drawn)]),
        PageSection("bottleneck", "Size of the state", charts.state_sizes(drawn)),
        PageSection("samples", "Samples", _samples(drawn)),
    ]
    name = short_name(str(results.section("data").get("train") or "a text"))
    title = f"{len(results.rows)} sequence models on {name}" if len(results.rows) > 1 else f"One model on {name}"
    return render(title, headline(results), sections, opening=opening)


def _folded(results: Results) -> list[PageBlock]:
    """Return how the comparison was done, folded: who wants to trust it reads on here."""
    conditions = told(CONDITIONS, Caveats(results))
    settings = [tables.settings_table(results), tables.trials_table(results), tables.seeds_table(results)]
    blocks: dict[str, Sequence[PageBlock | None]] = {
        "What was equal": [tables.equal_table(results)],
        "How it was tested": [tables.tests_table(results), tables.metrics_table(results)],
        "Conditions of the machine": [*map(Prose, conditions), tables.machine_table(results)],
        "Settings, and how to repeat it": [*settings, *_commands(results)],
        "What the figures mean": [tables.meanings_table(results)],
    }
    return [Folded(title, [block for block in content if block is not None]) for title, content in blocks.items()]


def _commands(results: Results) -> list[PageBlock]:
    """Return the command of the comparison, and that of each row alone."""
    runs = [(row.layer, run) for row in results.ranked for run in row.runs if run.get("command")]
    commands = [f"# {layer}, seed {run['seed']}\n{run['command']}" for layer, run in runs]
    whole = Code(results.values.get("command") or "seriatim compare", "The comparison:")
    alone = Code("\n".join(commands), "Each row alone, from the folder in which the comparison was started:")
    return [whole, *[alone] * bool(commands)]


def _samples(results: Results) -> list[PageBlock]:
    """Return the text that each language model writes after the same prompt, best layer first.

    Answers of other models are items of the section on where they differ.
    """
    samples = [(row.layer, sample) for row in results.ranked for sample in row.samples if "prompt" in sample]
    if not samples:
        return []
    items = [Sample(layer, BLANK_LINES.sub("\n⋮\n", each["text"]), each["prompt"]) for layer, each in samples]
    prompt = samples[0][1]["prompt"]
    caption = f"Continuations of “{prompt}”:" if prompt else "Texts from an empty beginning:"
    rest = Folded("Those of the other layers", [Samples(items[UNFOLDED:])])
    return [Samples(items[:UNFOLDED], caption), *[rest] * (len(items) > UNFOLDED)]
