"""The section of a page on the run itself, with the command that writes the page."""

import shlex

from ..report.page import Code, Section, Table
from .subject import Subject


def about_section(subject: Subject) -> Section:
    """Return the section on the run."""
    run = subject.run
    config, summary = run.config, run.summary
    versions = summary.get("versions", {}).items()
    rows = [
        ["task", config.task],
        ["layer", f"{config.model.layer}, {config.model.num_layers} × {config.model.hidden_size}"],
        ["parameters", f"{summary.get('parameters', 0):,}"],
        ["tokens", f"{config.tokenizer.kind}, {run.tokenizer.vocabulary_size:,} in the vocabulary"],
        [
            "trained on",
            f"{config.data.train}, {summary.get('tokens', 0):,} tokens in {summary.get('seconds', 0):.0f} s",
        ],
        *_held_out_metrics(subject),
        ["versions", ", ".join(f"{name} {value}" for name, value in versions)],
    ]
    table = Table(["", "this run"], rows, str(run.path))
    return Section("about", "About this run", [table, Code(_command(subject), "To make this page again:")])


def _held_out_metrics(subject: Subject) -> list[list[str]]:
    metrics, rows = subject.run.summary.get("valid", {}), []
    for figure in subject.run.task.figures:
        if metrics.get(figure.key) is not None:
            span = figure.span(metrics)
            rows.append([f"held out: {figure.name}", figure.of(metrics) + (f" ({span})" if span else "")])
    return rows


def _command(subject: Subject) -> str:
    """Return the command that writes the page."""
    short = len(subject.text) <= 200 and "\n" not in subject.text
    text = f"--text={shlex.quote(subject.text)}" if short else "--text-file FILE"
    options = {
        "data": subject.data,
        "format": subject.file_format,
        "beam": subject.view.beam_search and subject.beam,
        "permute": subject.permutations,
    }
    rest = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value)
    return f"seriatim inspect {shlex.quote(str(subject.run.path))} {text}{rest}"
