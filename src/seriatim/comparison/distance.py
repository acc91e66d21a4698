"""How far back a model makes use of a text: at known distances, with shortened contexts, or on longer inputs."""

from collections.abc import Mapping

import numpy as np

from ..data.corpus import Corpus
from ..data.synthetic import TASKS, generate
from ..evaluation.context_use import by_context
from ..evaluation.intervals import Metrics
from ..runs.run import Run
from ..training.task_data import TaskData
from .metric import FIGURE_OF_SUMS
from .plan import DataPart

ROWS = 200
"""Items of each distance of a synthetic task."""
CONTEXTS = (1, 4, 16, 64, 256)
TOKENS, POSITIONS = 8_000, 200
"""Tokens of a text that are read, and positions among them that are predicted from shortened contexts."""
QUARTILES = 4
UNITS = {
    "reversal": "letters of the word",
    "agreement": "words between",
    "copy": "letters between",
    "adding": "digits",
    "recall": "pairs",
}
"""The unit of the distance of each synthetic task."""


def distances(
    run: Run, data: TaskData, measured: DataPart, metric: str, statistics: Mapping[str, np.ndarray]
) -> Metrics | None:
    """Measure a figure at several distances.

    Args:
        run: a trained model.
        data: the data that it is measured on, as its task reads them.
        measured: the name of the data.
        metric: the figure that the comparison ranks by.
        statistics: of every item measured, by figure.

    Returns:
        ``kind`` (``distance``, ``context`` or ``length``), ``of`` (the figure), ``name``, ``unit``, ``values`` by
        distance, ``count`` and ``items`` of each distance; None where no distance can be measured.
    """
    name = measured.spec.split(":")[1] if measured.spec.startswith("builtin:") else ""
    if name in TASKS:
        return _at_known_distances(run, name)
    if isinstance(data, Corpus):
        return _with_short_contexts(run, data)
    return _by_length(data, metric, statistics)


def known_distances(name: str) -> list[int]:
    """Return the distances of a synthetic task: doubling from its shortest to twice the longest of training."""
    task = TASKS[name]
    known, distance = {task.shortest}, 2 * task.longest
    while distance > task.shortest:
        known.add(distance)
        distance //= 2
    return sorted(known)


def _at_known_distances(run: Run, name: str) -> Metrics:
    """Measure the share of right answers at each distance."""
    values = {}
    for distance in known_distances(name):
        rows = list(generate(name, "test", ROWS, distance=distance))
        truths, texts = zip(*(row[::-1] if name == "reversal" else row for row in rows), strict=True)
        answers = run.task.answer(run.model, run.vocabulary, list(texts))
        hits = [answer["text"] == truth for answer, truth in zip(answers, truths, strict=True)]
        values[str(distance)] = float(np.mean(hits))
    keys = [figure.key for figure in run.task.figures]
    figure = "exact match" if "exact_match" in keys else "accuracy"
    described = {"kind": "distance", "of": figure, "name": f"{figure} at distance N", "unit": UNITS[name]}
    return {**described, "values": values, "count": ROWS, "items": "inputs"}


def _with_short_contexts(run: Run, data: Corpus) -> Metrics | None:
    """Measure how often the likeliest token is right where only the last k tokens are seen."""
    ids, ends = data.ids[:TOKENS], data.ends
    if ends is not None:
        ends = ends[ends <= len(ids)]
        ids = ids[: ends[-1]] if len(ends) else ids[:0]
    if len(ids) < 2:
        return None
    first = min(CONTEXTS[-1], len(ids) // 2) if ends is None else 0
    positions = np.linspace(first, len(ids) - 1, min(POSITIONS, len(ids) - first)).round().astype(np.int64)
    seen = by_context(run.model, ids, CONTEXTS, positions=positions, ends=ends)
    values = {str(size): result.accuracy for size, result in seen.items() if size is not None}
    name = "accuracy when only the last k tokens are seen"
    described = {"kind": "context", "of": "accuracy", "name": name, "unit": "tokens"}
    return {**described, "values": values, "count": len(positions), "items": "places"}


def _by_length(data: TaskData, metric: str, statistics: Mapping[str, np.ndarray]) -> Metrics | None:
    """Measure the figure over each quarter of the inputs by length, under the largest length of the quarter."""
    lengths = getattr(getattr(data, "source", data), "lengths", None)
    if metric not in statistics or lengths is None or len(lengths) != len(statistics[metric]):
        return None
    order = np.argsort(lengths, kind="stable")
    values = {
        str(int(lengths[rows].max())): float(FIGURE_OF_SUMS[metric](statistics[metric][rows].sum(0)))
        for rows in np.array_split(order, QUARTILES)
        if len(rows)
    }
    name = f"{metric} by length, in quarters of the inputs"
    described = {"kind": "length", "of": metric, "name": name, "unit": "tokens at most"}
    return {**described, "values": values, "count": len(order) // QUARTILES, "items": "inputs"}
