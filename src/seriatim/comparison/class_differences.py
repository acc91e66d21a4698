"""F1 of each class under every layer, which classes differ from the best layer, and what is confused."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..core.json_object import JsonObject
from ..data.tag_sets import marks_chunks
from ..evaluation.class_counts import ClassCounts, count_chunks, count_labels, exchange_test, f1, holm
from ..evaluation.error_analysis import MAX_CONFUSIONS
from ..evaluation.intervals import SIGNIFICANT, Measure, with_intervals
from ..evaluation.label_metrics import TYPELESS
from ..inspection.mistakes import MAX_LABELS
from .item_answers import ItemAnswers

MAX_SHOWN = 30  # classes of the table
MAX_DIFFERING = 15  # classes that are shown because they differ, where not all are shown
MAX_TESTS = 400  # tests that are adjusted together: more would leave none significant
MIN_SUPPORT = 5  # true items of a class that is tested


def compare_classes(answers: Mapping[str, ItemAnswers], *, tags: bool) -> JsonObject:
    """Return F1 of each class, with tests of every layer against the first one, which is the best.

    Args:
        answers: of the layers, best first, to the same items.
        tags: whether labels are tags of words; if they mark chunks, the classes are the types of the chunks.

    Returns:
        The number of ``differing`` classes by layer, and at most `MAX_SHOWN` ``rows`` of all ``classes``, those with
        the most true items first. A row has the ``name``, the ``support``, and by layer ``f1`` (value, low, high) and
        ``p_values``, which are adjusted for all ``tests``.
    """
    chunks = tags and _mark_chunks(next(iter(answers.values())))
    counts = {layer: class_counts(each, chunks=chunks) for layer, each in answers.items()}
    best, *others = counts
    totals = counts[best].totals()
    support, names = totals[:, 2], counts[best].classes
    by_support = np.argsort(-support, kind="stable").tolist()
    tested = [i for i in by_support if support[i] >= MIN_SUPPORT][: MAX_TESTS // max(1, len(others))]
    pairs = [(i, other) for i in tested for other in others]
    results = [exchange_test(counts[best].of_class(i), counts[other].of_class(i)) for i, other in pairs]
    p_values = dict(zip(pairs, holm(results), strict=True))
    lowest = {i: min(p_values[i, other] for other in others) for i in tested} if others else {}
    values = {layer: f1(each.totals()) for layer, each in counts.items()}
    gaps = np.max([np.abs(values[other] - values[best]) for other in counts], axis=0)
    shown = choose_shown(by_support, [i for i in tested if lowest.get(i, 1.0) <= SIGNIFICANT], gaps)
    figures = {layer: _with_intervals(each, shown) for layer, each in counts.items()}
    first = next(iter(answers.values()))
    return {
        "unit": "chunks" if chunks else first.unit,
        "measured": len(first.rows),
        "total": first.total,
        "best": best,
        "classes": len(names),
        "tested_classes": len(tested) if others else 0,
        "tests": len(pairs),
        "differing": {
            other: sum(p <= SIGNIFICANT for (_, layer), p in p_values.items() if layer == other) for other in others
        },
        "rows": [
            {
                "name": (names[i] or TYPELESS) if chunks else names[i],
                "support": int(support[i]),
                "f1": {layer: figures[layer][i] for layer in counts},
                "p_values": {other: p_values[i, other] for other in others if (i, other) in p_values},
            }
            for i in shown
        ],
    }


def choose_shown(by_support: Sequence[int], differing: Sequence[int], gaps: np.ndarray) -> list[int]:
    """Return the classes to show, in the order of ``by_support``: all, or those that differ most and the most frequent.

    ``differing`` are the classes that differ significantly, and ``gaps`` the differences of all classes ``(classes,)``.
    """
    if len(by_support) <= MAX_SHOWN:
        return list(by_support)
    clearest = sorted(differing, key=lambda i: -gaps[i])[:MAX_DIFFERING]
    frequent = [i for i in by_support if i not in clearest][: MAX_SHOWN - len(clearest)]
    chosen = {*clearest, *frequent}
    return [i for i in by_support if i in chosen]


def class_counts(answers: ItemAnswers, *, chunks: bool) -> ClassCounts:
    """Return the counts by item and class: of labels, or of the types of chunks."""
    truth, predicted = answers.labels()
    if not chunks:
        return count_labels(truth, predicted, answers.names)
    kinds = sorted({name.partition("-")[2] for name in answers.names if name != "O"})
    return count_chunks(truth, predicted, kinds)


def confusions(answers: Mapping[str, ItemAnswers]) -> dict[str, JsonObject]:
    """Return by layer the ``matrix`` of the ``labels`` (true, predicted), or with many labels the usual ``pairs``."""
    result: dict[str, JsonObject] = {}
    for layer, each in answers.items():
        counts = Counter(zip(each.truth.tolist(), each.predicted.tolist(), strict=True))
        wrong = Counter({pair: count for pair, count in counts.items() if pair[0] != pair[1]})
        used = sorted({label for pair in counts for label in pair})
        if len(used) <= MAX_LABELS:
            matrix = [[counts[true, label] for label in used] for true in used]
            result[layer] = {"labels": [each.names[label] for label in used], "matrix": matrix}
        else:
            frequent = wrong.most_common(MAX_CONFUSIONS)
            result[layer] = {"pairs": [[each.names[a], each.names[b], count] for (a, b), count in frequent]}
        result[layer] |= {"wrong": sum(wrong.values()), "total": len(each.truth)}
    return result


def _mark_chunks(answers: ItemAnswers) -> bool:
    return marks_chunks(answers.names[label] for label in answers.truth.tolist())


def _with_intervals(counts: ClassCounts, classes: Sequence[int]) -> dict[int, list[float | None]]:
    """Return F1 and its 95 % interval of some classes, which are resampled together."""
    figures = with_intervals({str(i): Measure(counts.of_class(i), f1) for i in classes})
    return {i: [figures[f"{i}{end}"] for end in ("", "_low", "_high")] for i in classes}
