"""Size of the state, compared with the states that models really have."""

import pytest
import torch

import seriatim
from seriatim.core.state import State, state_bytes
from seriatim.inspection.context_section import state_sizes
from seriatim.inspection.inspected_run import explainer_of
from seriatim.models import LanguageModel
from seriatim.tasks.explainer import StateReader
from seriatim.tasks.translation_explainer import SOURCE_TOKENS


def model_of(name: str, **options) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(seriatim.layer(name, 8, 8, **options), 20).eval()


def text_reader(model: LanguageModel) -> StateReader:
    def read(count: int, state: State) -> State:
        return model.advance(torch.zeros(1, count, dtype=torch.long), state)

    return StateReader(model.initial_state(1), read)


@pytest.mark.parametrize("name", ["lstm", "mamba", "self-attention", "transformer", "prior"])
def test_sizes_are_the_bytes_of_real_states(name: str) -> None:
    model = model_of(name, num_layers=2)
    found = state_sizes(text_reader(model))
    with torch.no_grad():
        for size in found:
            state = model.advance(torch.zeros(1, size, dtype=torch.long), model.initial_state(1))
            assert found[size] == state_bytes(state)
    assert (found[1_000] > found[1]) == (name in ("self-attention", "transformer"))


def test_a_window_bounds_the_state() -> None:
    found = state_sizes(text_reader(model_of("self-attention", window=50)))
    assert found[1_000] == found[100] > found[10]
    learned = state_sizes(text_reader(model_of("transformer", position="learned", max_length=64)), positions=64)
    assert list(learned) == [1, 10]


def test_a_decoder_is_measured_by_its_source(inspected) -> None:
    run = inspected["seq2seq-heads"]
    reader = explainer_of(run).state_reader()
    assert reader.source == SOURCE_TOKENS
    found = state_sizes(reader)
    for tokens, size in found.items():
        assert size == state_bytes(run.model.encode(torch.zeros(1, tokens, dtype=torch.long)))
