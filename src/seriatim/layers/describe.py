"""Describe each architecture: its state, its cost and its options, for `seriatim layers`."""

import math

import torch

from ..core.contract import SequenceLayer
from ..core.state import state_bytes
from ..recurrence import uncompiled
from .declared_options import options_of
from .factory import layer
from .registry import RENAMED, find

WIDTH = 256
TOKENS = (1, 1_000, 100_000)
DISTANCES = (10, 100, 1_000)


def describe(name: str) -> dict[str, object]:
    """Describe one architecture, with the defaults of its options, as one layer of width `WIDTH`.

    Returns:
        ``name``, ``former_names`` (which still work), ``keeps``, ``parallel``, ``paper``, ``hidden_size``, ``options``
        (name to default), ``option_details`` (name to ``type``, ``default``, ``range``, ``choices`` and ``help``),
        ``state_bytes`` (number of tokens to bytes) and ``path_lengths`` (steps back to operations along time, None
        where an input so far back does not reach the output).
    """
    architecture, options = find(name), options_of(name)
    return {
        "name": name,
        "former_names": [former for former, (present, _) in RENAMED.items() if present == name],
        "keeps": architecture.keeps,
        "parallel": architecture.parallel,
        "paper": architecture.paper,
        "hidden_size": WIDTH,
        "state_bytes": state_sizes(name, TOKENS),
        "path_lengths": path_lengths(layer(name, WIDTH, WIDTH)),
        "options": {key: option.default for key, option in options.items()},
        "option_details": {key: option.describe() for key, option in options.items()},
    }


def path_lengths(built: SequenceLayer, distances: tuple[int, ...] = DISTANCES) -> dict[str, int | None]:
    """Return how many operations along time lead from inputs some steps back to the output; None for no path."""
    lengths = built.path_lengths(max(distances)).tolist()
    return {str(back): int(lengths[back]) if math.isfinite(lengths[back]) else None for back in distances}


@torch.inference_mode()
def state_sizes(name: str, tokens: tuple[int, ...]) -> dict[str, int]:
    """Return the bytes of one row's state after each number of tokens, extrapolated from states of three lengths."""
    built = layer(name, WIDTH, WIDTH).eval()
    with uncompiled():  # compiling takes longer than a thousand steps
        first, last, next_size = (state_bytes(built(torch.zeros(1, time, WIDTH))[1]) for time in (1, 500, 501))
    return {str(count): first if count == 1 else last + (count - 500) * (next_size - last) for count in tokens}
