"""How a model does at a distance: with little context, over known distances, or on inputs of different lengths."""

import math
from collections.abc import Mapping

import numpy as np

from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..data.corpus import Corpus
from ..data.synthetic import SYNTHETIC_TASKS, generate
from ..evaluation.context_use import COMPARED, MIN_BLOCKS, losses_by_block
from ..evaluation.intervals import exp_mean, interval, mean, paired, wilson
from ..evaluation.perplexity import BLOCK, safe_exp
from ..runs.run import Run
from ..tasks.task import TaskData
from .length_buckets import by_length
from .metric import FIGURE_OF_SUMS
from .plan import DataPart
from .results import Distance

ROWS = 200  # items of each distance of a synthetic task
TOKENS, POSITIONS = 20_000, 4_000
"""Tokens of a text that are read, and positions among them that are predicted from shortened contexts."""
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
) -> Distance | None:
    """Measure a figure at several distances, or return None where no distance can be measured.

    By length, the figure is the metric, computed from the statistics of every item.
    """
    name = measured.spec.split(":")[1] if measured.spec.startswith("builtin:") else ""
    if name in SYNTHETIC_TASKS:
        return _at_known_distances(run, name)
    if isinstance(data, Corpus):
        return _with_short_contexts(run, data)
    names = {figure.key: figure.name for figure in run.task.evaluator.metrics}
    return _by_length(data, metric, names.get(metric, metric), statistics)


def known_distances(name: str) -> list[int]:
    """Return the distances of a synthetic task: doubling from its shortest to twice the longest of training."""
    task = SYNTHETIC_TASKS[name]
    known, distance = {task.shortest}, 2 * task.longest
    while distance > task.shortest:
        known.add(distance)
        distance //= 2
    return sorted(known)


def _at_known_distances(run: Run, name: str) -> Distance:
    """Measure the share of right answers at each distance."""
    values, bounds = dict[str, float](), dict[str, tuple[float, float]]()
    for distance in known_distances(name):
        rows = list(generate(name, "test", ROWS, distance=distance))
        truths, texts = zip(*(row[::-1] if name == "reversal" else row for row in rows), strict=True)
        answers = run.predictor.answer(run.model, run.vocabulary, list(texts))
        hits = [answer["text"] == truth for answer, truth in zip(answers, truths, strict=True)]
        values[str(distance)], bounds[str(distance)] = float(np.mean(hits)), wilson(sum(hits), len(hits))
    figure = "exact match" if any(figure.key == "exact_match" for figure in run.task.evaluator.metrics) else "accuracy"
    return Distance("distance", figure, f"{figure} at distance N", UNITS[name], values, ROWS, "inputs", bounds=bounds)


def _with_short_contexts(run: Run, data: Corpus) -> Distance | None:
    """Measure the perplexity where only the last k tokens are seen, and what the context beyond them gains."""
    try:
        sums, places = losses_by_block(
            run.model, data.ids, COMPARED, ends=data.ends, tokens=TOKENS, places=POSITIONS, block=BLOCK
        )
    except InputError:  # there is no text
        return None
    values, bounds = dict[str, float](), dict[str, tuple[float | None, float | None]]()
    for size, items in sums.items():
        value, low, high = interval(items, exp_mean)
        if size is None:
            whole = value
        else:
            values[str(size)], bounds[str(size)] = value, (low, high)
    gains = [] if len(sums[None]) < MIN_BLOCKS else [gain(size, sums[size], sums[None]) for size in COMPARED]
    name = "perplexity when only the last k tokens are seen"
    return Distance(
        "context", "perplexity", name, "tokens", values, places, "places", whole, bounds, [one for one in gains if one]
    )


def gain(size: int, short: np.ndarray, whole: np.ndarray) -> JsonObject | None:
    """Return by which share the context beyond the last ``size`` tokens lowers the perplexity, with its 95 % interval.

    The losses of the same items ``(items, 2)`` with the short and the whole context are paired. None without an
    interval, as where a loss is infinite or the share is.
    """
    result = paired(short, whole, mean)
    if result.low is None or result.high is None:
        return None
    share, low, high = (1 - safe_exp(-nats) for nats in (result.difference, result.low, result.high))
    return {"beyond": size, "share": share, "low": low, "high": high} if math.isfinite(low) else None


def _by_length(data: TaskData, metric: str, of: str, statistics: Mapping[str, np.ndarray]) -> Distance | None:
    """Measure the figure, called ``of``, on inputs of similar lengths, under the largest length of each group."""
    lengths = getattr(getattr(data, "texts", data), "lengths", None)
    if metric not in statistics or lengths is None or len(lengths) != len(statistics[metric]):
        return None
    groups = by_length(np.asarray(lengths))
    if len(groups) < 2:
        return None
    values, bounds = dict[str, float](), dict[str, tuple[float | None, float | None]]()
    for rows in groups:
        value, low, high = interval(statistics[metric][rows], FIGURE_OF_SUMS[metric])
        values[str(int(lengths[rows].max()))], bounds[str(int(lengths[rows].max()))] = value, (low, high)
    name = f"{of} on inputs of similar lengths, by the largest length of each group"
    return Distance("length", of, name, "tokens at most", values, bounds=bounds)
