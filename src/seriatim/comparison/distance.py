"""How far back a model reaches, by its figures: on tasks of a known distance, on cut contexts, or on longer inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..data.corpus import Corpus
from ..data.synthetic import TASKS, generate
from ..evaluation.intervals import Metrics
from ..inspection.memory import by_context
from ..runs.run import Run
from ..tasks.seq2seq import SequenceToSequence
from .metric import OF

ROWS = 200
"""Items of each distance of a synthetic task."""
CONTEXTS = (1, 4, 16, 64, 256)
TOKENS, POSITIONS = 8_000, 200
"""Of a text what is looked at, and how many places of that are predicted from contexts that are cut."""
QUARTILES = 4


def distances(
    run: Run, data: Any, measured: tuple[str, str], metric: str, statistics: Mapping[str, np.ndarray]
) -> Metrics | None:
    """A figure at several distances: which ``kind``, ``of`` what, ``name``, ``unit`` and ``values``; None where none.

    Args:
        run: a trained model.
        data: what it was measured on, as its task reads it.
        measured: the name of that, and which part of it.
        metric: what the comparison ranks by.
        statistics: of every item measured.
    """
    name = measured[0].split(":")[1] if measured[0].startswith("builtin:") else ""
    if name in TASKS:
        return _of_known_distance(run, name)
    if isinstance(data, Corpus):
        return _of_cut_contexts(run, data)
    return _of_lengths(data, metric, statistics)


def known_distances(name: str) -> list[int]:
    """Distances of a synthetic task: from its shortest, doubling, over the longest of training to twice that."""
    task = TASKS[name]
    found, distance = {task.shortest}, 2 * task.longest
    while distance > task.shortest:
        found.add(distance)
        distance //= 2
    return sorted(found)


def _of_known_distance(run: Run, name: str) -> Metrics:
    """The share of right answers at each distance."""
    values = {}
    for distance in known_distances(name):
        rows = list(generate(name, "test", ROWS, distance=distance))
        truth, texts = zip(*(row if name != "reversal" else row[::-1] for row in rows), strict=True)
        answers = run.task.answer(run.model, run.vocabulary, list(texts))
        values[str(distance)] = float(
            np.mean([answer["text"] == right for answer, right in zip(answers, truth, strict=True)])
        )
    what = "exact match" if isinstance(run.task, SequenceToSequence) else "accuracy"
    units = {
        "reversal": "letters of the word",
        "agreement": "words between",
        "copy": "letters between",
        "adding": "digits",
        "recall": "pairs",
    }
    return {
        "kind": "distance",
        "of": what,
        "name": f"{what} at distance N",
        "unit": units[name],
        "values": values,
        "count": ROWS,
        "items": "inputs",
    }


def _of_cut_contexts(run: Run, data: Corpus) -> Metrics | None:
    """How often the likeliest token is right where only the last k tokens are seen."""
    ids, ends = data.ids[:TOKENS], data.ends
    if ends is not None:
        ends = ends[ends <= len(ids)]
        ids = ids[: ends[-1]] if len(ends) else ids[:0]
    if len(ids) < 2:
        return None
    first = min(CONTEXTS[-1], len(ids) // 2) if ends is None else 0
    places = np.linspace(first, len(ids) - 1, min(POSITIONS, len(ids) - first)).round().astype(np.int64)
    found = by_context(run.model, ids, CONTEXTS, positions=places, ends=ends)
    return {
        "kind": "context",
        "of": "accuracy",
        "name": "accuracy when only the last k tokens are seen",
        "unit": "tokens",
        "values": {str(size): float(seen.accuracy) for size, seen in found.items() if size is not None},
        "count": len(places),
        "items": "places",
    }


def _of_lengths(data: Any, metric: str, statistics: Mapping[str, np.ndarray]) -> Metrics | None:
    """The figure over the shortest quarter of the inputs, the next, and so on, under the longest length of each."""
    side = getattr(data, "source", data)
    lengths = getattr(side, "lengths", None)
    if metric not in statistics or lengths is None or len(lengths) != len(statistics[metric]):
        return None
    order = np.argsort(lengths, kind="stable")
    values = {}
    for rows in np.array_split(order, QUARTILES):
        if len(rows):
            values[str(int(lengths[rows].max()))] = float(OF[metric](statistics[metric][rows].sum(0)))
    return {
        "kind": "length",
        "of": metric,
        "name": f"{metric} by length, in quarters of the inputs",
        "unit": "tokens at most",
        "values": values,
        "count": len(order) // QUARTILES,
        "items": "inputs",
    }
