"""The sections of a page on errors, and on the run itself."""

import math
import shlex
from typing import Any

from ..core.errors import InputError
from ..report.page import Cell, Code, Part, Plot, Plots, Prose, Section, Table
from ..training.task import AnyTask
from .mistake_figures import LABELS, calibration_figure, confusion_figure
from .mistakes import Bad, Mistakes, find_mistakes
from .sections import Found
from .subject import Subject

MAX_CHARACTERS = 400
"""Characters of an example that are shown."""
CORRECT = {
    "lm": "tokens predicted correctly by the top guess",
    "mlm": "masked tokens predicted correctly by the top guess",
    "classify": "labels correct",
    "tag": "tags correct",
    "seq2seq": "answers exactly correct",
}


def mistakes(subject: Subject) -> Found:
    """What the model gets wrong on labelled data."""
    spec = subject.held_out()
    if spec is None:
        return [Prose("Not shown: the run names no test or held-out data; give some with --data.")], []
    try:
        subject.check_own_data()
        found = find_mistakes(subject.run, spec, file_format=subject.file_format)
    except InputError as error:
        if subject.data:
            raise
        return [Prose(f"Not shown: the run's own data cannot be read; give some with --data. ({error})")], []
    right = f"{found.right:,} of {found.of:,} {CORRECT[subject.run.config.task]} ({found.right / max(1, found.of):.1%})"
    right += "" if found.chrf is None else f", chrF {found.chrf:.1f}"
    chose = (
        " These data also selected the weights of the run, so that results on other data may be worse."
        if subject.chose_weights()
        else ""
    )
    parts: list[Part] = [Prose(f"Evaluated on {found.seen} of {spec}: {right}.{chose}")]
    plots = []
    if found.confusion is not None:
        many = (
            f" Only the {LABELS} most confused of {len(found.labels)} labels are shown."
            if len(found.labels) > LABELS
            else ""
        )
        plots.append(
            Plot(
                confusion_figure(found.confusion, found.labels),
                "Confusion matrix",
                f"Rows are true labels, columns predicted labels; each cell is a share of the true label. Correct "
                f"predictions are on the diagonal.{many}",
                f"Confusion matrix of {len(found.labels)} labels.",
            )
        )
    if found.calibration and found.calibration_error is not None:
        plots.append(
            Plot(
                calibration_figure(found.calibration, found.calibration_error),
                "Calibration",
                "Accuracy of the predictions at each level of confidence. Below the diagonal, the model is "
                "overconfident. "
                f"Expected calibration error: {found.calibration_error:.3f}.",
                "Reliability diagram with counts.",
            )
        )
    elif subject.run.config.task == "seq2seq":
        parts.append(Prose("Calibration is not shown: an answer has many tokens and is correct or wrong as a whole."))
    parts += [Plots(plots)] if plots else []
    return [*parts, *_named(found)], [f"errors: {right} on {spec}"]


def _named(found: Mistakes) -> list[Part]:
    parts: list[Part] = []
    if found.confused:
        rows = [[one.truth, one.found, f"{one.times:,}"] for one in found.confused]
        parts.append(Table(["true", "predicted", "count"], rows, "The most frequent confusions.", {2}))
    if found.worst:
        answers = ["true", "predicted"] if found.worst[0].truth or found.worst[0].found else []
        worst = [_row(one, bool(answers)) for one in found.worst]
        parts.append(Table([found.score, "text", *answers], worst, "The examples with the worst scores."))
    return parts


def _row(one: Bad, answered: bool) -> list[str | Cell]:
    answers: list[str | Cell] = [_cut(one.truth), Cell(_cut(one.found), "wrong")] if answered else []
    score = f"{one.score:.3g}" if math.isfinite(one.score) else "infinite (probability zero)"
    return [score, _cut(one.text), *answers]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def about(subject: Subject) -> Section:
    """The run, and the command that makes this page again."""
    run, task = subject.run, subject.run.task
    config, summary = run.config, run.summary
    rows = [
        ["task", config.task],
        ["layer", f"{config.model.layer}, {config.model.num_layers} × {config.model.hidden_size}"],
        ["parameters", f"{summary.get('parameters', 0):,}"],
        ["tokens", f"{config.tokenizer.kind}, {run.tokenizer.vocabulary_size:,} in the vocabulary"],
        [
            "trained on",
            f"{config.data.train}, {summary.get('tokens', 0):,} tokens in {summary.get('seconds', 0):.0f} s",
        ],
        *_held_out(task, summary),
        ["versions", ", ".join(f"{name} {value}" for name, value in summary.get("versions", {}).items())],
    ]
    again = Code(_command(subject), "To make this page again:")
    return Section("about", "About this run", [Table(["", "this run"], rows, str(run.path)), again])


def _command(subject: Subject) -> str:
    short = len(subject.text) <= 200 and "\n" not in subject.text
    text = f"--text={shlex.quote(subject.text)}" if short else "--text-file FILE"
    translates = subject.run.config.task == "seq2seq"
    named = {
        "data": subject.data,
        "format": subject.file_format,
        "beam": translates and subject.beam,
        "permute": subject.permutations,
    }
    more = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in named.items() if value)
    return f"seriatim inspect {shlex.quote(str(subject.run.path))} {text}{more}"


def _held_out(task: AnyTask, summary: dict[str, Any]) -> list[list[str]]:
    found = summary.get("valid", {})
    rows = []
    for figure in task.figures:
        if found.get(figure.key) is not None:
            span = figure.span(found)
            rows.append([f"held out: {figure.name}", figure.of(found) + (f" ({span})" if span else "")])
    return rows
