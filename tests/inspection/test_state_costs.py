"""Size of the state, compared with the states that models really have."""

import functools

import pytest
import torch

import seriatim
from seriatim.core.state import State, state_bytes
from seriatim.inspection.context_section import state_sizes
from seriatim.inspection.inspected_run import explainer_of
from seriatim.models import LanguageModel


def model_of(name: str, **options) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(seriatim.layer(name, 8, 8, **options), 20).eval()


def after(model: LanguageModel, tokens: int) -> State:
    return model.advance(torch.zeros(1, tokens, dtype=torch.long), model.initial_state(1))


@pytest.mark.parametrize("name", ["lstm", "mamba", "self-attention", "transformer", "prior"])
def test_sizes_are_the_bytes_of_real_states(name: str) -> None:
    model = model_of(name, num_layers=2)
    found, (step,) = state_sizes(functools.partial(after, model)), torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        state = model.initial_state(1)
        for size in range(1, 11):
            state = model.step(step, state)[1]
            assert size not in found or found[size] == state_bytes(state)
    assert (found[1_000] > found[1]) == (name in ("self-attention", "transformer"))


def test_a_window_bounds_the_state() -> None:
    found = state_sizes(functools.partial(after, model_of("self-attention", window=50)))
    assert found[1_000] == found[100] > found[10]
    learned = model_of("transformer", position="learned", max_length=64)
    assert list(state_sizes(functools.partial(after, learned), positions=64)) == [1, 10]


def test_a_decoder_is_measured_by_its_source(inspected) -> None:
    run = inspected["seq2seq-heads"]
    found = state_sizes(explainer_of(run).state_after)
    for tokens, size in found.items():
        assert size == state_bytes(run.model.encode(torch.zeros(1, tokens, dtype=torch.long)))
