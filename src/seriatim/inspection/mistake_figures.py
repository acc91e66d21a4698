"""Figures of errors: the confusion matrix and the calibration of confidence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluation.intervals import Metrics
from ..evaluation.label_metrics import BINS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = 20
"""Labels that a matrix shows; of more those that are mistaken most."""
NUMBERED = 12
"""Labels up to which the cells of a matrix hold their counts."""


def most_confused(confusion: np.ndarray, *, most: int = LABELS) -> np.ndarray:
    """The labels of a matrix ``(labels, labels)`` with most mistakes, as truth or as answer, in their own order."""
    wrong = confusion.sum(0) + confusion.sum(1) - 2 * confusion.diagonal()
    return np.sort(np.argsort(-wrong, kind="stable")[:most])


def confusion_figure(confusion: np.ndarray, labels: Sequence[str]) -> "Figure":
    """What is taken for what: a row for each true label, whose cells are shares of it; of many the most confused.

    Args:
        confusion: counts, a row for each true label and a column for each that was found ``(labels, labels)``.
        labels: their names.
    """
    from ..report.theme import HEAT, ON_DARK, ON_LIGHT, new_figure, plain

    chosen = most_confused(confusion)
    counts = confusion[np.ix_(chosen, chosen)]
    names = [plain(labels[label]) for label in chosen.tolist()]
    shares = counts / np.maximum(confusion.sum(1)[chosen], 1)[:, None]
    large = len(names) > NUMBERED
    figure, axes = new_figure(width=6.4 if large else 4.6, height=5.4 if large else 4.0)
    plot: Any = axes[0, 0]
    image = plot.imshow(shares, cmap=HEAT, vmin=0, vmax=1)
    plot.grid(visible=False)
    plot.set_xticks(range(len(names)), names, rotation=90)
    plot.set_yticks(range(len(names)), names)
    plot.set(xlabel="predicted", ylabel="true")
    figure.colorbar(image, ax=plot, label="share of the true label", fraction=0.046)
    if not large:
        for (row, column), count in np.ndenumerate(counts):
            colour = ON_LIGHT if shares[row, column] > 0.5 else ON_DARK
            plot.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=9)
    return figure


def calibration_figure(bins: Sequence[Metrics], error: float) -> "Figure":
    """A reliability diagram: accuracy against confidence, and below it how many predictions are of each confidence.

    On the diagonal confidence is worth what it says; below it the model is too sure of itself.

    Args:
        bins: of `seriatim.evaluation.label_metrics.calibration`.
        error: the expected calibration error.
    """
    from ..report.theme import COLOURS, new_figure, style

    figure, axes = new_figure(2, 1, height=4.2, sharex=True)
    above, below = axes[:, 0]
    filled = [one for one in bins if one["count"]]
    above.plot([0, 1], [0, 1], label="confidence = accuracy", **{**style(1), "marker": ""})
    found = [[one[name] for one in filled] for name in ("confidence", "accuracy")]
    above.plot(*found, label=f"this model, error {error:.3f}", **style(0))
    above.set(ylabel="accuracy", ylim=(-0.03, 1.03), xlim=(0, 1))
    above.legend(loc="lower right")
    edges = (np.arange(BINS) + 0.5) / BINS
    below.bar(edges, [one["count"] for one in bins], width=0.9 / BINS, color=COLOURS[0])
    below.set(xlabel="confidence", ylabel="predictions")
    return figure
