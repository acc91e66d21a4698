"""Lines with more tokens than a model has learned positions: every one has its answer all the same."""

import warnings

import numpy as np


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
