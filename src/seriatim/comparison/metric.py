"""The figures that layers are ranked by: which way is better, and what sums over items make of them."""

from collections.abc import Mapping

import numpy as np

from ..core.errors import InputError, nearest
from ..evaluation.intervals import Compute, Measure, Metrics, Paired, mean, paired
from ..evaluation.label_metrics import FIGURES as LABELLED
from ..evaluation.translation import FIGURES as WRITTEN
from ..training.task import AnyTask, Figure

LESS_IS_BETTER = frozenset(
    ("loss", "perplexity", "word_perplexity", "bits_per_byte", "calibration_error", "word_error_rate")
)
"""Compute the figures of all tasks; of the others more is."""
OF_CHUNKS = ("f1", "precision", "recall")
RANKED_ALIKE = {"word_perplexity": "loss", "bits_per_byte": "loss"}
"""Figures of a text that grow with another one of the same text, whose items are at hand."""


def _perplexity(sums: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(mean(sums), 700.0)))


OF: Mapping[str, Compute] = {"loss": mean, "perplexity": _perplexity, **LABELLED, **WRITTEN}
"""What each figure makes of the sums of its statistics."""


def choose_metric(task: AnyTask, wanted: str | None, *, selects: str | None = None) -> Figure:
    """The figure that a comparison ranks by: the one named, or what chooses weights, or the task's first headline.

    Args:
        task: one of those compared.
        wanted: the key of a figure; None for the usual one.
        selects: what chooses weights, where only the model says that: of a tagger, whose tags may mark no chunks.

    Raises:
        InputError: the task has no such figure.
    """
    chunks = selects is None or selects == "f1" or not any(figure.key == "f1" for figure in task.figures)
    known = {figure.key: figure for figure in task.figures if chunks or figure.key not in OF_CHUNKS}
    if wanted is None:
        headlines = [figure for figure in known.values() if figure.headline]
        return next((figure for figure in headlines if figure.key == (selects or task.selects)), headlines[0])
    if wanted not in known:
        raise InputError(f"--metric: {task.config.task} has no {wanted!r}; {nearest(wanted, list(known))}")
    return known[wanted]


def more_is_better(key: str) -> bool:
    """Compute a figure."""
    return key not in LESS_IS_BETTER


def statistics_of(measures: Mapping[str, Measure]) -> dict[str, np.ndarray]:
    """What a row keeps of every measure, so that others can be paired with it ``(items, k)``."""
    found = {name: np.asarray(measure.statistics, float) for name, measure in measures.items() if name in OF}
    if "loss" in found:
        found.setdefault("perplexity", found["loss"])
    return found


def difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], key: str) -> Metrics | None:
    """How far one row's figure is above another's, by the paired bootstrap; None where nothing says so.

    Args:
        first: statistics of one row.
        second: those of the other.
        key: of the figure; where it has no statistics, the one that it grows with is taken, and named in the answer.
    """
    name = key if key in first else RANKED_ALIKE.get(key, key)
    if name not in first or name not in second or first[name].shape != second[name].shape:
        return None
    found: Paired = paired(first[name], second[name], OF[name])
    return {"key": name, **found._asdict()}
