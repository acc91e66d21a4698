"""Long lines: those with more tokens than a model has learned positions, and those that take attention a long time."""

import warnings

import numpy as np

from ..config import Config
from ..layers import names, options_of, split_names

LONG = 10_000
"""Tokens of a line beyond which attention without a window is slow: its time grows with their square."""


def warn_of_long(lengths: np.ndarray, config: Config, *, name: str, items: str) -> None:
    """Warns where attention without a window is to read a very long sequence.

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
    """Whether a layer attends to all inputs: it could have a window, and has none."""
    options = config.model.options
    layers = set(split_names(config.model.layer)) & set(names())  # a counted model has no layer
    known = [options_of(layer, options) for layer in layers]
    return any("window" in each and options.get("window") is None for each in known)


def read_lengths(lengths: np.ndarray, most: int | None) -> np.ndarray:
    """How much of each text is read ``(texts,)``: all of it, or its first ``most`` tokens, of which a warning tells."""
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
    """A sentence in one part, or in parts of at most ``most`` words."""
    step = most or max(1, len(words))
    return [words[start : start + step] for start in range(0, len(words), step)]
