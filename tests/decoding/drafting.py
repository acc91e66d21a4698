"""Small models, texts and drafts for the tests of speculative decoding."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch

import seriatim
from seriatim.core.state import map_state
from seriatim.counting.ngram import NGram
from seriatim.counting.ngrams.counts import count_ngrams
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.table import orders_of
from seriatim.decoding.sampling import Sampling, read, sample
from seriatim.decoding.speculative import Draft, Generated, speculate
from seriatim.models import LanguageModel
from seriatim.models.base_models import TextModel

VOCABULARY = 7


class Scripted:
    """Drafts the true continuation with errors: each call takes the next numbers of right tokens."""

    def __init__(self, text: Sequence[int], start: int, right: Sequence[int]) -> None:
        self.text, self.read, self.right = list(text), start, itertools.cycle(right)

    def append(self, tokens: Sequence[int]) -> None:
        self.read += len(tokens)

    def propose(self, limit: int) -> list[int]:
        right = next(self.right)
        draft = self.text[self.read : self.read + limit]
        return [*draft[:right], *((token + 1) % VOCABULARY for token in draft[right:])]


class Babble:
    """Drafts tokens that do not depend on the text."""

    def append(self, tokens: Sequence[int]) -> None: ...

    def propose(self, limit: int) -> list[int]:
        return [2, 3, 2, 4, 2, 3, 3, 2][:limit]


def network(name: str = "gru", seed: int = 0, **options) -> LanguageModel:
    torch.manual_seed(seed)
    made = LanguageModel(seriatim.layer(name, 6, 6, **options), VOCABULARY).double().eval()
    with torch.no_grad():
        made.output.weight.mul_(8)
    return made


def counted(order: int = 3, seed: int = 0) -> NGram:
    generator = np.random.default_rng(seed)
    ids = np.concatenate([np.append(generator.choice(6, 12, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]) + 1, 0)] * 9)
    levels = count_ngrams(ids, order, VOCABULARY)
    return NGram(orders_of(smoothed(levels, VOCABULARY, Smoothing("witten-bell")))).eval()


def begin(model: TextModel, prompt: Sequence[int]):
    return read(model, torch.tensor([list(prompt)]), model.initial_state(1))


def plain(model: TextModel, prompt: Sequence[int], sampling: Sampling, *, seed: int = 0, **settings) -> list[int]:
    drawn = sample(model, *begin(model, prompt), sampling, seeds=[seed], **settings)
    return [token for step in drawn for token in step.tokens if token is not None]


def drafted(
    model: TextModel, prompt: Sequence[int], sampling: Sampling, draft: Draft, *, seed: int = 0, **settings
) -> list[Generated]:
    draft.append(prompt)
    return list(speculate(model, *begin(model, prompt), sampling, draft, seed=seed, **settings))


def tokens_of(generated) -> list[int]:
    return [step.token for step in generated]


@torch.inference_mode()
def check_states(model: TextModel, prompt: Sequence[int], generated) -> None:
    """After every token, the state and the logits are those of reading the text."""
    logits, state = begin(model, prompt)
    for step in generated:
        logits, state = model.step(torch.tensor([step.token]), state)
        torch.testing.assert_close(step.logits, logits)
        there = step.state
        if step.unread:
            _, there = read(model, torch.tensor([step.unread]), there)
        map_state(lambda a, b: torch.testing.assert_close(a, b) or a, there, state)


PROMPT = [0, 1, 2, 3, 1, 2, 3, 1, 2]
