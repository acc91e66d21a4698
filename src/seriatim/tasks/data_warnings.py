"""What is said of data: sequences that are very long, labels that do not occur in training, rows that are all equal."""

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..config import Config
from ..core.errors import shown
from ..data.repairs import DataWarning
from ..layers import names, options_of, split_names

LONG = 10_000
"""Number of tokens from which attention without a window is slow, since its time grows with their square."""
MAX_LISTED = 200  # the largest number of labels that `check` lists


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


def explain_equal_rows(rows: Collection[str], noun: str, *, none_held_out: bool) -> str:
    """Explain why a fraction takes none or all of the rows, whose plural noun is ``noun``."""
    different = len(set(rows))
    if different == 1:
        return f"its {noun} are all equal"
    chosen = "none" if none_held_out else "all"
    return f"the hash that chooses {noun} chooses {chosen} of its {different:,} different ones"


def listed(counts: Counter[str]) -> list[str]:
    """Return labels with their counts, the most frequent first, and how many are left out."""
    shown = [f"{label} {count:,}" for label, count in counts.most_common(MAX_LISTED)]
    return [*shown, *([f"and {len(counts) - MAX_LISTED:,} others"] if len(counts) > MAX_LISTED else [])]


def name_unseen(noun: str, unseen: Mapping[str, str]) -> str:
    """Name the first label that does not occur in the training data; ``unseen`` has the place of each such label."""
    label, where = next(iter(unseen.items()))
    which = shown(label) + (f" and {len(unseen) - 1:,} more do" if len(unseen) > 1 else " does")
    return f"{where}: the {noun} {which} not occur in the training data"


def warn_of_unseen(noun: str, unseen: Mapping[str, str], count: int, items: str) -> None:
    """Warn of labels that do not occur in the training data, and of the ``count`` items that have them.

    ``items`` are these items in words. The warning names the same place for every reading, so that it is shown once.
    """
    verb = "counts" if count == 1 else "count"
    warnings.warn(f"{name_unseen(noun, unseen)}; {items} {verb} as wrong", DataWarning, stacklevel=2)
