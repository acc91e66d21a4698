"""Figures of the quality of each layer in buckets of tokens or of items."""

import numpy as np
from matplotlib.figure import Figure

from ..report.charts import tall_figure
from ..report.figure_data import show
from ..report.layer_styles import layer_style
from ..report.plot_labels import end_labels
from ..report.theme import plain
from .results import Json

DODGE = 0.05  # distance of the intervals of two layers, where that of two buckets is 1
WIDEST = 0.5  # the largest distance of all intervals of a bucket


def bucket_figure(buckets: Json) -> Figure | None:
    """Draw the figure of each layer in each shown bucket, with 95 % intervals; None with fewer than two buckets.

    ``buckets`` is a result of `loss_buckets.compare_buckets` or `length_buckets.compare_lengths`.
    """
    shown, names = list(buckets["shown"]), buckets["names"]
    values = {layer: [each[i] for i in shown] for layer, each in buckets["values"].items()}
    drawn = {layer: each for layer, each in values.items() if any(value is not None for value, *_ in each)}
    if len(shown) < 2 or not drawn:
        return None
    figure, axes = tall_figure(len(drawn))
    step, ends = min(DODGE, WIDEST / len(drawn)), []
    for i, (layer, each) in enumerate(drawn.items()):
        look = layer_style(layer)
        xs = np.arange(len(shown)) + step * (i - (len(drawn) - 1) / 2)
        ys = [np.nan if value is None else value for value, *_ in each]
        show(axes.plot(xs, ys, **look), layer, names=[names[bucket] for bucket in shown])
        for x, (_, low, high) in zip(xs.tolist(), each, strict=True):
            if low is not None and high is not None and low < high:
                show(axes.plot([x, x], [low, high], color=look["color"], linewidth=0.8), layer, is_interval=True)
        ends.append((layer, layer, next(y for y in reversed(ys) if not np.isnan(y))))
    crowded = sum(map(len, (names[bucket] for bucket in shown))) > 24
    labels = [plain(names[bucket]) for bucket in shown]
    axes.set_xticks(range(len(shown)), labels, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    axes.set_xlabel(plain(buckets["name"]))
    axes.set_ylabel(plain(buckets["of"]))
    end_labels(axes, ends)
    return figure
