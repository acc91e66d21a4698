"""One page on a run and a text: what the model expects, looks at, keeps, forgets and gets wrong."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..config import set_fields
from ..data.readers import find_sources, read_lines
from ..errors import InputError
from ..run import Run
from ..tasks.counting import counts_of
from . import model_sections, sections
from .page import Section, render, write_page
from .sparsity import sparse
from .subject import Subject, open_run, prepare

PAGE = "inspect.html"
KINDS = {
    "lm": "language model",
    "mlm": "masked language model",
    "classify": "classifier",
    "tag": "tagger",
    "seq2seq": "translator",
}


class Inspection(NamedTuple):
    """What was found.

    Attributes:
        path: of the page.
        summary: the main findings, a line each.
    """

    path: Path
    summary: list[str]


def inspect(
    run: Run | str | Path,
    text: str,
    *,
    out: str | Path | None = None,
    data: str | None = None,
    file_format: str | None = None,
    fields: Mapping[str, Any] | None = None,
    beam: int = 5,
) -> Inspection:
    """Looks at what a run does with a text, and writes a page about it: one HTML file that needs nothing else.

    Args:
        run: a run, or the folder of one.
        text: to read; a classifier, a tagger and a translator read its first line that is not blank.
        out: the file to write; None for `PAGE` in the folder of the run.
        data: labelled data to look for mistakes in; None for the run's own test data, or its held-out data.
        file_format: of the data, as ``data.format`` of a configuration; None for the run's own.
        fields: fields of the configuration that say how data is read, by dotted name, in place of the run's own.
        beam: hypotheses kept at once where answers are written.

    Raises:
        InputError: the run, the text or the data cannot be read, or the page may not be written.
    """
    opened, notes = (run, ()) if isinstance(run, Run) else open_run(run)
    set_fields(opened.config, fields or {})
    path = opened.path / PAGE if out is None else Path(out)
    _refuse_unwritable(path)
    subject = prepare(opened, text, beam=beam, data=data, file_format=file_format)
    found, summary = _sections(subject)
    said = " ".join([_lead(subject), *notes, *subject.notes])
    lead = "\n\n".join([said, *(f"{_sentence(line)}." for line in summary)])
    write_page(path, render(f"{opened.path.name}: inside the model", lead, found))
    return Inspection(path, summary)


def _sections(subject: Subject) -> tuple[list[Section], list[str]]:
    translates = subject.run.config.task == "seq2seq"
    title = {"classify": "What each word does to the label", "tag": "How sure it is of each tag"}
    plan = [
        ("surprisal", title.get(subject.run.config.task, "What surprises it"), sections.surprise),
        *([("alignment", "Which source word each word came from", sections.alignments)] if translates else []),
        *([("sparsity", "How sparse its counts are", sparse)] if counts_of(subject.run.model) is not None else []),
        ("attention", "Where it looks", sections.looks),
        ("gates", "What its gates do", sections.opened),
        ("gradient-flow", "How far back it learns", model_sections.flow),
        ("memory", "How far back it looks, and what it keeps", model_sections.memory),
    ]
    found, lines = [], []
    mistakes = model_sections.mistakes(subject)  # first, for data that cannot be read is known at once
    for name, heading, make in plan:
        one, said = sections.section(name, heading, make, subject)
        found.append(one)
        lines += said
    found += [Section("errors", "What it gets wrong", mistakes[0]), model_sections.about(subject)]
    return found, lines + mistakes[1]


def _lead(subject: Subject) -> str:
    model, parameters = subject.run.config.model, subject.run.summary.get("parameters", 0)
    start = " ".join(subject.text[:80].split())
    more = "…" if len(subject.text) > 80 else ""
    size = f", {parameters:,} parameters" if parameters else ""
    return f"A {KINDS[subject.run.config.task]} ({model.layer}{size}) reads “{start}{more}”."


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}".rstrip(".")


def _refuse_unwritable(path: Path) -> None:
    """Raises InputError at once where nothing could be written after all the work."""
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file in it, for instance {path / PAGE}")
    if not path.parent.is_dir():
        raise InputError(f"--out: the folder {path.parent} does not exist; make it, or name another file")
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"--out: {path.parent} may not be written to; give yourself the right to, or name another file"
        )


def read_whole(spec: str) -> str:
    """The text of a file, or with ``-`` of standard input.

    Raises:
        InputError: it cannot be read, or is no text.
    """
    return "\n".join(read_lines(find_sources(spec, file_format="text")))
