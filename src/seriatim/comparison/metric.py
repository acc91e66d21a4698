"""The metric that a comparison ranks by, and how two rows are compared by it."""

from collections.abc import Mapping

import numpy as np

from ..core.errors import InputError, nearest
from ..core.json_object import JsonObject
from ..data.vocabulary import Vocabulary
from ..evaluation.displayed_metrics import Metric
from ..evaluation.intervals import Compute, Measure, exp_mean, mean, paired
from ..evaluation.label_metrics import FIGURES as OF_LABELS
from ..evaluation.translation import FIGURES as OF_TRANSLATIONS
from ..tasks.beside_baseline import main_metric
from ..tasks.task import Task

SAME_ORDER = {"word_perplexity": "loss", "bits_per_byte": "loss"}
"""Figures without statistics of their own: they rise and fall with another figure of the same text."""
FIGURE_OF_SUMS: Mapping[str, Compute] = {"loss": mean, "perplexity": exp_mean, **OF_LABELS, **OF_TRANSLATIONS}
"""Figures as functions of the summed statistics of items."""


def choose_metric(task: Task, key: str | None, vocabulary: Vocabulary | None = None) -> Metric:
    """Return the figure that a comparison ranks by; refuse a key that the task does not have.

    Without a key, it is the figure that selects weights, or else the first headline of the task. Some figures depend on
    the labels of the training data, and so on its vocabulary, where that is known.
    """
    if key is None:
        return main_metric(task, vocabulary)
    figures = task.evaluator.metrics if vocabulary is None else task.evaluator.metrics_for(vocabulary)
    known = {figure.key: figure for figure in figures}
    if key not in known:
        raise InputError(f"--metric: {task.config.task} has no {key!r}; {nearest(key, list(known))}")
    return known[key]


def statistics_of(measures: Mapping[str, Measure]) -> dict[str, np.ndarray]:
    """Return the statistics of every item ``(items, k)`` by figure, which a row stores for paired tests."""
    arrays = {
        name: np.asarray(measure.statistics, float) for name, measure in measures.items() if name in FIGURE_OF_SUMS
    }
    if "loss" in arrays:
        arrays.setdefault("perplexity", arrays["loss"])
    return arrays


def difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], key: str) -> JsonObject | None:
    """Return how far the figure ``key`` of one row is above that of another, by the paired bootstrap.

    The rows are given by their statistics, as `statistics_of` returns them. Where the figure has no statistics, the
    test uses the figure in `SAME_ORDER`, which the answer names.

    Returns:
        The fields of `seriatim.evaluation.intervals.Paired` and ``key``; None where the rows cannot be paired.
    """
    name = key if key in first else SAME_ORDER.get(key, key)
    if name not in first or name not in second or first[name].shape != second[name].shape:
        return None
    return {"key": name, **paired(first[name], second[name], FIGURE_OF_SUMS[name])._asdict()}
