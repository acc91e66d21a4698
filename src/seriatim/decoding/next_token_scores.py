"""The log probability of tokens under the model itself, and of the most likely alternatives."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.base_models import TextModel
from ..models.probabilities import token_log_probabilities


class CandidateScore(NamedTuple):
    """A token of a text, with natural logarithms of probabilities.

    They are those of the model itself: before temperature, filters, penalties and biases.
    """

    log_probability: float
    alternatives: tuple[tuple[int, float], ...]  # the most likely tokens, the first one first


def score_tokens(
    model: TextModel, logits: Tensor, tokens: Sequence[int], num_alternatives: int
) -> list[CandidateScore]:
    """Score a token for each row of the model's logits ``(rows, vocabulary)``."""
    if not len(tokens):
        return []
    scores = token_log_probabilities(model, logits)
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device).unsqueeze(1)).squeeze(1).tolist()
    values, ids = scores.topk(min(num_alternatives, scores.shape[1]), dim=1)
    return [
        CandidateScore(score, tuple(zip(row_ids, row_values, strict=True)))
        for score, row_ids, row_values in zip(chosen, ids.tolist(), values.tolist(), strict=True)
    ]
