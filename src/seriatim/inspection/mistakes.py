"""The section of a page on mistakes: confused labels, calibration, and the examples with the worst scores."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..evaluation.error_analysis import Mistakes, WrongExample
from ..pages.charts import shortened
from ..pages.page import Cell, PageBlock, Plot, Plots, Prose, Table
from ..pages.palette import HEAT, ON_DARK, ON_LIGHT, SOFT
from ..pages.theme import model_style, new_figure
from ..pages.wording import cut, percent, rounded
from ..tasks.explainer import NotOfferedError
from .inspected_run import InspectedRun, SectionBody

MAX_LABELS = 20
"""Labels of a confusion matrix; of more labels, those with the most mistakes are shown."""
MAX_NAME = 24
"""Characters of a label at an axis."""
MAX_COUNTED = 12
"""Number of labels up to which the cells of a matrix show counts."""
COLOUR_BAR = 1.0
"""Inches of the width of a confusion matrix for its colour bar."""
MAX_CHARACTERS = 400
"""Characters of an example that are shown."""


_cut = partial(cut, limit=MAX_CHARACTERS)


def mistakes_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on mistakes on labelled data.

    Raises:
        InputError: data that the user named cannot be read.
        NotOfferedError: there are no data, or the run's own cannot be read, or the task lists no mistakes.
    """
    source, explainer = inspected.held_out(), inspected.explainer
    if source is None:
        raise NotOfferedError("the run names no test or held-out data; give some with --data")
    try:
        inspected.check_held_out(source)
        mistakes = explainer.require(explainer.labelled).mistakes(source, inspected.file_format)
    except InputError as error:
        if inspected.data or isinstance(error, NotOfferedError):
            raise
        raise NotOfferedError(f"data: those of the run cannot be read ({error}); give some with --data") from error

    # Data that selected the weights give a result that is too good; the reader must know.
    name = inspected.held_out_name
    fraction = mistakes.correct / max(1, mistakes.total)
    result = f"{mistakes.correct:,} of {mistakes.total:,} {explainer.wording.correct} ({percent(fraction)})"
    result += "" if mistakes.chrf is None else f", chrF {mistakes.chrf:.1f}"
    caveat = ""
    if source == inspected.run.config.data.valid and inspected.run.task.objective is not None:
        caveat = " These data also selected the weights of the run, so that results on other data may be worse."
    blocks: list[PageBlock] = [Prose(f"Evaluated on {mistakes.evaluated} of {name}: {result}.{caveat}")]
    if mistakes.chrf is not None:
        blocks.append(Prose("Calibration is not shown: an answer has many tokens and is correct or wrong as a whole."))
    if plots := list(_plots(mistakes, inspected.layer)):
        blocks.append(Plots(plots))
    return SectionBody([*blocks, *_tables(mistakes)], [f"evaluation: {result} on {name}"])


def _plots(mistakes: Mistakes, layer: str) -> Iterator[Plot]:
    if mistakes.confusion is not None:
        count = len(mistakes.labels)
        cut = f" Only the {MAX_LABELS} most confused of {count:,} labels are shown." if count > MAX_LABELS else ""
        yield Plot(
            confusion_figure(mistakes.confusion, mistakes.labels),
            "Confusion matrix",
            "Rows are true labels, columns predicted labels; each cell is a share of the true label. Correct "
            f"predictions are on the diagonal.{cut}",
            f"Confusion matrix of {count} labels.",
        )
    if mistakes.calibration_error is not None:
        yield Plot(
            calibration_figure(mistakes.calibration, mistakes.calibration_error, layer),
            "Calibration",
            "Accuracy of the predictions at each level of confidence, with 95 % intervals; all dots stand for as many "
            "predictions. Below the diagonal, the model is overconfident. "
            f"Expected calibration error: {mistakes.calibration_error:.3f}.",
            "Reliability diagram.",
        )


