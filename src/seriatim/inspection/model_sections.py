"""The sections of a page on the model itself: how far back it learns and looks, what it keeps, what it gets wrong."""

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..training.task import Task
from .answers import answer_by_context
from .error_figures import LABELS, calibration_figure, confusion_figure
from .errors import Bad, Mistakes, find_mistakes
from .gradient_flow import SHARE, LayerFlow, gradient_flow, gradient_flow_figure
from .leaves import BACKWARDS
from .memory import Seen, accuracy_figure, by_context, context_sizes, loss_figure
from .page import Cell, Code, Part, Plot, Plots, Prose, Section, Table
from .sections import Found
from .state_costs import Cost, memory_tokens, state_costs, state_figure
from .subject import Subject

OTHERS = 15
"""Items of the held-out data whose gradients are averaged with those of a single line."""
NEAR = 0.01
"""The share by which a loss may lie above that of the full context, and count as equal to it."""
SMALL = 1e-3
"""Nats by which it may lie above it too: of an answer that is all but certain a share says nothing."""
CUT = 400
"""Characters of an example that are shown."""
RIGHT = {
    "lm": "tokens are those held likeliest",
    "mlm": "masked tokens are those held likeliest",
    "classify": "labels right",
    "tag": "tags right",
    "seq2seq": "answers exactly right",
}


def flow(subject: Subject) -> Found:
    """How far back the gradient reaches, before training and after it."""
    others = _others(subject)
    found = gradient_flow(subject.run, [subject.text, *others])
    if not found.layers:
        return [Prose(_no_flow(subject))], []
    intro = (
        "How much the loss at the end of a text depends on what each layer handed on to its own next step k steps "
        "before: the norm of ∂loss/∂h against k, for the trained model and for one of the same configuration that is "
        "not trained. A line that falls fast is a gradient that vanishes: by way of this state nothing so far back "
        "can be learned from, though what was latched there may well be kept, and what a layer gave to others in the "
        "meantime is not counted. The reach is the k at which the norm falls below "
        f"{SHARE:.0%} of that at k = 1. Means over {found.windows} stretches of text{_of_which(others)}; of shorter "
        "ones as far back as they go."
    )
    if any(BACKWARDS in layer.name for layer in found.layers):
        intro += " For what reads backwards that is counted from where it ends, at the beginning of a text."
    rows = [[layer.name, *(_reach(reach, layer) for reach in reversed(layer.reach))] for layer in found.layers]
    plots = [
        Plot(
            gradient_flow_figure([layer]),
            f"Gradient flow of {layer.name}",
            f"Reach: {_reach(layer.reach[1], layer)} before training, {_reach(layer.reach[0], layer)} after it.",
            f"Norm of the gradient against steps back, up to {len(layer.trained)}.",
        )
        for layer in found.layers
    ]
    table = Table(["layer", "reach before training", "after it"], rows, "Steps back.", {1, 2})
    lines = [
        f"gradient reach, {name.replace(': ', ' ')}: {after} steps ({before} before training)"
        for name, before, after in rows
    ]
    return [Prose(intro), table, Plots(plots)], lines


def _of_which(others: Sequence[Any]) -> str:
    return f", this one and {len(others)} held-out ones" if others else ""


def _reach(steps: int | None, layer: LayerFlow) -> str:
    return f"beyond {len(layer.trained):,}" if steps is None else f"{steps:,}"


def _no_flow(subject: Subject) -> str:
    if getattr(subject.run.task, "trainer", None) is not None:
        return "Left out: n-grams are counted, and there is no gradient."
    return "Left out: the text has one token, and nothing came before it; give a longer one."


def _others(subject: Subject) -> list[Any]:
    """Some held-out items, where the text is but one line."""
    task: Any = subject.run.task
    spec = None if subject.models_text else subject.held_out()
    if spec is None:
        return []
    given = (spec, "test", subject.file_format)
    try:
        subject.check_own_data()
        if subject.run.config.task == "classify":
            rows = [row.text for row in itertools.islice(task.rows(*given), OTHERS)]
            return [row for row in rows if row.strip()]
        if subject.run.config.task == "tag":
            return list(itertools.islice(task.sentences(*given), OTHERS))
        pairs = itertools.islice(task.pairs(*given), OTHERS)
        return [(pair.source, pair.target) for pair in pairs if pair.source.strip()]
    except InputError:  # of which the section on mistakes tells
        return []


