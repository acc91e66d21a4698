"""Rare words taken for unknown in training.

G. Lample et al., "Neural architectures for named entity recognition", NAACL 2016: what stands once in the training text
is at times the unknown word, whose embedding would never be trained otherwise.
"""

import torch
from torch import Tensor

UNKNOWN = 1
"""The unknown token of tokenizers that have one."""


def drop_words(words: Tensor, once: Tensor | None, rate: float) -> Tensor:
    """Ids ``(batch, time)`` of which `UNKNOWN` replaces what ``once`` marks, each with probability ``rate``."""
    if once is None or not rate:
        return words
    return words.masked_fill(once & (torch.rand(words.shape, device=words.device) < rate), UNKNOWN)
