"""One page on a run and a text: surprisal, attention, gates, gradients, memory and errors of a model."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..config import set_fields
from ..core.errors import InputError
from ..data.readers import find_sources, read_lines
from ..layers.origins import AllowCode
from ..report.notebook_display import framed
from ..report.page import Section, render, write_page
from ..runs.run import Run
from ..tasks.counting import counts_of
from ..training import run_files
from . import flow_section, memory_section, model_sections, sections, word_section
from .predictions import isolated
from .sparsity import sparse
from .subject import Subject, open_run, prepare
from .word_order import MOST_PERMUTATIONS, PERMUTATIONS

PAGE = "inspect.html"
KINDS = {
    "lm": "language model",
    "mlm": "masked language model",
    "classify": "classifier",
    "tag": "tagger",
    "seq2seq": "translator",
}


class Inspection(NamedTuple):
    """Result of `inspect`; a notebook shows its page.

    Attributes:
        path: file of the page.
        summary: the main results, a line each.
    """

    path: Path
    summary: list[str]

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks; the summary where the file is gone."""
        return framed(self.path, self.summary)


def inspect(
    run: Run | str | Path,
    text: str,
    *,
    out: str | Path | None = None,
    data: str | None = None,
    file_format: str | None = None,
    fields: Mapping[str, Any] | None = None,
    beam: int = 5,
    permute: int | bool = 0,
    allow_code: AllowCode = False,
) -> Inspection:
    """Inspects what a run does with a text, and writes a page about it: one HTML file that needs nothing else.

    Args:
        run: a run, or the folder of one.
        text: the text to read; a classifier, a tagger and a translator read its first line that is not blank.
        out: the file to write; None for `PAGE` in the folder of the run.
        data: labelled data to find errors in; None for the run's own test data, or its held-out data.
        file_format: format of the data, as ``data.format`` of a configuration; None for the run's own.
        fields: fields of the configuration that say how data is read, by dotted name, in place of the run's own.
        beam: width of beam search, where answers are generated.
        permute: number of other orders of the words to try, True for 20; 0 leaves out the section on word order.
        allow_code: whether code outside the library may be imported; see `seriatim.load`.

    Returns:
        The path of the page and its main results.

    Raises:
        InputError: the run, the text or the data cannot be read, or the page cannot be written.
    """
    if not 0 <= permute <= MOST_PERMUTATIONS:
        raise InputError(f"permute must be from 0 to {MOST_PERMUTATIONS:,}, got {permute}")
    opened, notes = (run, ()) if isinstance(run, Run) else open_run(run, allow_code=allow_code)
    set_fields(opened.config, fields or {})
    path = opened.path / PAGE if out is None else Path(out)
    settings = opened.config.data
    run_files.check_file(path, run_files.PAGE, (data, settings.train, settings.valid, settings.test))
    _refuse_unwritable(path)
    orders = PERMUTATIONS if permute is True else int(permute)
    subject = prepare(opened, text, beam=beam, data=data, file_format=file_format, permutations=orders)
    page_sections, summary = _sections(subject)
    first = " ".join([_lead(subject), *notes, *subject.notes])
    lead = "\n\n".join([first, *(f"{_sentence(line)}." for line in summary)])
    write_page(path, render(f"{opened.path.name}: inside the model", lead, page_sections))
    return Inspection(path, summary)


def _sections(subject: Subject) -> tuple[list[Section], list[str]]:
    translates = subject.run.config.task == "seq2seq"
    title = {"classify": "Effect of each word on the label", "tag": "Certainty of each tag"}
    plan = [
        ("surprisal", title.get(subject.run.config.task, "Surprisal"), sections.surprise),
        *([("alignment", "Alignment with the source", sections.alignments)] if translates else []),
        *([("sparsity", "How sparse its counts are", sparse)] if counts_of(subject.run.model) is not None else []),
        *([("word-order", "Does word order matter?", word_section.order)] if subject.permutations else []),
        ("attention", "Attention", sections.looks),
        ("gates", "Gates", sections.opened),
        ("embeddings", "Which tokens are alike?", word_section.alike),
        ("gradient-flow", "Gradient flow: how far back it can learn", flow_section.flow),
        ("memory", "Memory: how much context it uses", memory_section.memory),
    ]
    page_sections, lines = [], []
    errors = model_sections.mistakes(subject)  # first, so that unreadable data is reported at once
    for name, heading, make in plan:
        section, results = sections.section(name, heading, make, subject)
        page_sections.append(section)
        lines += results
    page_sections += [Section("errors", "Errors", errors[0]), model_sections.about(subject)]
    return page_sections, lines + errors[1]


def _lead(subject: Subject) -> str:
    model, parameters = subject.run.config.model, subject.run.summary.get("parameters", 0)
    start = " ".join(subject.text[:80].split())
    more = "…" if len(subject.text) > 80 else ""
    size = f", {parameters:,} parameters" if parameters else ""
    return f"A {KINDS[subject.run.config.task]} ({model.layer}{size}) reads “{isolated(start + more)}”."


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}".rstrip(".")


def _refuse_unwritable(path: Path) -> None:
    """Raises InputError before any work is done if the page cannot be written."""
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file in it, for instance {path / PAGE}")
    if not path.parent.is_dir():
        raise InputError(f"--out: the folder {path.parent} does not exist; create it, or name another file")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--out: {path.parent} is not writable; change its permissions, or name another file")


def read_whole(spec: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        InputError: the file cannot be read, or is not text.
    """
    return "\n".join(read_lines(find_sources(spec, file_format="text")))