def memory(subject: Subject) -> Found:
    """How much of its context a model uses, and what its state costs."""
    parts, lines = _context(subject) if subject.run.config.task == "lm" else _own_context(subject)
    try:
        costs = state_costs(subject.run.model)
    except InputError as error:
        return [*parts, Prose(f"What its state costs is left out. {str(error)[:1].upper()}{str(error)[1:]}.")], lines
    return [*parts, *_costs(costs, subject.run.model)], lines


def _context(subject: Subject) -> Found:
    corpus = subject.corpus
    sizes = context_sizes(len(corpus.ids))
    found = by_context(subject.run.model, corpus.ids, sizes, ends=corpus.ends)
    needed = _needed({size: seen.loss for size, seen in found.items()})
    plots = [
        Plot(
            loss_figure(found),
            "Loss when only the last k tokens are seen",
            f"The same tokens each time. {_said(needed)}",
            f"Loss in nats per token for k from 1 to {sizes[-1]}; {found[sizes[0]].loss:.3f} to {_full(found):.3f}.",
        ),
        Plot(
            accuracy_figure(found),
            "Accuracy when only the last k tokens are seen",
            "The share of the same tokens that is held likeliest.",
            f"Accuracy for k from 1 to {sizes[-1]}.",
        ),
    ]
    return [Plots(plots)], [f"memory: {_said(needed)}"]


def _own_context(subject: Subject) -> Found:
    if subject.run.config.task == "mlm":
        return [Prose("A masked model reads from both sides; there is no last token before a gap to count from.")], []
    count = (
        len(subject.text.split())
        if subject.run.config.task == "tag"
        else len(subject.run.tokenizer.encode(subject.text))
    )
    sizes = context_sizes(2 * count)
    found = answer_by_context(subject.run, subject.text, [size for size in sizes if size < count] or [1])
    needed = _needed(found)
    figure = loss_figure({size: Seen(loss, 0.0) for size, loss in found.items()}, names=("−log P (nats)", ""))
    what = {"classify": "the label", "tag": "the tag of the last word", "seq2seq": "each token of the answer"}
    caption = f"How surprised the model is by its own answer, {what[subject.run.config.task]}, where only the last k "
    caption += f"tokens of the text are seen. {_said(needed)}"
    return [
        Plots([Plot(figure, "The answer with only the last k tokens", caption, "−log P of the answer against k.")])
    ], []


def _full(found: dict[int | None, Seen]) -> float:
    return found[None].loss


def _needed(losses: dict[int | None, float]) -> int | None:
    """The smallest k from which on the loss is as good as that of the full context."""
    sizes = sorted(size for size in losses if size is not None)
    enough = [losses[size] <= losses[None] * (1 + NEAR) + SMALL for size in sizes]
    return next((size for i, size in enumerate(sizes) if all(enough[i:])), None)


def _said(needed: int | None) -> str:
    if needed is None:
        return f"For no k that was tried is the loss within {NEAR:.0%} of that of the full context: more is of use."
    return f"From k = {needed} on the loss is at most {NEAR:.0%} above that of the full context."


def _costs(costs: Sequence[Cost], model: Any) -> list[Part]:
    sizes = list(costs[0].sizes)
    rows = [[cost.name or "state", *(f"{cost.sizes[size]:,}" for size in sizes), cost.growth] for cost in costs]
    rows.append(["all", *(f"{sum(cost.sizes[size] for cost in costs):,}" for size in sizes), ""])
    decodes = hasattr(model, "encode")
    text = f"the answer to a source of {memory_tokens(model)} tokens" if decodes else "a text"
    caption = f"Bytes of each part of the state, named by its path in it, after so many tokens of {text}."
    table = Table(["part", *(f"{size:,}" for size in sizes), ""], rows, caption, set(range(1, len(sizes) + 1)))
    growing = ", ".join(cost.name for cost in costs if cost.growth != "stays")
    if not growing:
        longer = "; where its decoder has attention, more is kept of a longer source" if decodes else ""
        what = "an answer" if decodes else "a text"
        return [table, Prose(f"What is kept of {what} is of one size, however long it is{longer}.")]
    bound = "" if any(cost.growth == "grows" for cost in costs) else ", up to a bound"
    plot = Plot(
        state_figure(costs), "What the state costs", f"What grows: {growing}{bound}.", "Bytes kept against tokens read."
    )
    return [table, plot]


