"""Losses of single tokens, as a row keeps them: the losses in an array, and the names of tokens in the row itself."""

import numpy as np

from ..core.json_object import JsonObject
from ..evaluation.token_losses import TokenLosses
from ..inspection.inspected_run import explainer_of
from ..runs.run import Run
from ..tasks.explainer import NotOfferedError
from ..tasks.task import TaskData
from .item_answers import Arrays
from .results import Json

LARGEST = 1 << 14  # places and frequencies that are kept; larger ones are alike
ARRAYS = ("nats", "ids", "positions", "frequencies", "piece_ends", "piece_blocks")


def measure_tokens(run: Run, data: TaskData, train: TaskData) -> tuple[JsonObject, Arrays]:
    """Return the fields of a row and the arrays beside it; both are empty for tasks without losses of tokens."""
    try:
        explainer = explainer_of(run)
        losses = explainer.require(explainer.token_losses)(data, train)
    except NotOfferedError:
        return {}, {}
    names = {str(token): name for token, name in losses.names.items()}
    spelled = {str(place): word for place, word in losses.spelled.items()}
    fields = {"token_losses": {"names": names, "spelled": spelled, "measured": losses.measured}}
    arrays = {name: getattr(losses, name) for name in ARRAYS}
    small = {name: np.minimum(arrays[name], LARGEST) for name in ("positions", "frequencies")}
    return fields, arrays | small | {"nats": losses.nats.astype(np.float32)}


def read_tokens(row: Json, arrays: Arrays) -> TokenLosses | None:
    """Return what `measure_tokens` has kept, given the result of `read_arrays`; None if there is nothing."""
    fields = row.get("token_losses")
    if not fields or not set(ARRAYS) <= arrays.keys():
        return None
    names = {int(token): name for token, name in fields["names"].items()}
    spelled = {int(place): word for place, word in fields["spelled"].items()}
    nats, ids, positions, frequencies, ends, blocks = (arrays[name] for name in ARRAYS)
    rest = names, spelled, str(fields["measured"])
    return TokenLosses(nats.astype(float), ids, positions, frequencies, ends, blocks, *rest)
