"""The held-out texts on which two models differ most, in both directions."""

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ..evaluation.intervals import Metrics, interval, mean, wilson
from ..evaluation.token_losses import TokenLosses
from ..training.task_data import Metric
from .item_answers import MAX_ITEMS, Arrays, ItemAnswers
from .metric import FIGURE_OF_SUMS

SHOWN = 6  # texts of each direction
LOSS = "loss"


def most_different(
    first: np.ndarray, second: np.ndarray, texts: Sequence[Hashable], count: int = SHOWN
) -> tuple[list[int], list[int]]:
    """Return the items on which the first model is better by most, and those on which the second one is.

    ``first`` and ``second`` are a figure of each item, of which less is better and which may be infinite ``(items,)``;
    ``count`` is the largest number of items of each direction, whose ``texts`` are different.
    """
    with np.errstate(invalid="ignore"):
        gain = np.nan_to_num(second - first, nan=0.0, posinf=math.inf, neginf=-math.inf)

    def largest(gain: np.ndarray) -> list[int]:
        chosen = dict[Hashable, int]()
        for i in np.argsort(-gain, kind="stable").tolist():
            if len(chosen) == count or not gain[i] > 0:
                break
            chosen.setdefault(texts[i], i)
        return list(chosen.values())

    return largest(gain), largest(-gain)


def compare_answers(answers: Mapping[str, ItemAnswers], statistics: Mapping[str, Arrays], metric: Metric) -> Metrics:
    """Compare two models by their answers; the layers are given best first, with the statistics of every item.

    Returns:
        ``first`` and ``second``, the figure ``of`` single items, which of them has the better figure how often, and the
        items; empty where the rows have no figure in common.
    """
    (first, one), (second, other) = list(answers.items())[:2]
    key = _common_figure(statistics[first], statistics[second], metric, one.total)
    if key is None:
        return {}
    rows = np.array([text["row"] for text in one.texts], np.int64)
    figures = [_of_items(statistics[layer][key][rows], key) for layer in (first, second)]
    sign = -1 if key == metric.key and metric.more_is_better else 1
    for_first, for_second = most_different(sign * figures[0], sign * figures[1], [text["text"] for text in one.texts])

    def shown(i: int) -> Metrics:
        text = {name: one.texts[i][name] for name in ("text", "truth")}
        given = [each.texts[i]["answer"] for each in (one, other)]
        return {**text, "answers": given, "figures": [float(each[i]) for each in figures]}

    better, worse = (int((sign * (figures[b] - figures[a]) > 0).sum()) for a, b in ((0, 1), (1, 0)))
    return {
        "kind": "answers",
        "first": first,
        "second": second,
        "of": key,
        "items": len(rows),
        "better": _share(better, len(rows)),
        "worse": _share(worse, len(rows)),
        "for_first": [shown(i) for i in for_first],
        "for_second": [shown(i) for i in for_second],
    }


def compare_texts(losses: Mapping[str, TokenLosses]) -> Metrics:
    """Compare two language models by the losses of pieces of text; the layers are given best first.

    The share of pieces that one model predicts better has an interval over lines, or blocks of a running text.
    """
    (first, one), (second, other) = list(losses.items())[:2]
    figures = one.of_pieces(), other.of_pieces()
    starts = np.concatenate([[0], one.piece_ends[:-1]]).astype(int)
    texts = [one.ids[start:end].tobytes() for start, end in zip(starts.tolist(), one.piece_ends.tolist(), strict=True)]
    for_first, for_second = most_different(*figures, texts)

    def shown(i: int) -> Metrics:
        span = range(int(starts[i]), int(one.piece_ends[i]))
        names = [_name(one, place) for place in span]
        bits = [[round(float(each.nats[place]) / math.log(2), 2) for place in span] for each in (one, other)]
        return {"tokens": names, "bits": bits, "figures": [float(each[i]) for each in figures]}

    with np.errstate(invalid="ignore"):
        gain = figures[1] - figures[0]
    return {
        "kind": "tokens",
        "first": first,
        "second": second,
        "of": LOSS,
        "items": len(gain),
        "outcomes": len(one.names),
        "better": _share_of_blocks(gain > 0, one.piece_blocks),
        "worse": _share_of_blocks(gain < 0, one.piece_blocks),
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


def _common_figure(first: Arrays, second: Arrays, metric: Metric, total: int) -> str | None:
    """Return the loss, or else the metric, if both layers have it for every item."""
    for key in (LOSS, metric.key):
        sizes = {min(MAX_ITEMS, len(each[key])) if key in each else None for each in (first, second)}
        if sizes == {total}:
            return key
    return None


def _of_items(statistics: np.ndarray, key: str) -> np.ndarray:
    """Return the figure of each item ``(items,)``: the whole loss in nats, or the metric of the item alone."""
    return statistics[:, 0] if key == LOSS else np.asarray(FIGURE_OF_SUMS[key](statistics))
