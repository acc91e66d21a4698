"""Where the models of a comparison differ: by class, by length, by token, and their answers to single items."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..core.json_object import JsonObject
from ..data.tag_sets import marks_chunks
from ..data.tokenizers import whole_characters
from ..evaluation.error_analysis import AnsweredItem, count_confusions
from ..evaluation.intervals import SIGNIFICANT, Compute, Measure, Metric, interval, mean, paired, with_intervals
from ..evaluation.label_metrics import TYPELESS, ClassCounts, count_chunks, count_labels, exchange_test, f1, holm
from ..evaluation.token_scores import UNKNOWN, TokenLosses, surprisals
from ..pages.items import for_page
from ..storage.weights import load_tensors
from .item_answers import Arrays, ItemAnswers, has_all, read_arrays, read_tokens, with_equal_names
from .plan import FIGURE_OF_SUMS
from .results import MAX_DRAWN, TrainingRow

# F1 of each class under every layer, which classes differ from the best layer, and what is confused.


MAX_SHOWN = 30  # classes of the table
MAX_TESTS = 400  # tests that are adjusted together: more would leave none significant
MIN_SUPPORT = 5  # true items of a class that is tested


def compare_classes(answers: Mapping[str, ItemAnswers], *, tags: bool) -> JsonObject:
    """Return F1 of each class, with tests of every layer against the first one, which is the best.

    Args:
        answers: of the layers, best first, to the same items.
        tags: whether labels are tags of words; if they mark chunks, the classes are the types of the chunks.

    Returns:
        At most `MAX_SHOWN` ``rows`` of all ``classes``, those with the most true items first. A row has the ``name``,
        the ``support``, and by layer ``f1`` (value, low, high) and ``p_values``, which are adjusted for all ``tests``.
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

    # Of many classes those that differ are shown, and the most frequent ones.
    lowest = {i: min(p_values[i, other] for other in others) for i in tested} if others else {}
    clearest = sorted(by_support, key=lambda i: lowest.get(i, 1.0) > SIGNIFICANT)[:MAX_SHOWN]
    shown = [i for i in by_support if i in clearest]
    figures = {layer: _with_intervals(each, shown) for layer, each in counts.items()}
    return {
        "unit": "chunks" if chunks else first.unit,
        "measured": len(first.rows),
        "total": first.total,
        "best": best,
        "classes": len(names),
        "tests": len(pairs),
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


def class_counts(answers: ItemAnswers, *, chunks: bool) -> ClassCounts:
    """Return the counts by item and class: of labels, or of the types of chunks."""
    truth, predicted = answers.labels()
    if not chunks:
        return count_labels(truth, predicted, answers.names)
    kinds = sorted({name.partition("-")[2] for name in answers.names if name != "O"})
    return count_chunks(truth, predicted, kinds)


def _with_intervals(counts: ClassCounts, classes: Sequence[int]) -> dict[int, list[float | None]]:
    """Return F1 and its 95 % interval of some classes, which are resampled together."""
    figures = with_intervals({str(i): Measure(counts.of_class(i), f1) for i in classes})
    return {i: [figures[f"{i}{end}"] for end in ("", "_low", "_high")] for i in classes}


# A figure of each layer in buckets of items or of tokens.


def compare_buckets(
    buckets: JsonObject, statistics: Mapping[str, Sequence[np.ndarray]], compute: Compute, shown: Sequence[int]
) -> JsonObject:
    """Return the figure of each layer in each bucket, and tests of the second layer against the first one.

    Args:
        buckets: ``by`` what items are sorted, the ``name`` of that, the ``names`` of the buckets, their ``counts`` of
            items, which are ``counted``, and what the figure is ``of``.
        statistics: those of the items of each bucket ``(items, k)`` by layer, best first.
        compute: the figure of summed statistics.
        shown: the buckets with enough items.

    Returns:
        The buckets with what is ``shown``, the ``values`` (value, low, high) by layer, None where they are infinite,
        and ``tests``, by the paired bootstrap, whose p-values are adjusted for the number of buckets.
    """
    values = {layer: [_figure(each, compute) for each in rows] for layer, rows in statistics.items()}
    found: JsonObject = {**buckets, "shown": list(shown), "values": values, "tests": None}
    if len(statistics) > 1:
        (first, one), (second, other) = list(statistics.items())[:2]
        finite = [i for i in shown if None not in (values[first][i][0], values[second][i][0])]
        tests = [paired(other[i], one[i], compute) for i in finite]
        adjusted = holm([1.0 if test.p_value is None else test.p_value for test in tests])
        results = [
            {"bucket": i, **test._asdict(), "p_value": p} for i, test, p in zip(finite, tests, adjusted, strict=True)
        ]
        found["tests"] = {"first": first, "second": second, "results": results}
    return found


def _figure(statistics: np.ndarray, compute: Compute) -> list[float | None]:
    known = bool(statistics.any()) and bool(np.isfinite(statistics).all())
    return list(interval(statistics, compute)) if known else [None] * 3


POSITIONS = (1, 4, 16, 64, 256, 1024, 4096)
FREQUENCIES = (UNKNOWN, 0, 1, 10, 100, 1000)
"""The largest value of each bucket but the last."""
UNKNOWN_NAME = "unknown"
MIN_BLOCKS = 10  # lines or blocks with a token of a bucket that is shown


def compare_tokens(losses: Mapping[str, TokenLosses]) -> list[JsonObject]:
    """Compare losses by the position of a token in its line, and by its frequency in the training text.

    The layers are given best first, with losses of the same tokens. Intervals and tests resample lines, or blocks of a
    running text. A bucket in few of them has no interval to rely on: it is counted, but neither shown nor tested.
    """
    first = next(iter(losses.values()))
    spans = {
        "position": ("position in the line", first.positions, POSITIONS, ["1"]),
        "frequency": ("occurrences in the training text", first.frequencies, FREQUENCIES, [UNKNOWN_NAME, "never", "1"]),
    }
    found = []
    for by, (name, values, largest, names) in spans.items():
        names = [*names, *_spans(largest[len(names) - 1 :])]
        bucket = np.searchsorted(np.array(largest), values, side="left")
        sums = {layer: block_sums(each, bucket, len(names)) for layer, each in losses.items()}
        counts = next(iter(sums.values()))[..., 1]
        shown = [i for i in range(len(names)) if (counts[i] > 0).sum() >= MIN_BLOCKS]
        buckets: JsonObject = {"by": by, "name": name, "names": names, "counts": counts.sum(1).astype(int).tolist()}
        buckets |= {"counted": "tokens", "of": "loss (bits per token)"}
        found.append(compare_buckets(buckets, {layer: list(each) for layer, each in sums.items()}, mean, shown))
    return found


def block_sums(losses: TokenLosses, bucket: np.ndarray, size: int) -> np.ndarray:
    """Return the summed bits and the number of tokens of each of ``size`` buckets and block ``(size, blocks, 2)``.

    ``bucket`` is that of each token ``(tokens,)``.
    """
    blocks = losses.piece_blocks[losses.pieces]
    shape = (size, int(losses.piece_blocks.max()) + 1)
    cells = bucket * shape[1] + blocks
    sums = [
        np.bincount(cells, weights, shape[0] * shape[1]).reshape(shape) for weights in (losses.nats / math.log(2), None)
    ]
    return np.stack(sums, axis=2)


def _spans(largest: Sequence[int]) -> list[str]:
    """Return the names of the buckets after the first one: ``2–4``, ``5–16`` and so on, with an open end."""
    spans = [f"{low + 1:,}–{high:,}" for low, high in itertools.pairwise(largest)]
    return [*spans, f"over {largest[-1]:,}"]


MAX_BUCKETS = 6
MIN_INPUTS = 20  # inputs of a bucket


def compare_lengths(
    answers: Mapping[str, ItemAnswers], statistics: Mapping[str, Arrays], metric: Metric
) -> JsonObject | None:
    """Compare the metric of the ranking on inputs of similar lengths; None with fewer than two buckets.

    ``answers`` are those of the layers, best first, to the same items, and ``statistics`` those of every item of the
    data, by layer and figure.
    """
    first = next(iter(answers.values()))
    known = [layer for layer in answers if has_all(statistics[layer], metric.key, first.total)]
    groups = by_length(first.lengths)
    if len(groups) < 2 or not known:
        return None
    ends = [(int(first.lengths[rows].min()), int(first.lengths[rows].max())) for rows in groups]
    names = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in ends]
    buckets: JsonObject = {"by": "length", "name": "length of the input (tokens)", "names": names}
    buckets |= {"counts": [len(rows) for rows in groups], "counted": "inputs", "of": metric.name}

    # The first layer's items stand for those of all, since only rows with the same items are compared.
    chosen = {layer: [statistics[layer][metric.key][first.rows[rows]] for rows in groups] for layer in known}
    return compare_buckets(buckets, chosen, FIGURE_OF_SUMS[metric.key], range(len(groups)))


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


