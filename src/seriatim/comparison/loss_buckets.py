"""The loss of language models by the place of a token in its line, and by its frequency in the training text."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..core.json_object import JsonObject
from ..evaluation.class_counts import holm
from ..evaluation.intervals import Compute, Measure, mean, paired, with_intervals
from ..evaluation.token_losses import UNKNOWN, TokenLosses

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
    """Return the tokens of a text sorted by place in the line, and by frequency in the training text."""
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
    blocks, size = losses.piece_blocks[losses.piece_of], len(buckets.names)
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
