"""The product of several taggers: an ensemble, or a network together with its simple baseline.

    P(y) ∝ Π_k P_k(y)^{w_k},  Σ_k w_k = 1

Each tagger is a conditional random field, or chooses each tag independently, which is a field whose transitions have
score 0. So the product is such a field, too: its scores and its transitions are the weighted means of theirs.

C. Genest and J. Zidek, "Combining probability distributions: a critique and an annotated bibliography", Statistical
Science 1 (1986), logarithmic opinion pools; A. Smith, T. Cohn and M. Osborne, "Logarithmic opinion pools for
conditional random fields", ACL 2005.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..data.tagged_corpus import TaggedBatch
from .crf import CRF
from .tagger import TagModel


class TaggerProduct(TagModel):
    """Sentences to scores of tags ``(batch, time, num_tags)``.

    Args:
        models: taggers of the same tags, at least one.
        weights: w, not negative; None for equal weights.
    """

    def __init__(self, models: Sequence[TagModel], weights: Sequence[float] | None = None) -> None:
        shares = [1 / len(models)] * len(models) if weights is None else list(weights)
        super().__init__(_mean_field(models, shares))
        self.models = cast(Sequence[TagModel], nn.ModuleList(models))
        self.weights = shares

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Return the weighted mean of the models' scores."""
        parts = (share * model(batch).float() for share, model in zip(self.weights, self.models, strict=True))
        return torch.stack(list(parts)).sum(0)


def _mean_field(models: Sequence[TagModel], weights: Sequence[float]) -> CRF | None:
    """Return a field with the weighted sum of the models' transitions; only what all of them allow is possible."""
    fields = [(share, model.crf) for share, model in zip(weights, models, strict=True) if model.crf is not None]
    if not fields:
        return None
    bounds = [crf.allowed for _, crf in fields if crf.allowed is not None]
    mean = CRF(fields[0][1].num_tags, torch.stack(bounds).all(0) if bounds else None)
    for name, parameter in mean.named_parameters():
        parameter.data = torch.stack([share * crf.get_parameter(name).detach() for share, crf in fields]).sum(0)
    return mean.requires_grad_(False)
