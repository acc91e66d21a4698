"""The metric that a comparison ranks by, and how two rows are compared by it."""

from collections.abc import Mapping

import numpy as np

from ..core.errors import InputError, nearest
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Compute, Measure, Metrics, mean, paired
from ..evaluation.label_metrics import FIGURES as OF_LABELS
from ..evaluation.translation import FIGURES as OF_TRANSLATIONS
from ..training.task import AnyTask
from ..training.task_data import Figure

LOWER_IS_BETTER = frozenset(
    ("loss", "perplexity", "word_perplexity", "bits_per_byte", "calibration_error", "word_error_rate")
)
SAME_ORDER = {"word_perplexity": "loss", "bits_per_byte": "loss"}
"""Figures without statistics of their own: they rise and fall with another figure of the same text."""


def _perplexity(sums: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(mean(sums), 700.0)))


FIGURE_OF_SUMS: Mapping[str, Compute] = {"loss": mean, "perplexity": _perplexity, **OF_LABELS, **OF_TRANSLATIONS}
"""Figures as functions of the summed statistics of items."""


def choose_metric(task: AnyTask, key: str | None, vocabulary: Vocabulary | None = None) -> Figure:
    """Return the figure that a comparison ranks by.

    Args:
        task: the task of the comparison.
        key: the key of the figure; None for the one that selects weights, or else the first headline of the task.
        vocabulary: of the training data, where it is known: some figures depend on the labels.

    Raises:
        InputError: the task has no such figure.
    """
    figures = task.figures if vocabulary is None else task.figures_for(vocabulary)
    known = {figure.key: figure for figure in figures}
    if key is None:
        headlines = [figure for figure in known.values() if figure.headline]
        selects = task.selects if vocabulary is None else task.selection_metric(vocabulary)
        return next((figure for figure in headlines if figure.key == selects), headlines[0])
    if key not in known:
        raise InputError(f"--metric: {task.config.task} has no {key!r}; {nearest(key, list(known))}")
    return known[key]


def higher_is_better(key: str) -> bool:
    """Return whether a higher value of a figure is the better one."""
    return key not in LOWER_IS_BETTER


def statistics_of(measures: Mapping[str, Measure]) -> dict[str, np.ndarray]:
    """Return the statistics of every item ``(items, k)`` by figure, which a row stores for paired tests."""
    arrays = {
        name: np.asarray(measure.statistics, float) for name, measure in measures.items() if name in FIGURE_OF_SUMS
    }
    if "loss" in arrays:
        arrays.setdefault("perplexity", arrays["loss"])
    return arrays


def difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], key: str) -> Metrics | None:
    """Return how far the figure of one row is above that of another, by the paired bootstrap.

    Args:
        first: statistics of one row, as `statistics_of` returns them.
        second: statistics of the other row.
        key: the figure. Where it has no statistics, the test uses the figure in `SAME_ORDER`, which the answer names.

    Returns:
        The fields of `seriatim.evaluation.intervals.Paired` and ``key``; None where the rows cannot be paired.
    """
    name = key if key in first else SAME_ORDER.get(key, key)
    if name not in first or name not in second or first[name].shape != second[name].shape:
        return None
    return {"key": name, **paired(first[name], second[name], FIGURE_OF_SUMS[name])._asdict()}
