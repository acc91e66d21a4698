"""Long lines: more tokens than learned positions, or so many that attention takes a long time."""

import warnings
from collections.abc import Sequence

import numpy as np

from ..config import Config
from ..core.errors import shown
from ..layers import names, options_of, split_names

LONG = 10_000
"""Number of tokens from which attention without a window is slow, since its time grows with their square."""


def warn_of_long(lengths: np.ndarray, config: Config, *, name: str, items: str) -> None:
    """Warn if attention without a window will read a very long sequence; ``items`` is a plural noun for sequences."""
    longest, options = int(lengths.max(initial=0)), config.model.options
    if longest <= LONG:
        return
    layers = set(split_names(config.model.layer)) & set(names())  # a counted model has no layer
    if any("window" in options_of(layer, options) and options.get("window") is None for layer in layers):
        warnings.warn(
            f"{name}: one of the {items} (number {int(lengths.argmax()) + 1:,}) has {longest:,} tokens; the time that "
            f"model.layer {config.model.layer} takes grows with the square of that; split it, or train with "
            "model.options.window, for instance 512",
            stacklevel=2,
        )


def read_lengths(texts: Sequence[str], lengths: np.ndarray, limit: int | None) -> np.ndarray:
    """Return how many tokens of each text are read ``(texts,)``: at most ``limit``, and warn of longer texts."""
    if limit is None or int(lengths.max(initial=0)) <= limit:
        return lengths
    warnings.warn(
        f"{int((lengths > limit).sum())} of {len(lengths)} lines have more tokens than there are learned positions; "
        f"only the first {limit} are read, also of {shown(texts[int((lengths > limit).argmax())])}",
        stacklevel=3,
    )
    shortened: np.ndarray = np.minimum(lengths, limit)
    return shortened


def parts_of(words: list[str], limit: int | None) -> list[list[str]]:
    """Split a sentence into parts of at most ``limit`` words."""
    step = limit or max(1, len(words))
    return [words[start : start + step] for start in range(0, len(words), step)]
