"""Windows of one length in which gradient flow is measured, cut from a text or from held-out data.

Windows of one length let every lag be averaged over the same windows: otherwise a curve would change at a lag only
because fewer windows reach so far.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..layers.positions import learned_positions
from ..tasks.explainer import Example, Examples
from .gradient_trend import MIN_LAGS, MIN_WINDOWS


class Windows(NamedTuple):
    """Windows with ``length`` tokens each, and how they were cut from ``sequences`` texts, in words."""

    examples: list[Example]
    length: int
    cut: str


def equal_windows(inputs: Examples, items: Sequence[object], *, length: int, count: int) -> Windows:
    """Return at most ``count`` windows of one length, at most ``length``.

    A running text is cut into stretches that do not overlap. Of single texts, those that are long enough are used, with
    their last tokens; of a source with its target, the first tokens of both. The length is the largest one for which
    there are ``count`` windows; if that is too short for a statement, the largest one for a few windows; and if that
    is too short as well, the largest one for a few texts, or for one: a short text is not cut.
    """
    sequences = [example for item in items for example in inputs.read(item) if example.inputs]
    positions = learned_positions(inputs.model)
    if positions is not None and sequences:
        length = min(length, positions // max(1, sequences[0].copies))
    sizes = np.array([_size(example) for example in sequences])
    width = _width(sizes, length, count, divisible=inputs.is_divisible)
    if not width:
        return Windows([], 0, "")
    if inputs.is_divisible:
        starts = [(i, start) for i, size in enumerate(sizes) for start in range(0, size - width + 1, width)]
    else:
        starts = [(i, max(0, size - width)) for i, size in enumerate(sizes) if size >= width]
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).round().astype(int)).tolist()
    examples = [_window(sequences[i], start, width) for i, start in (starts[place] for place in chosen)]
    return Windows(examples, width, _cut_in_words(inputs, sequences))


def _size(example: Example) -> int:
    return min(len(example.inputs), len(example.decoded)) if example.decoded else len(example.inputs)


def _width(sizes: np.ndarray, length: int, count: int, *, divisible: bool) -> int:
    """Return the length of the windows; 0 if there are no two tokens in any text."""
    longest = min(length, int(sizes.max(initial=0)))
    for windows, least in ((count, MIN_LAGS + 1), (MIN_WINDOWS, MIN_LAGS + 1), (MIN_WINDOWS, 2), (1, 2)):
        for width in range(longest, least - 1, -1):
            is_cut = divisible and least > 2
            if (sizes // width if is_cut else sizes >= width).sum() >= windows:
                return width
    return 0


def _window(example: Example, start: int, width: int) -> Example:
    return example.beginning(width) if example.decoded else example.part(range(start, start + width))


def _cut_in_words(inputs: Examples, sequences: Sequence[Example]) -> str:
    if sequences[0].decoded:
        return "the first tokens of sources and targets that are long enough"
    if inputs.is_divisible:
        return "stretches that do not overlap"
    return "the last tokens of texts that are long enough"
