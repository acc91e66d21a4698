"""Describe each architecture: its state, its cost and its options, for `seriatim layers`."""

import math

import torch

from ..core.contract import SequenceLayer
from ..core.state import state_bytes
from ..recurrence.obstacles import uncompiled
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
    lengths = built.path_lengths(max(distances))
    floats = {str(distance): float(lengths[distance]) for distance in distances}
    return {distance: int(length) if math.isfinite(length) else None for distance, length in floats.items()}


@torch.inference_mode()
def state_sizes(name: str, tokens: tuple[int, ...]) -> dict[str, int]:
    """Return the bytes of one row's state after each number of tokens, read from states of the layer.

    The state is measured at three short lengths. A state that grows between the last two keeps growing at this rate; a
    state that does not grow there has its final size.
    """
    built = layer(name, WIDTH, WIDTH).eval()
    short = (1, 500, 501)
    with uncompiled():  # compiling takes longer than a thousand steps
        sizes = {time: state_bytes(built(torch.zeros(1, time, WIDTH))[1]) for time in short}
    growth = sizes[501] - sizes[500]
    return {str(count): sizes[1] if count == 1 else sizes[500] + (count - 500) * growth for count in tokens}
