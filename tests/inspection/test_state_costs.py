"""Size of the state, compared with the states that models really have."""

import pytest
import torch

import seriatim
from seriatim.core.state import State, state_bytes
from seriatim.inspection.context_section import state_costs
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
def test_costs_are_the_bytes_of_real_states(name: str) -> None:
    model, sizes = model_of(name, num_layers=2), (1, 10, 1200)
    costs = state_costs(text_reader(model), sizes=sizes)
    with torch.no_grad():
        for size in sizes:
            state = model.advance(torch.zeros(1, size, dtype=torch.long), model.initial_state(1))
            assert sum(cost.sizes[size] for cost in costs) == state_bytes(state)
    assert any(cost.growth == "grows" for cost in costs) == (name in ("self-attention", "transformer"))


def test_a_window_bounds_the_state() -> None:
    costs = state_costs(text_reader(model_of("self-attention", window=50)))
    (window,) = (cost for cost in costs if cost.growth != "constant")
    assert window.growth == "bounded"
    assert window.sizes[10_000] == window.sizes[1_000] == 49 * window.sizes[1]
    learned = state_costs(text_reader(model_of("transformer", position="learned", max_length=64)), positions=64)
    assert {tuple(cost.sizes) for cost in learned} == {(1, 10)}


def test_a_decoder_is_measured_after_a_source(inspected) -> None:
    reader = explainer_of(inspected["seq2seq-heads"]).state_reader()
    assert reader.source == SOURCE_TOKENS
    assert f"a source of {SOURCE_TOKENS} tokens" in reader.text
    assert {cost.growth for cost in state_costs(reader)} >= {"constant", "grows"}