# Single items, with the answers of all layers.


LOSS = Metric("loss", "loss in nats", 2)
NOT_OF_ITEMS = ("bleu",)
"""Figures that say little of a single text: BLEU of an exact answer is 0 if it has fewer than 4 words."""


def answered_items(
    answers: Mapping[str, ItemAnswers], statistics: Mapping[str, Arrays], figures: Sequence[Metric], *, tags: bool
) -> JsonObject:
    """Return the items whose texts were kept, with the answers of the layers, and a figure of each if there is one.

    The figure is the number of wrong ``tags``; else the loss, or the first of the ``figures`` of the task that has more
    than two values: it tells more about a single item than right or wrong.
    """
    first = next(iter(answers.values()))
    at = np.searchsorted(first.rows, [text["row"] for text in first.texts]).tolist()
    if tags:
        true, guesses = first.labels()[0], [each.labels()[1] for each in answers.values()]
        values = [[sum(a != b for a, b in zip(true[i], given[i], strict=True)) for i in at] for given in guesses]
        name, more_is_better = "wrong tags", False
    else:
        of_items = {
            figure: [_of_items(statistics[layer][figure.key][first.rows[at]], figure.key).tolist() for layer in answers]
            for figure in (LOSS, *figures)
            if figure.key not in NOT_OF_ITEMS
            and all(has_all(statistics[layer], figure.key, first.total) for layer in answers)
        }
        graded = (each for each in of_items.items() if max(len(set(one)) for one in each[1]) > 2)
        chosen, values = next(graded, (None, []))
        name, more_is_better = (chosen.name, chosen.more_is_better) if chosen else ("", False)

    found = []
    for i, texts in enumerate(zip(*(each.texts for each in answers.values()), strict=True)):
        text, truth, given = texts[0]["text"], texts[0]["truth"], [each["answer"] for each in texts]
        if tags:  # of the words that were kept, of which the last one may be cut
            text = text.split()
            truth, *given = (each[at[i]][: len(text)] for each in (true, *guesses))
        if text and truth:
            right = [each["right"] for each in texts]
            found.append(AnsweredItem(text, truth, given, [float(each[i]) for each in values], right))
    return _items(found, answers, name, more_is_better, first.total)


