"""What each architecture keeps, and what that takes: the table of `seriatim layers`."""

import math
from typing import Any

import torch

from ..core.contract import SequenceLayer
from ..core.state import state_bytes
from .build import layer, options_of
from .registry import RENAMED, find

WIDTH = 256
TOKENS = (1, 1_000, 100_000)
DISTANCES = (10, 100, 1_000)


def describe(name: str) -> dict[str, Any]:
    """One architecture in words and figures, with the defaults of its options, one layer of width `WIDTH`.

    Returns:
        ``name``, ``former_names`` (which still work), ``keeps``, ``parallel``, ``paper``, ``hidden_size``, ``options``
        (name to default), ``state_bytes`` (number of tokens to bytes) and ``path_lengths`` (steps back to operations
        along time, None where an input so far back does not reach the output).
    """
    architecture = find(name)
    return {
        "name": name,
        "former_names": [old for old, (new, _) in RENAMED.items() if new == name],
        "keeps": architecture.keeps,
        "parallel": architecture.parallel,
        "paper": architecture.paper,
        "hidden_size": WIDTH,
        "state_bytes": state_sizes(name, TOKENS),
        "path_lengths": path_lengths(layer(name, WIDTH, WIDTH)),
        "options": {key: _default(option) for key, option in options_of(name).items()},
    }


def path_lengths(built: SequenceLayer, distances: tuple[int, ...] = DISTANCES) -> dict[str, int | None]:
    """How many operations along time lead from inputs some steps back to the present output; None for no path."""
    lengths = built.path_lengths(max(distances))
    found = {str(distance): float(lengths[distance]) for distance in distances}
    return {distance: int(length) if math.isfinite(length) else None for distance, length in found.items()}


@torch.inference_mode()
def state_sizes(name: str, tokens: tuple[int, ...]) -> dict[str, int]:
    """Bytes of one row's state after each number of tokens, read from states of the real layer.

    What a state keeps of a token takes the same room whichever token it is. A state is therefore measured at three
    short lengths; where it grew evenly between them it goes on growing so, and where it did not grow it stays.
    """
    made = layer(name, WIDTH, WIDTH).eval()
    short = (1, 500, 501)
    sizes = dict(zip(short, (state_bytes(made(torch.zeros(1, time, WIDTH))[1]) for time in short), strict=True))
    growth = sizes[501] - sizes[500]
    return {str(count): sizes[1] if count == 1 else sizes[500] + (count - 500) * growth for count in tokens}


def _default(option: Any) -> Any:
    return None if option.default is option.empty else option.default