def _tables(mistakes: Mistakes) -> Iterator[Table]:
    if mistakes.confusions:
        rows = [[_cut(each.truth), _cut(each.predicted), f"{each.count:,}"] for each in mistakes.confusions]
        yield Table(["true", "predicted", "count"], rows, "The most frequent confusions.", {2})
    if mistakes.worst:
        answered = any(example.truth or example.predicted for example in mistakes.worst)
        headings = [mistakes.score_name, "text", *(["true", "predicted"] if answered else [])]
        examples = [_row(example)[: len(headings)] for example in mistakes.worst]
        yield Table(headings, examples, "The examples with the worst scores.")


def _row(example: WrongExample) -> list[str | Cell]:
    score = "infinite (probability zero)"
    if math.isfinite(example.score):
        score = f"{example.score:,}" if isinstance(example.score, int) else rounded(example.score)
    return [
        score,
        _cut(example.text),
        _cut(example.truth),
        Cell(_cut(example.predicted), "wrong"),
    ]


def most_confused(confusion: np.ndarray, *, count: int = MAX_LABELS) -> np.ndarray:
    """Return the indices of the labels with the most mistakes, as truth or as prediction, in ascending order."""
    wrong = confusion.sum(0) + confusion.sum(1) - 2 * confusion.diagonal()
    return np.sort(np.argsort(-wrong, kind="stable")[:count])


def confusion_figure(confusion: np.ndarray, labels: Sequence[str]) -> Figure:
    """Draw a confusion matrix of counts ``(true labels, predicted labels)``; cells are fractions of the true label."""
    chosen = most_confused(confusion)
    counts = confusion[np.ix_(chosen, chosen)]
    names = [shortened(labels[label], MAX_NAME) for label in chosen.tolist()]
    fractions = counts / np.maximum(confusion.sum(1)[chosen], 1)[:, None]

    # Counts can be read only in few and large cells; of more labels, colours alone are drawn.
    large = len(names) > MAX_COUNTED
    texts = [] if large else [[f"{count:,}" for count in row] for row in counts.tolist()]
    width, height = (6.4, 5.4) if large else _size_for(texts, names)
    figure, [[plot]] = new_figure(width=width, height=height)
    image = plot.imshow(fractions, cmap=HEAT, vmin=0, vmax=1, aspect="equal" if large else "auto")
    plot.grid(visible=False)
    plot.set_xticks(range(len(names)), names, rotation=90)
    plot.set_yticks(range(len(names)), names)
    plot.set(xlabel="predicted", ylabel="true")
    figure.colorbar(image, ax=plot, label="share of the true label", fraction=0.046)
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            colour = ON_LIGHT if fractions[row, column] > 0.5 else ON_DARK
            plot.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    return figure


def _size_for(texts: Sequence[Sequence[str]], names: Sequence[str]) -> tuple[float, float]:
    """Return the size of a figure in inches in which the count of each cell fits into its cell."""
    longest, digits = max(map(len, names)), max(len(text) for line in texts for text in line)
    margin = 0.08 * longest + 0.4  # for the names and the name of the axis
    width = margin + COLOUR_BAR + len(names) * (0.08 * digits + 0.1)
    return max(4.6, width), max(4.0, margin + 0.25 * len(names))


def calibration_figure(bins: Sequence[JsonObject], error: float, layer: str = "") -> Figure:
    """Draw accuracy with its interval against confidence, as `label_metrics.reliability` returns them.

    The curve has the style of ``layer``, if one is named.
    """
    figure, [[plot]] = new_figure()
    look = model_style(layer)
    plot.plot([0, 1], [0, 1], label="confidence = accuracy", color=SOFT, linestyle="--", linewidth=1.2)
    points = [[each[name] for each in bins] for name in ("confidence", "accuracy")]
    plot.plot(*points, label=f"this model, error {error:.3f}", **look)
    for each in bins:
        plot.plot([each["confidence"]] * 2, [each["low"], each["high"]], color=look["color"], linewidth=1.0)
    plot.set(xlabel="confidence", ylabel="accuracy", ylim=(-0.03, 1.03), xlim=(0, 1))
    plot.legend(loc="lower right")
    return figure
