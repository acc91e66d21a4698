"""The product of taggers, against sums over all sequences of tags."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from seriatim.core.lengths import valid_mask
from seriatim.data.tagged_corpus import NO_TAG, TaggedBatch
from seriatim.models.crf import CRF, bio_transitions
from seriatim.models.tagger import TaggerProduct, TagModel

TAGS = ["B-X", "I-X", "O"]
LENGTHS = torch.tensor([3, 1, 0])
WEIGHT = 0.3


class Fixed(TagModel):
    """Scores that depend on no words."""

    def __init__(self, scores: Tensor, crf: CRF | None) -> None:
        super().__init__(crf)
        self.scores = scores

    def forward(self, batch: TaggedBatch) -> Tensor:
        return self.scores


def field(kind: str) -> CRF | None:
    if kind == "softmax":
        return None
    crf = CRF(3, bio_transitions(TAGS) if kind == "chunks" else None)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


def batch(tags: Tensor) -> TaggedBatch:
    tags = torch.where(valid_mask(LENGTHS, 3), tags, NO_TAG)
    return TaggedBatch(torch.zeros_like(tags), LENGTHS, np.arange(len(LENGTHS)), tags=tags)


@pytest.mark.parametrize("kinds", list(itertools.product(["softmax", "all", "chunks"], repeat=2)))
def test_the_probability_of_a_sequence_is_the_normalized_product(kinds: tuple[str, str]) -> None:
    torch.manual_seed(3)
    models = [Fixed(torch.randn(3, 3, 3), field(kind)) for kind in kinds]
    blended = TaggerProduct(models, [1 - WEIGHT, WEIGHT])

    def log_probabilities(model: TagModel) -> Tensor:  # (sequences, rows)
        with torch.no_grad():
            found = []
            for tags in itertools.product(range(3), repeat=3):
                one = batch(torch.tensor([tags] * 3))
                found.append(-model.losses(model(one), one))
            return torch.stack(found)

    network, baseline, both = map(log_probabilities, (*models, blended))
    product = (1 - WEIGHT) * network[:, 0] + WEIGHT * baseline[:, 0]
    torch.testing.assert_close(both[:, 0], product - product.logsumexp(0), atol=1e-4, rtol=1e-4)
    first = torch.arange(0, 27, 9)  # sequences with different first tags
    product = (1 - WEIGHT) * network[first, 1] + WEIGHT * baseline[first, 1]
    torch.testing.assert_close(both[first, 1], product - product.logsumexp(0), atol=1e-4, rtol=1e-4)
    assert (both[:, 2] == 0).all()


@pytest.mark.parametrize("kinds", [("softmax", "chunks"), ("chunks", "chunks"), ("softmax", "softmax")])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_weight_of_zero_or_one_leaves_one_model(kinds: tuple[str, str], weight: float) -> None:
    torch.manual_seed(4)
    models = [Fixed(torch.randn(3, 3, 3), field(kind)) for kind in kinds]
    blended, one = TaggerProduct(models, [1 - weight, weight]), batch(torch.zeros(3, 3, dtype=torch.long))
    alone = models[int(weight)]
    if weight == 1 or kinds[0] == kinds[1]:  # the transitions that only the baseline forbids stay forbidden
        torch.testing.assert_close(blended.marginals(blended(one), LENGTHS)[0], alone.marginals(alone(one), LENGTHS)[0])


@pytest.mark.parametrize("kind", ["softmax", "all", "chunks"])
def test_an_ensemble_of_a_tagger_with_itself_is_the_tagger(kind: str) -> None:
    torch.manual_seed(5)
    model, one = Fixed(torch.randn(3, 3, 3), field(kind)), batch(torch.zeros(3, 3, dtype=torch.long))
    both = TaggerProduct([model, model])
    torch.testing.assert_close(both.losses(both(one), one), model.losses(model(one), one))
    assert both.decode(both(one), LENGTHS) == model.decode(model(one), LENGTHS)
