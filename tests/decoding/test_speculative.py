"""Speculative decoding: the text is that of plain sampling, whatever is drafted and wherever a draft ends."""

import pytest
import torch

import seriatim
from seriatim.core.state import select_state
from seriatim.counting.ngram import NGram
from seriatim.decoding.sampling import Sampling
from seriatim.decoding.speculative import ModelDraft, PromptLookup, draft_with, speculate
from seriatim.models import LanguageModel
from seriatim.models.base_models import TextModel
from seriatim.models.mixture import Mixture
from seriatim.recurrence import uncompiled

from ..exhaustive import parameters
from ..refusals import refused
from .drafting import (
    PROMPT,
    VOCABULARY,
    Babble,
    Scripted,
    begin,
    check_states,
    counted,
    drafted,
    network,
    plain,
    tokens_of,
)


@pytest.fixture(autouse=True)
def _in_plain_python():
    """Small models are not worth the seconds of a compiler."""
    with uncompiled():
        yield


EVERYDAY = ("convolution", "gru", "lstm", "mamba", "self-attention", "window")
LAYERS = parameters(seriatim.layers.names(), everyday=EVERYDAY)


@pytest.mark.parametrize("name", LAYERS)
def test_greedy_text_is_the_same_for_every_layer(name: str) -> None:
    model, greedy = network(name), Sampling(temperature=0)
    expected = plain(model, PROMPT, greedy, max_tokens=24)
    right = Scripted([*PROMPT, *expected], 0, [3, 9, 0, 1, 9])
    for draft in (right, PromptLookup(4, 1), ModelDraft(network("rnn"), 0.0)):
        generated = drafted(model, PROMPT, greedy, draft, max_tokens=24)
        assert tokens_of(generated) == expected
    check_states(
        model, PROMPT, drafted(model, PROMPT, greedy, Scripted([*PROMPT, *expected], 0, [2, 9]), max_tokens=24)
    )


@pytest.mark.parametrize("model", [counted(), Mixture([network("transformer"), counted(2)])], ids=["ngram", "mixture"])
@pytest.mark.parametrize("sampling", [Sampling(0), Sampling(0.7, top_p=0.9)], ids=["greedy", "sampled"])
def test_models_without_one_layer(model: TextModel, sampling: Sampling) -> None:
    expected = plain(model, PROMPT, sampling, max_tokens=30, seed=5)
    for draft in (PromptLookup(4, 1), draft_with(counted()), Babble()):
        generated = drafted(model, PROMPT, sampling, draft, max_tokens=30, seed=5)
        assert tokens_of(generated) == expected
    check_states(model, PROMPT, generated)


@pytest.mark.parametrize("name", ["lstm", "transformer", "mamba"])
def test_a_seed_gives_the_text_of_plain_sampling(name: str) -> None:
    model = network(name)
    for seed in range(2):
        for sampling in (Sampling(0.8, top_k=4), Sampling(1.5, min_p=0.05)):
            expected = plain(model, PROMPT, sampling, max_tokens=30, seed=seed, banned=[1])
            for draft in (Scripted([*PROMPT, *expected], 0, [9, 0, 2]), ModelDraft(model), Babble()):
                generated = drafted(model, PROMPT, sampling, draft, max_tokens=30, seed=seed, banned=[1])
                assert tokens_of(generated) == expected


def test_a_seed_gives_the_text_of_plain_sampling_for_many_words() -> None:
    """Tokens of a large vocabulary are drawn from a few candidates, in an order of their own."""
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer("gru", 6, 6), 1500).double().eval()
    with torch.no_grad():
        model.output.weight.mul_(8)
    for sampling in (Sampling(0.9, top_k=20), Sampling(top_p=0.8), Sampling(typical=0.5)):
        expected = plain(model, PROMPT, sampling, max_tokens=20, seed=3)
        for draft in (PromptLookup(4, 1), ModelDraft(model, 0.0)):
            assert tokens_of(drafted(model, PROMPT, sampling, draft, max_tokens=20, seed=3)) == expected


