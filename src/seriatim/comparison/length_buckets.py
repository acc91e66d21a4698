"""The metric of a comparison on short and long inputs."""

from collections.abc import Mapping

import numpy as np

from ..core.json_object import JsonObject
from ..evaluation.displayed_metrics import Metric
from ..evaluation.intervals import interval
from .item_answers import Arrays, ItemAnswers, has_all
from .loss_buckets import tested_buckets
from .metric import FIGURE_OF_SUMS

MAX_BUCKETS = 6
MIN_INPUTS = 20  # inputs of a bucket


def compare_lengths(
    answers: Mapping[str, ItemAnswers], statistics: Mapping[str, Arrays], metric: Metric
) -> JsonObject | None:
    """Return the metric of each layer on inputs of similar lengths, and tests of the second layer against the first.

    Args:
        answers: of the layers, best first, to the same items.
        statistics: of every item of the data, by layer and figure.
        metric: that of the ranking.

    Returns:
        A result like those of `loss_buckets.compare_buckets`; None where no layer has statistics of the metric, or with
        fewer than two buckets.
    """
    first = next(iter(answers.values()))
    known = [layer for layer in answers if has_all(statistics[layer], metric.key, first.total)]
    parts = by_length(first.lengths)
    if len(parts) < 2 or not known:
        return None
    compute = FIGURE_OF_SUMS[metric.key]
    chosen = {layer: [statistics[layer][metric.key][first.rows[part]] for part in parts] for layer in known}
    shown = list(range(len(parts)))
    ends = [(int(first.lengths[part].min()), int(first.lengths[part].max())) for part in parts]
    return {
        "by": "length",
        "name": "length of the input (tokens)",
        "names": [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in ends],
        "counts": [len(part) for part in parts],
        "counted": "inputs",
        "shown": shown,
        "of": metric.name,
        "values": {layer: [list(interval(each, compute)) for each in values] for layer, values in chosen.items()},
        "tests": tested_buckets(chosen, shown, compute),
    }


def by_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Return the indices of inputs in buckets of increasing lengths ``(items,)``, of nearly equal sizes.

    Inputs of one length are in one bucket, and a bucket has at least `MIN_INPUTS`, if there are as many.
    """
    count = max(1, min(MAX_BUCKETS, len(lengths) // MIN_INPUTS))
    edges = np.unique(np.quantile(lengths, np.arange(1, count) / count, method="lower")) if count > 1 else lengths[:0]
    bucket = np.searchsorted(edges, lengths, side="left")
    parts: list[np.ndarray] = []
    for i in range(len(edges) + 1):
        part = np.flatnonzero(bucket == i)
        if parts and min(len(part), len(parts[-1])) < MIN_INPUTS:
            parts[-1] = np.sort(np.concatenate([parts[-1], part]))
        elif len(part):
            parts.append(part)
    return parts