def scored_texts(losses: Mapping[str, TokenLosses]) -> JsonObject:
    """Return the pieces of a text, with the surprisals of their tokens under each layer."""
    first = next(iter(losses.values()))
    ends = first.piece_ends.tolist()
    names = [first.names[token] for token in first.ids.tolist()]
    for index, word in first.spelled.items():
        names[index] = f"[{word}] "  # which is read as the unknown token
    bits = [surprisals(each.nats) for each in losses.values()]
    totals = [surprisals(each.piece_losses()) for each in losses.values()]
    found = [
        AnsweredItem(
            whole_characters(names[start:end]), "", [each[start:end] for each in bits], [each[i] for each in totals]
        )
        for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
    return _items(found, losses, "bits", False, len(found))


def _items(
    found: Sequence[AnsweredItem], layers: Mapping[str, object], figure: str, more_is_better: bool, total: int
) -> JsonObject:
    facts = {"layers": list(layers), "figure": figure, "more_is_better": more_is_better, "total": total}
    return {**facts, "items": [item._asdict() for item in for_page(found)]}


def _of_items(statistics: np.ndarray, key: str) -> np.ndarray:
    """Return the figure of each item ``(items,)``: the whole loss in nats, or the metric of the item alone."""
    return statistics[:, 0] if key == LOSS.key else np.asarray(FIGURE_OF_SUMS[key](statistics))


Measured = TypeVar("Measured")


def differences(folder: Path, rows: Sequence[TrainingRow], figures: Sequence[Metric], *, tags: bool) -> JsonObject:
    """Compare the first runs of some layers, whose finished ``rows`` are given best first.

    ``figures`` are those of the task, that of the ranking first; ``tags`` says whether answers are tags of words. Rows
    that were measured on other items than the first one are left out, and rows beyond the best `MAX_DRAWN`.

    Returns:
        What `results.json` holds as ``differ``: ``classes`` and ``confusions`` of labels, ``buckets`` of items or of
        tokens, which part of the text was ``measured``, and single ``items``; all are missing where nothing of it was
        measured.
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
        result["classes"] = compare_classes(answers, tags=tags)
        result["confusions"] = {layer: asdict(count_confusions(*each.flat_labels())) for layer, each in answers.items()}
    if losses:
        measured = next(iter(losses.values())).measured
        result |= {"buckets": compare_tokens(losses), "measured": measured, "items": scored_texts(losses)}
    elif answers:
        by_length = compare_lengths(answers, arrays, figures[0])
        result |= {"buckets": [by_length]} if by_length else {}
        result["items"] = answered_items(answers, arrays, figures, tags=tags)
    return result


def _alike(layers: Mapping[str, Measured], arrays: Callable[[Measured], tuple[np.ndarray, ...]]) -> dict[str, Measured]:
    """Return what is of the same items as the first one; ``arrays`` describe the items."""
    first = [arrays(each) for each in layers.values()][:1]
    return {
        layer: each
        for layer, each in layers.items()
        if all(np.array_equal(a, b) for other in first for a, b in zip(arrays(each), other, strict=True))
    }
