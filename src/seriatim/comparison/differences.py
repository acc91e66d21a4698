"""Where the models of a comparison differ: by class, by token, and the texts on which two of them disagree most."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ..core.json_object import JsonObject
from ..data.tag_sets import marks_chunks
from ..evaluation.error_analysis import MAX_CONFUSIONS
from ..evaluation.intervals import SIGNIFICANT, Compute, Measure, Metric, interval, mean, paired, wilson, with_intervals
from ..evaluation.label_metrics import TYPELESS, ClassCounts, count_chunks, count_labels, exchange_test, f1, holm
from ..evaluation.token_scores import UNKNOWN, TokenLosses
from ..inspection.mistakes import MAX_LABELS
from ..storage.weights import load_tensors
from .item_answers import Arrays, ItemAnswers, has_all, read_arrays, read_tokens, with_equal_names
from .plan import FIGURE_OF_SUMS
from .results import MAX_DRAWN, TrainingRow

# F1 of each class under every layer, which classes differ from the best layer, and what is confused.


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
    first = next(iter(answers.values()))
    chunks = tags and marks_chunks(first.names[label] for label in first.truth.tolist())
    counts = {layer: class_counts(each, chunks=chunks) for layer, each in answers.items()}
    best, *others = counts
    totals = counts[best].totals()
    support, names = totals[:, 2], counts[best].classes

    # Many tests leave none significant once they are adjusted, so that only the most frequent classes are tested.
    by_support = np.argsort(-support, kind="stable").tolist()
    tested = [i for i in by_support if support[i] >= MIN_SUPPORT][: MAX_TESTS // max(1, len(others))]
    pairs = [(i, other) for i in tested for other in others]
    results = [exchange_test(counts[best].of_class(i), counts[other].of_class(i)) for i, other in pairs]
    p_values = dict(zip(pairs, holm(results), strict=True))

    # The classes that are shown are those that differ most and the most frequent ones.
    lowest = {i: min(p_values[i, other] for other in others) for i in tested} if others else {}
    values = {layer: f1(each.totals()) for layer, each in counts.items()}
    gaps = np.max([np.abs(values[other] - values[best]) for other in counts], axis=0)
    shown = choose_shown(by_support, [i for i in tested if lowest.get(i, 1.0) <= SIGNIFICANT], gaps)
    figures = {layer: _with_intervals(each, shown) for layer, each in counts.items()}
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


def _with_intervals(counts: ClassCounts, classes: Sequence[int]) -> dict[int, list[float | None]]:
    """Return F1 and its 95 % interval of some classes, which are resampled together."""
    figures = with_intervals({str(i): Measure(counts.of_class(i), f1) for i in classes})
    return {i: [figures[f"{i}{end}"] for end in ("", "_low", "_high")] for i in classes}


# The loss of language models by the position of a token in its line, and by its frequency in the training text.


POSITIONS = (1, 4, 16, 64, 256, 1024, 4096)
FREQUENCIES = (UNKNOWN, 0, 1, 10, 100, 1000)
"""The largest value of each bucket but the last."""
UNKNOWN_NAME = "unknown"
MIN_BLOCKS = 10  # lines or blocks with a token of a bucket that is shown


class LossBuckets(NamedTuple):
    """Tokens in buckets: a key, what they are sorted by, the names of the buckets, and the bucket of each token."""

    key: str
    name: str
    names: Sequence[str]
    bucket: np.ndarray


def buckets_of(losses: TokenLosses) -> list[LossBuckets]:
    """Return the tokens of a text sorted by position in the line, and by frequency in the training text."""
    named = [UNKNOWN_NAME, "never", "1", *_spans(FREQUENCIES[2:])]
    return [
        LossBuckets(
            "position", "place in the line", ["1", *_spans(POSITIONS)], _sorted_into(losses.positions, POSITIONS)
        ),
        LossBuckets(
            "frequency", "occurrences in the training text", named, _sorted_into(losses.frequencies, FREQUENCIES)
        ),
    ]


def compare_buckets(losses: Mapping[str, TokenLosses]) -> list[JsonObject]:
    """Return the loss of each layer in each bucket, and tests of the second layer against the first one.

    The layers are given best first, with losses of the same tokens. Intervals and tests resample lines, or blocks of a
    running text; the p-values are adjusted for the buckets of one figure that have at least `MIN_BLOCKS` of them.
    """
    first = next(iter(losses.values()))
    results = []

    # A bucket with few blocks has no interval to rely on: it is counted, but neither shown nor tested.
    for buckets in buckets_of(first):
        sums = {layer: block_sums(each, buckets) for layer, each in losses.items()}
        counts = next(iter(sums.values()))[..., 1]
        blocks = (counts > 0).sum(0)
        shown = [i for i in range(len(buckets.names)) if blocks[i] >= MIN_BLOCKS]
        results.append(
            {
                "by": buckets.key,
                "name": buckets.name,
                "names": buckets.names,
                "counts": counts.sum(0).astype(int).tolist(),
                "shown": shown,
                "of": "loss (nats per token)",
                "counted": "tokens",
                "values": {layer: _losses(each) for layer, each in sums.items()},
                "tests": tested_buckets(
                    {layer: list(np.moveaxis(each, 1, 0)) for layer, each in sums.items()}, shown, mean
                ),
            }
        )
    return results


def block_sums(losses: TokenLosses, buckets: LossBuckets) -> np.ndarray:
    """Return the summed loss and the number of tokens of each block and bucket ``(blocks, buckets, 2)``."""
    blocks, size = losses.piece_blocks[losses.pieces], len(buckets.names)
    cells, shape = blocks * size + buckets.bucket, (int(losses.piece_blocks.max()) + 1, size)
    sums = [np.bincount(cells, weights, shape[0] * size).reshape(shape) for weights in (losses.nats, None)]
    return np.stack(sums, axis=2)


def _losses(sums: np.ndarray) -> list[list[float | None]]:
    """Return the mean loss in nats and its interval for each bucket; None without tokens, or if it is infinite."""
    finite = {
        i: Measure(sums[:, i], mean)
        for i in range(sums.shape[1])
        if sums[:, i, 1].any() and np.isfinite(sums[:, i, 0]).all()
    }
    figures = with_intervals({str(i): measure for i, measure in finite.items()}) if finite else {}
    return [[figures.get(f"{i}{end}") for end in ("", "_low", "_high")] for i in range(sums.shape[1])]


def tested_buckets(
    statistics: Mapping[str, Sequence[np.ndarray]], shown: Sequence[int], compute: Compute
) -> JsonObject | None:
    """Return how far a figure of the second layer is above that of the first one in each of the ``shown`` buckets.

    ``statistics`` are those of the items of each bucket ``(items, k)`` by layer, best first. The p-values are adjusted
    for the number of buckets. None with fewer than two layers.
    """
    if len(statistics) < 2 or not shown:
        return None
    (first, one), (second, other) = list(statistics.items())[:2]
    finite = [i for i in shown if np.isfinite(one[i]).all() and np.isfinite(other[i]).all()]
    results = {i: paired(other[i], one[i], compute) for i in finite}
    adjusted = holm([1.0 if result.p_value is None else result.p_value for result in results.values()])
    return {
        "first": first,
        "second": second,
        "results": [
            {"bucket": i, **result._asdict(), "p_value": p}
            for (i, result), p in zip(results.items(), adjusted, strict=True)
        ],
    }


def _sorted_into(values: np.ndarray, largest: Sequence[int]) -> np.ndarray:
    return np.searchsorted(np.array(largest), values, side="left")


def _spans(largest: Sequence[int]) -> list[str]:
    """Return the names of the buckets after the first one: ``2–4``, ``5–16`` and so on, with an open end."""
    spans = [f"{low + 1:,}–{high:,}" for low, high in itertools.pairwise(largest)]
    return [*spans, f"over {largest[-1]:,}"]


# The metric of a comparison on short and long inputs.


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
        A result like those of `compare_buckets`; None where no layer has statistics of the metric, or with
        fewer than two buckets.
    """
    first = next(iter(answers.values()))
    known = [layer for layer in answers if has_all(statistics[layer], metric.key, first.total)]
    buckets = by_length(first.lengths)
    if len(buckets) < 2 or not known:
        return None
    compute = FIGURE_OF_SUMS[metric.key]

    # The first layer's items stand for those of all, since only rows with the same items are compared.
    chosen = {layer: [statistics[layer][metric.key][first.rows[rows]] for rows in buckets] for layer in known}
    shown = list(range(len(buckets)))
    ends = [(int(first.lengths[rows].min()), int(first.lengths[rows].max())) for rows in buckets]
    return {
        "by": "length",
        "name": "length of the input (tokens)",
        "names": [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in ends],
        "counts": [len(rows) for rows in buckets],
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
    buckets: list[np.ndarray] = []
    for i in range(len(edges) + 1):
        rows = np.flatnonzero(bucket == i)
        if buckets and min(len(rows), len(buckets[-1])) < MIN_INPUTS:
            buckets[-1] = np.sort(np.concatenate([buckets[-1], rows]))
        elif len(rows):
            buckets.append(rows)
    return buckets


# The held-out texts on which two models differ most, in both directions.


SHOWN = 6  # texts of each direction
LOSS = "loss"
NOT_OF_ITEMS = ("bleu",)
"""Figures that say little of a single text: BLEU of an exact answer is 0 if it has fewer than 4 words."""
LOSS_OF_ITEMS = Metric(LOSS, "loss", 2)


def most_different(
    first: np.ndarray, second: np.ndarray, texts: Sequence[Hashable], count: int = SHOWN
) -> tuple[list[int], list[int]]:
    """Return the items on which the first model is better by most, and those on which the second one is.

    ``first`` and ``second`` are a figure of each item, of which less is better and which may be infinite ``(items,)``;
    ``count`` is the largest number of items of each direction, whose ``texts`` are different.
    """
    gain = np.subtract(second, first, out=np.zeros(len(first)), where=first != second)  # two infinite figures are equal

    def largest(gain: np.ndarray) -> list[int]:
        chosen = dict[Hashable, int]()
        for i in np.argsort(-gain, kind="stable").tolist():
            if len(chosen) == count or not gain[i] > 0:
                break
            chosen.setdefault(texts[i], i)
        return list(chosen.values())

    return largest(gain), largest(-gain)


def compare_answers(
    answers: Mapping[str, ItemAnswers], statistics: Mapping[str, Arrays], figures: Sequence[Metric]
) -> JsonObject:
    """Compare two models by their answers; the layers are given best first, with the statistics of every item.

    The figure of single items is the loss, or the first of the ``figures`` of the task that has more than two values.

    Returns:
        ``first`` and ``second``, the figure ``of`` single items, which of them has the better figure how often, and the
        items; empty where the rows have no figure in common.
    """
    (first, one), (second, other) = list(answers.items())[:2]
    rows = np.array([text["row"] for text in one.texts], np.int64)
    of_items = {
        figure: [_of_items(statistics[layer][figure.key][rows], figure.key) for layer in (first, second)]
        for figure in (LOSS_OF_ITEMS, *figures)
        if figure.key not in NOT_OF_ITEMS
        and all(has_all(statistics[layer], figure.key, one.total) for layer in (first, second))
    }
    if not of_items:
        return {}

    # A figure with more than two values tells more about a single text than right or wrong.
    graded = (figure for figure, values in of_items.items() if len(np.unique(values)) > 2)
    chosen = next(graded, next(iter(of_items)))
    values, sign = of_items[chosen], -1 if chosen.more_is_better else 1
    for_first, for_second = most_different(sign * values[0], sign * values[1], [text["text"] for text in one.texts])

    def shown(i: int) -> JsonObject:
        text = {name: one.texts[i][name] for name in ("text", "truth")}
        given, right = ([each.texts[i][name] for each in (one, other)] for name in ("answer", "right"))
        return {**text, "answers": given, "right": right, "figures": [float(each[i]) for each in values]}

    better, worse = (int((sign * values[b] > sign * values[a]).sum()) for a, b in ((0, 1), (1, 0)))
    return {
        "kind": "answers",
        "first": first,
        "second": second,
        "of": chosen.key,
        "items": len(rows),
        "better": _fraction(better, len(rows)),
        "worse": _fraction(worse, len(rows)),
        "for_first": [shown(i) for i in for_first],
        "for_second": [shown(i) for i in for_second],
    }


def compare_texts(losses: Mapping[str, TokenLosses]) -> JsonObject:
    """Compare two language models by the losses of pieces of text; the layers are given best first.

    The fraction of pieces that one model predicts better has an interval over lines, or blocks of a running text.
    """
    (first, one), (second, other) = list(losses.items())[:2]

    # Equal pieces of text are shown once, however often they occur.
    figures = one.piece_losses(), other.piece_losses()
    starts = np.concatenate([[0], one.piece_ends[:-1]]).astype(int)
    texts = [one.ids[start:end].tobytes() for start, end in zip(starts.tolist(), one.piece_ends.tolist(), strict=True)]
    for_first, for_second = most_different(*figures, texts)

    def shown(i: int) -> JsonObject:
        span = range(int(starts[i]), int(one.piece_ends[i]))
        names = [_name(one, index) for index in span]
        bits = [[round(float(each.nats[index]) / math.log(2), 2) for index in span] for each in (one, other)]
        return {"tokens": names, "bits": bits, "figures": [float(each[i]) for each in figures]}

    return {
        "kind": "tokens",
        "first": first,
        "second": second,
        "of": LOSS,
        "items": len(texts),
        "outcomes": len(one.names),
        "spelled": bool(one.spelled),
        "better": _fraction_of_blocks(figures[0] < figures[1], one.piece_blocks),
        "worse": _fraction_of_blocks(figures[1] < figures[0], one.piece_blocks),
        "for_first": [shown(i) for i in for_first],
        "for_second": [shown(i) for i in for_second],
    }


def _name(losses: TokenLosses, index: int) -> str:
    """Return the text of a token; a word that is read as the unknown token is in brackets."""
    word = losses.spelled.get(index)
    return losses.names[int(losses.ids[index])] if word is None else f"[{word}] "


def _fraction(count: int, total: int) -> list[float]:
    return [count / total, *wilson(count, total)]


def _fraction_of_blocks(hits: np.ndarray, blocks: np.ndarray) -> list[float | None]:
    sums = np.stack([np.bincount(blocks, hits), np.bincount(blocks)], axis=1)
    return list(interval(sums[sums[:, 1] > 0], mean))


def _of_items(statistics: np.ndarray, key: str) -> np.ndarray:
    """Return the figure of each item ``(items,)``: the whole loss in nats, or the metric of the item alone."""
    return statistics[:, 0] if key == LOSS else np.asarray(FIGURE_OF_SUMS[key](statistics))


Measured = TypeVar("Measured")


def differences(folder: Path, rows: Sequence[TrainingRow], figures: Sequence[Metric], *, tags: bool) -> JsonObject:
    """Compare the first runs of some layers, whose finished ``rows`` are given best first.

    ``figures`` are those of the task, that of the ranking first; ``tags`` says whether answers are tags of words. Rows
    that were measured on other items than the first one are left out, and rows beyond the best `MAX_DRAWN`.

    Returns:
        What `results.json` holds as ``differ``: ``classes`` and ``confusions`` of labels, ``buckets`` of items or of
        tokens, which part of the text was ``measured``, and ``disagreement`` of the first two layers; all are missing
        where nothing of it was measured.
    """
    rows = rows[:MAX_DRAWN]
    arrays = {}
    for row in rows:
        tensors = load_tensors(folder / "rows" / f"{row.name}.safetensors")
        arrays[row.layer] = {name: tensor.numpy() for name, tensor in tensors.items()}

    # Only layers that answered the same items, or read the same tokens, can be compared item by item.
    items = {layer: read_arrays(each) for layer, each in arrays.items()}
    answers = {row.layer: each for row in rows if (each := ItemAnswers.read(row, items[row.layer]))}
    losses = {row.layer: tokens for row in rows if (tokens := read_tokens(row, items[row.layer]))}
    answers = with_equal_names(_alike(answers, lambda each: (each.rows, each.sizes)))
    losses = _alike(losses, lambda each: (each.ids, each.piece_ends))

    # What a page shows depends on what the task has: labels, lengths of inputs, or losses of tokens.
    result: JsonObject = {}
    if any(each.names for each in answers.values()):
        result |= {"classes": compare_classes(answers, tags=tags), "confusions": confusions(answers)}
    if answers and (by_length := compare_lengths(answers, arrays, figures[0])):
        result["buckets"] = [by_length]
    if losses:
        measured = next(iter(losses.values())).measured
        result |= {"buckets": compare_buckets(losses), "measured": measured}
    if len(answers) > 1 and (by_answer := compare_answers(answers, arrays, figures)):
        result["disagreement"] = by_answer
    elif len(losses) > 1:
        result["disagreement"] = compare_texts(losses)
    return result


def _alike(layers: Mapping[str, Measured], arrays: Callable[[Measured], tuple[np.ndarray, ...]]) -> dict[str, Measured]:
    """Return what is of the same items as the first one; ``arrays`` describe the items."""
    first = [arrays(each) for each in layers.values()][:1]
    return {
        layer: each
        for layer, each in layers.items()
        if all(np.array_equal(a, b) for other in first for a, b in zip(arrays(each), other, strict=True))
    }
