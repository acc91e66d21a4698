"""Where the models of a comparison differ: by class, by token, and the texts on which two of them disagree most."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..core.json_object import JsonObject
from ..evaluation.displayed_metrics import Metric
from ..storage.weights import load_tensors
from .class_differences import compare_classes, confusions
from .disagreements import compare_answers, compare_texts
from .item_answers import ItemAnswers, read_arrays, with_equal_names
from .length_buckets import compare_lengths
from .loss_buckets import compare_buckets
from .results import MAX_DRAWN, Json
from .text_losses import read_tokens

Measured = TypeVar("Measured")


def differences(folder: Path, rows: Sequence[Json], figures: Sequence[Metric], *, tags: bool) -> JsonObject:
    """Compare the first runs of some layers, whose finished ``rows`` are given best first.

    ``figures`` are those of the task, that of the ranking first; ``tags`` says whether answers are tags of words. Rows
    that were measured on other items than the first one are left out, and rows beyond the best `MAX_DRAWN`.

    Returns:
        What `results.json` holds as ``differ``: ``classes`` and ``confusions`` of labels, ``buckets`` of items or of
        tokens, which part of the text was ``measured``, and ``disagreement`` of the first two layers; all are missing
        where nothing of it was measured.
    """
    rows = rows[:MAX_DRAWN]
    arrays = {
        row["layer"]: {
            name: tensor.numpy()
            for name, tensor in load_tensors(folder / "rows" / f"{row['layer']}-{row['seed']}.safetensors").items()
        }
        for row in rows
    }
    items = {layer: read_arrays(each) for layer, each in arrays.items()}
    answers = {row["layer"]: each for row in rows if (each := ItemAnswers.read(row, items[row["layer"]]))}
    losses = {row["layer"]: tokens for row in rows if (tokens := read_tokens(row, items[row["layer"]]))}
    answers = with_equal_names(_alike(answers, lambda each: (each.rows, each.sizes)))
    losses = _alike(losses, lambda each: (each.ids, each.piece_ends))
    result: JsonObject = {}
    if any(each.names for each in answers.values()):
        result |= {"classes": compare_classes(answers, tags=tags), "confusions": confusions(answers)}
    if answers and (by_length := compare_lengths(answers, arrays, figures[0])):
        result["buckets"] = [by_length]
    if losses:
        measured = next(iter(losses.values())).measured
        result |= {"buckets": compare_buckets(losses), "measured": measured}
    if len(answers) > 1 and (by_answer := compare_answers(answers, arrays, figures)):
        result["disagreement"] = by_answer
    elif len(losses) > 1:
        result["disagreement"] = compare_texts(losses)
    return result


def _alike(layers: Mapping[str, Measured], arrays: Callable[[Measured], tuple[np.ndarray, ...]]) -> dict[str, Measured]:
    """Return what is of the same items as the first one; ``arrays`` describe the items."""
    first = [arrays(each) for each in layers.values()][:1]
    return {
        layer: each
        for layer, each in layers.items()
        if all(np.array_equal(a, b) for other in first for a, b in zip(arrays(each), other, strict=True))
    }
