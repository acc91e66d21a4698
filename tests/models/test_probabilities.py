"""Scores that are NaN or infinite stop where a token is chosen or scored, by whatever way."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from seriatim.core.lengths import valid_mask
from seriatim.decoding.beam import Beam, beam_search
from seriatim.decoding.continuous_batch import ContinuousBatch
from seriatim.decoding.sampling import TextRequest, score_tokens
from seriatim.decoding.token_draws import Sampling
from seriatim.evaluation.context_use import losses_after
from seriatim.evaluation.word_surprisal import SurprisalReader
from seriatim.models.base_models import TextModel
from seriatim.models.crf import CRF
from seriatim.models.language_model import LanguageModel
from seriatim.models.mixture import Mixture
from seriatim.models.probabilities import NotFiniteError, log_softmax, softmax, token_log_probabilities
from seriatim.models.tagger import TagModel

from ..decoding.drafting import PROMPT, VOCABULARY, Babble, begin, counted, drafted, network, plain

IDS = torch.tensor([PROMPT])


def batched(model: TextModel, sampling: Sampling) -> None:
    batch = ContinuousBatch(model)
    batch.add(TextRequest(PROMPT, 0, 3, sampling))
    while not batch.is_empty:
        batch.advance()


def surprisals(model: TextModel) -> None:
    SurprisalReader(model, np.arange(VOCABULARY) % 2 == 0).read([np.array(PROMPT)])


CHOICES: dict[str, Callable[[TextModel], object]] = {
    "sample": lambda model: plain(model, PROMPT, Sampling(), max_tokens=3),
    "greedy": lambda model: plain(model, PROMPT, Sampling(0.0), max_tokens=3),
    "filtered": lambda model: plain(model, PROMPT, Sampling(top_k=3, top_p=0.5), max_tokens=3),
    "batch": lambda model: batched(model, Sampling()),
    "greedy batch": lambda model: batched(model, Sampling(0.0)),
    "draft": lambda model: drafted(model, PROMPT, Sampling(), Babble(), max_tokens=3),
    "greedy draft": lambda model: drafted(model, PROMPT, Sampling(0.0), Babble(), max_tokens=3),
    "beam": lambda model: beam_search(model, begin(model, PROMPT)[1], Beam(3), max_length=3),
}
SCORES: dict[str, Callable[[TextModel], object]] = {
    "losses": lambda model: model.token_losses(IDS, IDS),
    "alternatives": lambda model: score_tokens(model, begin(model, PROMPT)[0], [1], 3),
    "surprisal": surprisals,
    "contexts": lambda model: losses_after(model, IDS[0].numpy(), np.arange(IDS.shape[1]), 2),
    "mixture": lambda model: token_log_probabilities(model, Mixture([model, counted()])(IDS)[0]),
}


def spoiled(change: Callable[[Tensor], object]) -> LanguageModel:
    """A network of which a few logits, or all of them, are changed."""
    model = network()
    with torch.no_grad():
        change(model.output.bias)
    return model


@pytest.mark.parametrize("use", [*CHOICES.values(), *SCORES.values()], ids=[*CHOICES, *SCORES])
def test_logits_of_a_network_are_finite_or_refused(use: Callable[[TextModel], object]) -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(NotFiniteError, match="NaN or infinite"):
            use(spoiled(lambda bias, value=value: bias[3:4].fill_(value)))
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        use(spoiled(lambda bias: bias.fill_(-math.inf)))
    use(spoiled(lambda bias: bias[3:5].fill_(-math.inf)))  # probabilities of 0 are right
    use(spoiled(lambda bias: bias[3:4].fill_(1e300)))


def test_a_beam_without_any_sequence_is_no_answer() -> None:
    """All probability is that of a token that may not be chosen."""
    model = spoiled(lambda bias: bias.copy_(1e308 * torch.where(torch.arange(VOCABULARY) == 3, 1, -1).double()))
    with pytest.raises(NotFiniteError):
        beam_search(model, begin(model, PROMPT)[1], Beam(2, banned=(3,)), max_length=3)


def test_all_tokens_may_be_impossible_for_a_model_that_is_counted() -> None:
    model, logits = counted(), torch.full((2, VOCABULARY), -math.inf)
    logits[1] = -torch.arange(VOCABULARY).float()  # which need not sum to 1, as in a file of another program
    assert torch.equal(token_log_probabilities(model, logits), logits.double())
    with pytest.raises(NotFiniteError):
        token_log_probabilities(model, logits.index_fill(1, torch.tensor([2]), math.nan))
    with pytest.raises(NotFiniteError):
        token_log_probabilities(network(), logits)


@pytest.mark.parametrize("function", [softmax, log_softmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_choice_among_many_is_enough(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    for value in (math.nan, math.inf):
        for place in (0, 40, 99):
            scores = torch.randn(50, 100).to(dtype)
            assert function(scores).dtype == torch.float64
            scores[31, place] = value
            with pytest.raises(NotFiniteError):
                function(scores)
    with pytest.raises(NotFiniteError):
        function(torch.full((1, 5), -math.inf))
    assert function(torch.full((0, 5), math.nan)).shape == (0, 5)


@pytest.mark.parametrize("field", [None, CRF(3)])
def test_scores_of_tags_are_finite_or_refused(field: CRF | None) -> None:
    model, lengths, clean = TagModel(field), torch.tensor([4, 2, 0]), torch.randn(3, 4, 3)
    padding = ~valid_mask(lengths, 4).unsqueeze(2)
    for value in (math.nan, math.inf, 3e38):
        scores = clean.masked_fill(padding, value)
        tags = model.decode(scores, lengths)
        assert [len(row) for row in tags] == lengths.tolist()
        assert np.isfinite([share for row in model.probabilities(scores, lengths, tags) for share in row]).all()
    for value in (math.nan, math.inf):
        scores = clean.clone()
        scores[1, 1, 2] = value
        for use in (model.decode, model.marginals):
            with pytest.raises(NotFiniteError):
                use(scores, lengths)
    with pytest.raises(NotFiniteError):
        model.decode(torch.full((1, 2, 3), -math.inf), torch.tensor([2]))
