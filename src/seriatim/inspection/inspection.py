"""The page on a run and a text: surprisal, attention, gates, gradients, memory and mistakes of a model."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..core.errors import ConflictError, InputError, RangeError, check_integer
from ..data.repairs import Repairs, with_warnings
from ..data.sources import find_sources
from ..data.text import read_lines
from ..layers.outside_code import AllowCode
from ..models.probabilities import NotFiniteError, naming
from ..pages.page import Folded, Link, PageBlock, PageSection, Prose, Table, render, write_page
from ..pages.strip import Lens
from ..runs.ensembles import distinct_names
from ..runs.run import Run
from ..tasks.explainer import NotOfferedError
from ..training.run_files import PAGE as PAGE_KIND
from ..training.run_files import check_file
from .alignment import alignment_section
from .attention_maps import attention_section
from .context_section import memory_section
from .embeddings import embeddings_section
from .first_screen import FirstScreen, first_screen
from .gates import gates_section
from .gradient_flow import flow_section
from .inspected_run import ALONE, InspectedRun, SectionBody, open_run, prepare
from .mistakes import mistakes_section
from .ngram_section import ngrams_section
from .recording import top_layers
from .together import PAGE, Inspection, check_together, page_name, write_together
from .word_order import MAX_PERMUTATIONS, PERMUTATIONS, order_section

NOT_INTERPRETED = "The model is not better than a simpler one, so that what follows explains no ability of it."


class SectionSpec(NamedTuple):
    """A section of the page: the end of its address, its heading, the function that writes it, and what it is about."""

    anchor: str
    title: str
    content: Callable[[InspectedRun], SectionBody]
    of_network: bool = False  # of a run that answers with its simple baseline, too, the network alone


SECTIONS = (
    SectionSpec("alignment", "Alignment with the source", alignment_section),
    SectionSpec("ngrams", "Orders and back-off", ngrams_section),
    SectionSpec("word-order", "Does word order matter?", order_section, of_network=True),
    SectionSpec("attention", "Attention", attention_section, of_network=True),
    SectionSpec("gates", "Units and gates", gates_section, of_network=True),
    SectionSpec("embeddings", "Which tokens are alike?", embeddings_section, of_network=True),
    SectionSpec("gradient-flow", "Gradient: how far back it reaches", flow_section, of_network=True),
    SectionSpec("memory", "Memory: context and state", memory_section, of_network=True),
)
"""Sections of a page, of which those without blocks are left out."""


def inspect(
    run: Run | str | Path | Sequence[Run | str | Path],
    text: str,
    *,
    out: str | Path | None = None,
    data: str | None = None,
    file_format: str | None = None,
    fields: Mapping[str, object] | None = None,
    beam: int = 5,
    permute: int | bool = 0,
    allow_code: AllowCode = False,
    links: Sequence[Link] = (),
) -> Inspection:
    """Inspect what a run does with a text, and write one HTML page about it that loads nothing else.

    Args:
        run: a run, or the folder of one; or several of one task, which one page shows below each other.
        text: the text to read; a classifier, a tagger and a translator read its first line that is not blank.
        out: the file to write; None for `PAGE` in the folder of the run, or for the name of `together.page_name`.
        data: labelled data to find mistakes in; None for the run's own test data, or its held-out data.
        file_format: format of the data, as ``data.format`` of a configuration; None for the run's own.
        fields: fields of the configuration that say how data is read, by dotted name, in place of the run's own.
        beam: width of beam search, for tasks that search for answers.
        permute: number of other orders of the words to try, True for 20; 0 leaves out the section on word order.
        allow_code: whether code outside the library may be imported; see `seriatim.load`.
        links: related pages, which the page names below its main results.

    Returns:
        The path of the page and its main results.

    Raises:
        InputError: a run, the text or the data cannot be read, or the page cannot be written; or the runs are of
            different tasks.
    """
    permute = PERMUTATIONS if permute is True else check_integer("permute", permute)
    beam = check_integer("beam", beam)
    if not 0 <= permute <= MAX_PERMUTATIONS:
        raise RangeError(f"--permute: {permute} is out of range; give a number from 0 to {MAX_PERMUTATIONS:,}")
    read = functools.partial(prepare, text=text, beam=beam, data=data, file_format=file_format)
    if isinstance(run, Sequence) and not isinstance(run, str):
        if permute:
            raise ConflictError("--permute: the page of several runs has no section on word order; leave it out")
        several = [open_run(each, allow_code=allow_code)[0].reading(fields or {}) for each in run]
        return _inspect_together(several, read, out=out, data=data, links=links)

    # The file is checked before any work, which may take minutes.
    opened, notes = open_run(run, allow_code=allow_code)
    opened = opened.reading(fields or {})
    path: str | Path = opened.path / PAGE if out is None else out
    settings = opened.config.data
    inputs = (data, settings.train, settings.valid, settings.test)
    file = check_file(path, PAGE_KIND, inputs, of_run=opened.path)

    with naming(opened.place):
        inspected = read(opened, permutations=permute)
        screen, sections, lenses = _measured(inspected)
    lead = " ".join([_lead(inspected), *notes, *inspected.notes])
    title = f"{opened.path.name}: inside the model"
    write_page(file, render(title, lead, sections, opening=screen.blocks(lenses), links=links))
    return Inspection.of(Path(path), screen.summary, [screen])


def _inspect_together(
    runs: Sequence[Run],
    read: Callable[[Run], InspectedRun],
    *,
    out: str | Path | None,
    data: str | None,
    links: Sequence[Link],
) -> Inspection:
    """Write the page on several runs, of each of which the text is ``read``; for the rest see `inspect`."""
    check_together(runs)
    names = distinct_names([run.path for run in runs])
    path = page_name(names) if out is None else out
    file, screens = check_file(path, PAGE_KIND, (data,)), list[FirstScreen]()
    for run in runs:
        with naming(run.place):
            screens.append(first_screen(read(run)))
    pages = [os.path.relpath(run.path / PAGE, file.parent) for run in runs]
    return replace(write_together(screens, names, file, pages=pages, links=links), path=Path(path))


def _measured(inspected: InspectedRun) -> tuple[FirstScreen, list[PageSection], list[Lens]]:
    """Return the first screen, the sections, and the lenses of the sections."""
    sections, folded, missing, lenses = list[PageSection](), list[Folded](), list[list[str]](), list[Lens]()

    def leave_out(title: str, error: InputError) -> SectionBody:
        missing.append([title, str(error).rstrip(".")])
        return SectionBody([])

    try:
        mistakes = mistakes_section(inspected)  # first, so that unreadable data is reported before any other work
    except NotOfferedError as error:
        mistakes = leave_out("Errors", error)
    screen = first_screen(inspected)

    # A section that a model has nothing for leaves one sentence in the table at the end, and no gap in the page.
    for spec in SECTIONS:
        try:
            content = spec.content(inspected)
        except NotFiniteError:  # nothing can be said about such a model
            raise
        except InputError as error:
            content = leave_out(spec.title, error)
        if not content.blocks:
            continue
        if spec.of_network and screen.below:  # it is there for who asks, and nothing is concluded from it
            folded.append(Folded(spec.title, content.blocks))
            continue
        about = [Prose(f"This section is about {ALONE}.")] if spec.of_network and inspected.is_blended else []
        sections.append(PageSection(spec.anchor, spec.title, [*about, *content.blocks]))
        lenses += content.lenses
    if folded:
        blocks: list[PageBlock] = [Prose(NOT_INTERPRETED), *folded]
        sections.append(PageSection("network", "Inside the network, not interpreted", blocks))
    errors = PageSection("errors", "Errors", mistakes.blocks)
    about_run = Folded("Settings, data and versions", _about(inspected, missing))
    sections += [errors, PageSection("about", "About this run", [about_run])]
    return screen, sections, lenses


def _about(inspected: InspectedRun, missing: Sequence[list[str]]) -> list[PageBlock]:
    """Return what describes the run, and the titles of the sections that are ``missing``, with the reasons."""
    run = inspected.run
    config, summary = run.config, run.summary
    metrics = summary.get("valid", {})
    size = f", {config.model.num_layers} × {config.model.hidden_size}"
    rows = [
        ["task", config.task],
        ["layer", config.model.layer + (size if top_layers(run.model) else "")],
        ["parameters", f"{summary.get('parameters', 0):,}"],
        ["tokens", f"{config.tokenizer.kind}, {run.tokenizer.vocabulary_size:,} in the vocabulary"],
        [
            "trained on",
            f"{config.data.train}, {summary.get('tokens', 0):,} tokens in {summary.get('seconds', 0):.0f} s",
        ],
    ]
    for figure in run.task.evaluator.metrics:
        if metrics.get(figure.key) is not None:
            interval = figure.interval(metrics)
            rows.append([f"held out: {figure.name}", figure.text(metrics) + (f" ({interval})" if interval else "")])
    versions = summary.get("versions", {}).items()
    rows.append(["versions", ", ".join(f"{name} {value}" for name, value in versions)])

    blocks: list[PageBlock] = [
        Table(["fact", "this run"], rows, f"The run {run.path}, with 95 % intervals in brackets.")
    ]
    if missing:
        blocks.append(Table(["section", "reason"], missing, "Sections that are not shown."))
    return blocks


def _lead(inspected: InspectedRun) -> str:
    model, parameters = inspected.run.config.model, inspected.run.summary.get("parameters", 0)
    size = f", {parameters:,} parameters" if parameters else ""
    both = f" It answers together with its simple baseline; sections about {ALONE} say so."
    return f"A {inspected.explainer.wording.title} ({model.layer}{size}).{both if inspected.is_blended else ''}"


def read_whole(source: str, *, strict: bool) -> str:
    """Return the text of a file, or of standard input for ``-``; see `read_lines` for errors."""
    sources = find_sources(source, file_format="text")
    return "\n".join(with_warnings(functools.partial(read_lines, sources), Repairs(strict=strict)))
