"""Long lines: those with more tokens than a model has learned positions, and those that take attention a long time."""

import warnings

import numpy as np

from ..config import Config
from ..layers import names, options_of, split_names

LONG = 10_000
"""Tokens of a line beyond which attention without a window is slow: its time grows with their square."""


def warn_of_long(lengths: np.ndarray, config: Config, *, name: str, items: str) -> None:
    """Warn if attention without a window reads a very long sequence.

    Args:
        lengths: tokens of each sequence ``(sequences,)``.
        config: of the run.
        name: what is read, for the message.
        items: what the sequences are.
    """
    longest = int(lengths.max(initial=0))
    if longest <= LONG or not _sees_everything(config):
        return
    warnings.warn(
        f"{name}: one of the {items} (number {int(lengths.argmax()) + 1:,}) has {longest:,} tokens; the time that "
        f"model.layer {config.model.layer} takes grows with the square of that; split it, or train with "
        "model.options.window, for instance 512",
        stacklevel=2,
    )


def _sees_everything(config: Config) -> bool:
    """Return whether a layer attends to all inputs because it has no window."""
    options = config.model.options
    layers = set(split_names(config.model.layer)) & set(names())  # a counted model has no layer
    known = [options_of(layer, options) for layer in layers]
    return any("window" in each and options.get("window") is None for each in known)


def read_lengths(lengths: np.ndarray, most: int | None) -> np.ndarray:
    """Return how many tokens of each text are read ``(texts,)``: all, or the first ``most`` with a warning."""
    if most is None or int(lengths.max(initial=0)) <= most:
        return lengths
    warnings.warn(
        f"{int((lengths > most).sum())} of {len(lengths)} lines have more tokens than there are learned positions for; "
        f"only the first {most} are read",
        stacklevel=3,
    )
    found: np.ndarray = np.minimum(lengths, most)
    return found


def parts_of(words: list[str], most: int | None) -> list[list[str]]:
    """Split a sentence into parts of at most ``most`` words."""
    step = most or max(1, len(words))
    return [words[start : start + step] for start in range(0, len(words), step)]