class Markov(TextModel):
    """The next token depends on the last one only; fast enough for thousands of texts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.vocabulary_size, self.table = VOCABULARY, 1.5 * torch.randn(VOCABULARY, VOCABULARY).double()

    def initial_state(self, batch_size: int):
        return torch.zeros(batch_size, dtype=torch.long)

    def forward(self, tokens, state=None, *, lengths=None):
        return self.table[tokens], tokens[:, -1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("draft", [Babble(), Scripted([5, 5, 2] * 9, 0, [9])], ids=["babble", "scripted"])
def test_the_distribution_is_that_of_the_model(draft) -> None:
    """Chi-squared of the first three tokens of 3000 texts against the probabilities of the model."""
    model, sampling, count = Markov(), Sampling(1.3, top_k=5), 3000
    logits, state = model.table[:1], model.initial_state(1)
    table = sampling.distribution(model.table)
    expected = (count * table[0, :, None, None] * table[:, :, None] * table).flatten()  # (V · V · V,)
    seen = torch.zeros(VOCABULARY**3).double()
    for seed in range(count):
        draft.read = 0
        a, b, c = tokens_of(speculate(model, logits, state, sampling, draft, max_tokens=3, seed=seed))
        seen[(a * VOCABULARY + b) * VOCABULARY + c] += 1
    assert seen[expected == 0].sum() == 0
    common = expected >= 5
    cells = [torch.cat([counts[common], counts[~common].sum()[None]]) for counts in (seen, expected)]
    statistic, freedom = ((cells[0] - cells[1]) ** 2 / cells[1]).sum(), int(common.sum())
    assert freedom > 30
    assert statistic < freedom + 3 * (2 * freedom) ** 0.5


def test_a_text_ends_inside_a_draft() -> None:
    model = network("lstm")
    whole = plain(model, PROMPT, Sampling(), max_tokens=40, seed=2)
    stop = whole[7]
    for right in ([9], [2], [0]):
        draft = Scripted([*PROMPT, *whole], 0, right)
        generated = drafted(model, PROMPT, Sampling(), draft, max_tokens=40, seed=2, stop=stop)
        assert tokens_of(generated) == whole[: whole.index(stop)]
        check_states(model, PROMPT, generated)
        for most in range(12):
            draft = Scripted([*PROMPT, *whole], 0, right)
            generated = drafted(model, PROMPT, Sampling(), draft, max_tokens=most, seed=2)
            assert tokens_of(generated) == whole[:most]


def test_learned_positions_end_as_without_a_draft() -> None:
    model = network("transformer", position="learned", max_length=len(PROMPT) + 12)
    whole = plain(model, PROMPT, Sampling(0), max_tokens=12)
    generated = drafted(model, PROMPT, Sampling(0), Scripted([*PROMPT, *whole], 0, [9]), max_tokens=12)
    assert tokens_of(generated) == whole
    steps = speculate(model, *begin(model, PROMPT), Sampling(0), Babble(), max_tokens=13, seed=0)
    assert [next(steps).token for _ in range(12)] == whole
    with refused("size"):
        next(steps)
    small = ModelDraft(network("transformer", position="learned", max_length=len(PROMPT) + 3), 0.0)
    other = network("gru")
    assert tokens_of(drafted(other, PROMPT, Sampling(0), small, max_tokens=20)) == plain(
        other, PROMPT, Sampling(0), max_tokens=20
    )


def test_fewer_passes_are_needed() -> None:
    model = network("gru")
    expected = plain(model, PROMPT, Sampling(0), max_tokens=60)
    calls = []
    for module in (model.layer,):
        module.register_forward_hook(lambda *_: calls.append(1))
    drafted(model, PROMPT, Sampling(0), Scripted([*PROMPT, *expected], 0, [9]), max_tokens=60)
    assert len(calls) < 15


def test_what_cannot_go_on_is_said() -> None:
    class Nothing(NGram):
        def forward(self, tokens, state=None, *, lengths=None):
            logits, state = super().forward(tokens, state, lengths=lengths)
            return logits.masked_fill((tokens == 4).unsqueeze(2), -torch.inf), state

    model = Nothing(counted().table.orders)
    settings = {"max_tokens": 60, "seed": 3}
    with pytest.warns(UserWarning, match="probability 0"):
        expected = plain(model, PROMPT, Sampling(), **settings)
    with pytest.warns(UserWarning, match="probability 0"):
        generated = drafted(model, PROMPT, Sampling(), Scripted([*PROMPT, *expected], 0, [9, 1]), **settings)
    assert tokens_of(generated) == expected


def test_bad_arguments_are_refused() -> None:
    model = network()
    logits, state = begin(model, [0])
    two = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="one text"):
        next(speculate(model, logits[two], select_state(state, two), Sampling(), Babble(), max_tokens=1, seed=0))
    with refused("range", "max_ngram"):
        PromptLookup(2, 3)
    with refused("range", "min_ngram"):
        PromptLookup(2, 0)
    with refused("range", "threshold"):
        ModelDraft(model, 1.5)
