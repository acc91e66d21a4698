"""Probabilities from the scores of a model. NaN and infinity stop here, so that no figure is made from them.

Weights that are finite, but damaged or far too large, give scores that are NaN or infinite. Functions such as ``max``
and ``argmax`` accept these, and return what looks like an answer. A single −∞ is right: the logarithm of probability 0.
All scores of one choice can be −∞ in an n-gram model without smoothing, but not in a network.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from ..core.errors import InputError
from .base_models import TextModel

T = TypeVar("T")
REMEDY = "restore the model.safetensors of the run, or train it again with a lower training.learning_rate"


class NotFiniteError(InputError):
    """The scores of a model are NaN or infinite; ``location`` is the run of the model, if it is known."""

    kind = "figure"

    def __init__(self, remedy: str = REMEDY, location: str = "") -> None:
        where = f"{location}: " if location else ""
        super().__init__(f"{where}the scores that the model computes are NaN or infinite; {remedy}")
        self.remedy, self.place = remedy, location


@contextmanager
def naming(location: object) -> Iterator[None]:
    """Name a run in the error of scores that its model computes; those of a run inside name that one."""
    try:
        yield
    except NotFiniteError as error:
        raise (error if error.place else NotFiniteError(error.remedy, str(location))) from None


def named(location: object, items: Iterator[T]) -> Iterator[T]:
    """Yield items while `naming` the run whose model computes them."""
    with naming(location):
        yield from items


def checked_losses(losses: Tensor) -> Tensor:
    """Return values of −log P, +∞ allowed, as they are; raise NotFiniteError if one is NaN or −∞."""
    if not bool((losses > -math.inf).all()):
        raise NotFiniteError
    return losses


def check_finite(values: Tensor) -> None:
    """Raise NotFiniteError unless all values are finite, such as the largest score of every choice."""
    if bool((values - values).any()):  # 0 for what is finite, else NaN
        raise NotFiniteError


def softmax(scores: Tensor) -> Tensor:
    """Return probabilities over the last dimension, in float64."""
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float64)
    check_finite(probabilities[..., :1])  # NaN, +∞ or nothing but −∞ makes all of them NaN
    return probabilities


def log_softmax(scores: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return log P over the last dimension."""
    log_probabilities = torch.log_softmax(scores, dim=-1, dtype=dtype)
    if bool(log_probabilities[..., :1].isnan().any()):
        raise NotFiniteError
    return log_probabilities


def token_log_probabilities(model: object, logits: Tensor) -> Tensor:
    """Return log P of all tokens ``(..., vocabulary)``, in float64, given the logits of a language model.

    Those of a model that gives log probabilities are returned as they are: an n-gram model that was imported need not
    sum to 1, and all tokens may be impossible.
    """
    if not gives_log_probabilities(model):
        return log_softmax(logits)
    log_probabilities = logits.double()
    if not bool((log_probabilities < math.inf).all()):
        raise NotFiniteError
    return log_probabilities


def gives_log_probabilities(model: object) -> bool:
    """Return whether the logits of a model are log probabilities, of which all may be −∞; those of networks are not."""
    return isinstance(model, TextModel) and model.gives_log_probabilities