def mistakes(subject: Subject) -> Found:
    """What goes wrong on labelled data."""
    spec = subject.held_out()
    if spec is None:
        return [Prose("Left out: the run names no test or held-out data; give some with --data.")], []
    try:
        subject.check_own_data()
        found = find_mistakes(subject.run, spec, file_format=subject.file_format)
    except InputError as error:
        if subject.data:
            raise
        return [Prose(f"Left out: the run's own data cannot be read; give some with --data. ({error})")], []
    right = f"{found.right:,} of {found.of:,} {RIGHT[subject.run.config.task]} ({found.right / max(1, found.of):.1%})"
    right += "" if found.chrf is None else f", chrF {found.chrf:.1f}"
    chose = " They chose the weights, so that others may be answered worse." if subject.chose_weights() else ""
    parts: list[Part] = [Prose(f"Of {spec} {found.seen} were looked at; {right}.{chose}")]
    plots = []
    if found.confusion is not None:
        many = f" Of {len(found.labels)} labels the {LABELS} most confused." if len(found.labels) > LABELS else ""
        plots.append(
            Plot(
                confusion_figure(found.confusion, found.labels),
                "What is taken for what",
                f"A row is a true label, its cells shares of what was found; what is right lies on the diagonal.{many}",
                f"Confusion matrix of {len(found.labels)} labels.",
            )
        )
    if found.calibration and found.calibration_error is not None:
        plots.append(
            Plot(
                calibration_figure(found.calibration, found.calibration_error),
                "What confidence is worth",
                "Accuracy of predictions of each confidence; below the diagonal the model is too sure. Expected "
                f"calibration error {found.calibration_error:.3f}.",
                "Reliability diagram with counts.",
            )
        )
    elif subject.run.config.task == "seq2seq":
        parts.append(Prose("Confidence is left out: an answer is many tokens, and right or wrong as a whole."))
    parts += [Plots(plots)] if plots else []
    return [*parts, *_named(found)], [f"errors: {right} on {spec}"]


def _named(found: Mistakes) -> list[Part]:
    parts: list[Part] = []
    if found.confused:
        rows = [[one.truth, one.found, f"{one.times:,}"] for one in found.confused]
        parts.append(Table(["true", "found instead", "times"], rows, "The commonest mistakes.", {2}))
    if found.worst:
        answers = ["true", "found"] if found.worst[0].truth or found.worst[0].found else []
        worst = [_row(one, bool(answers)) for one in found.worst]
        parts.append(Table([found.score, "text", *answers], worst, "The worst examples."))
    return parts


def _row(one: Bad, answered: bool) -> list[str | Cell]:
    answers: list[str | Cell] = [_cut(one.truth), Cell(_cut(one.found), "wrong")] if answered else []
    return [f"{one.score:.3g}", _cut(one.text), *answers]


def _cut(text: str) -> str:
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def about(subject: Subject) -> Section:
    """What was looked at, and how to look again."""
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
    again = Code(_command(subject), "To see this page again:")
    return Section("about", "About this run", [Table(["", "this run"], rows, str(run.path)), again])


def _command(subject: Subject) -> str:
    short = len(subject.text) <= 200 and "\n" not in subject.text
    text = f"--text={shlex.quote(subject.text)}" if short else "--text-file FILE"
    translates = subject.run.config.task == "seq2seq"
    named = {"data": subject.data, "format": subject.file_format, "beam": translates and subject.beam}
    more = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in named.items() if value)
    return f"seriatim inspect {shlex.quote(str(subject.run.path))} {text}{more}"


def _held_out(task: Task, summary: dict[str, Any]) -> list[list[str]]:
    found = summary.get("valid", {})
    rows = []
    for figure in task.figures:
        if found.get(figure.key) is not None:
            span = figure.span(found)
            rows.append([f"held out: {figure.name}", figure.of(found) + (f" ({span})" if span else "")])
    return rows
