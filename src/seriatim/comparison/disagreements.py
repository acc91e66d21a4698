"""The held-out texts on which two models differ most, in both directions."""

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ..core.json_object import JsonObject
from ..evaluation.displayed_metrics import Metric
from ..evaluation.intervals import interval, mean, wilson
from ..evaluation.token_losses import TokenLosses
from .item_answers import Arrays, ItemAnswers, has_all
from .metric import FIGURE_OF_SUMS

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
        "better": _share(better, len(rows)),
        "worse": _share(worse, len(rows)),
        "for_first": [shown(i) for i in for_first],
        "for_second": [shown(i) for i in for_second],
    }


def compare_texts(losses: Mapping[str, TokenLosses]) -> JsonObject:
    """Compare two language models by the losses of pieces of text; the layers are given best first.

    The share of pieces that one model predicts better has an interval over lines, or blocks of a running text.
    """
    (first, one), (second, other) = list(losses.items())[:2]
    figures = one.of_pieces(), other.of_pieces()
    starts = np.concatenate([[0], one.piece_ends[:-1]]).astype(int)
    texts = [one.ids[start:end].tobytes() for start, end in zip(starts.tolist(), one.piece_ends.tolist(), strict=True)]
    for_first, for_second = most_different(*figures, texts)

    def shown(i: int) -> JsonObject:
        span = range(int(starts[i]), int(one.piece_ends[i]))
        names = [_name(one, place) for place in span]
        bits = [[round(float(each.nats[place]) / math.log(2), 2) for place in span] for each in (one, other)]
        return {"tokens": names, "bits": bits, "figures": [float(each[i]) for each in figures]}

    return {
        "kind": "tokens",
        "first": first,
        "second": second,
        "of": LOSS,
        "items": len(texts),
        "outcomes": len(one.names),
        "spelled": bool(one.spelled),
        "better": _share_of_blocks(figures[0] < figures[1], one.piece_blocks),
        "worse": _share_of_blocks(figures[1] < figures[0], one.piece_blocks),
        "for_first": [shown(i) for i in for_first],
        "for_second": [shown(i) for i in for_second],
    }


def _name(losses: TokenLosses, place: int) -> str:
    """Return the text of a token; a word that is read as the unknown token is in brackets."""
    word = losses.spelled.get(place)
    return losses.names[int(losses.ids[place])] if word is None else f"[{word}] "


def _share(count: int, total: int) -> list[float]:
    return [count / total, *wilson(count, total)]


def _share_of_blocks(hits: np.ndarray, blocks: np.ndarray) -> list[float | None]:
    sums = np.stack([np.bincount(blocks, hits), np.bincount(blocks)], axis=1)
    return list(interval(sums[sums[:, 1] > 0], mean))


def _of_items(statistics: np.ndarray, key: str) -> np.ndarray:
    """Return the figure of each item ``(items,)``: the whole loss in nats, or the metric of the item alone."""
    return statistics[:, 0] if key == LOSS else np.asarray(FIGURE_OF_SUMS[key](statistics))
