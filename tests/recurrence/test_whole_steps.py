"""One step of a whole model in one call of compiled code computes what its layers compute one after another."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.contract import SequenceLayer
from seriatim.core.state import State, map_state, select_state, state_leaves
from seriatim.models.language_model import LanguageModel
from seriatim.recurrence import explain, uncompiled
from seriatim.recurrence.fast_path import STEPS, run_step

from ..refusals import refused

SIZE = 8
NAMES = [name for name in seriatim.layers.names() if name != "prior"]
VARIANTS = {
    "window of 3": ("transformer", {"window": 3}),
    "alibi": ("transformer", {"position": "alibi"}),
    "sinusoidal": ("transformer", {"position": "sinusoidal"}),
    "learned": ("transformer", {"position": "learned"}),
    "shared keys": ("attention", {"num_heads": 4, "num_kv_heads": 2}),
    "norm last": ("transformer", {"norm": "layer", "norm_first": False, "feed_forward": "gelu", "bias": True}),
    "rotary without maps": ("self-attention", {"position": "rotary", "scaled": True}),
    "odd heads": ("attention", {"num_heads": 8}),
    "mixed": ("mamba,lstm,transformer", {}),
}
CASES = {name: (name, {}) for name in NAMES} | VARIANTS


def made(name: str, options: dict[str, object], layers: int = 2) -> SequenceLayer:
    torch.manual_seed(0)
    count = name.count(",") + 1 if "," in name else layers
    return seriatim.layer(name, SIZE, SIZE, num_layers=count, **options).double().eval()


def run(layer: nn.Module, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    result = run_step(layer, inputs, state)
    assert result is not None, explain(layer)
    return result


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_compiled_steps_are_the_layers_steps(case: str) -> None:
    layer = made(*CASES[case])
    state = expected_state = select_state(layer.initial_state(2), torch.tensor([0, 1, 1]))
    for _ in range(5):
        inputs = torch.randn(3, SIZE).double()
        before = [leaf.clone() for leaf in state_leaves(state)]
        outputs, after = run(layer, inputs, state)
        with uncompiled():
            expected, expected_state = layer.step(inputs, expected_state)
        assert all(map(torch.equal, before, state_leaves(state))), "a given state was changed"
        torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)
        for leaf, other in zip(state_leaves(after), state_leaves(expected_state), strict=True):
            torch.testing.assert_close(leaf, other, rtol=1e-10, atol=1e-10)
        state = after


@pytest.mark.parametrize("name", ["lstm", "transformer", "mamba", "s4d"])
@torch.no_grad()
def test_two_texts_continue_from_one_state(name: str) -> None:
    layer = made(name, {})
    start = layer.initial_state(1)
    inputs = torch.randn(4, 1, SIZE).double()
    for row in inputs[:2]:
        _, start = run(layer, row, start)
    first, _ = run(layer, inputs[2], start)
    run(layer, inputs[3], start)
    again, _ = run(layer, inputs[2], start)
    assert torch.equal(first, again)


@torch.no_grad()
def test_rows_that_have_read_different_numbers_of_inputs() -> None:
    layer = made("transformer", {})
    inputs, lengths = torch.randn(3, 6, SIZE).double(), torch.tensor([2, 5, 0])
    _, state = layer(inputs[:, :5], lengths=lengths)
    outputs, _ = run(layer, inputs[:, 5], state)
    for row, length in enumerate(lengths.tolist()):
        expected, _ = layer(torch.cat([inputs[row : row + 1, :length], inputs[row : row + 1, 5:]], dim=1))
        torch.testing.assert_close(outputs[row], expected[0, -1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["lstm", "transformer", "mamba"])
@torch.no_grad()
def test_threads_share_products_heads_and_long_rows(name: str, threads: int) -> None:
    torch.manual_seed(0)
    layer = seriatim.layer(name, 520, 520).eval()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        state, inputs = layer.initial_state(1), torch.randn(1, 520)
        for _ in range(3):
            with uncompiled():
                expected, _ = layer.step(inputs, state)
            outputs, state = run(layer, inputs, state)
            torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def language_model(name: str = "transformer", **options: object) -> LanguageModel:
    return LanguageModel(made(name, options), 11, tie_weights=True).double().eval()


@pytest.mark.parametrize("name", ["gru", "transformer", "mamba", "window"])
@torch.no_grad()
def test_the_embedding_and_the_output_layer_are_part_of_the_step(name: str) -> None:
    model = language_model(name)
    tokens = torch.randint(11, (2, 5))
    state = model.initial_state(2)
    expected, _ = model(tokens)
    for time in range(5):
        logits, state = run(model, tokens[:, time], state)
        torch.testing.assert_close(logits, expected[:, time])
    assert "one step: one call of compiled code" in explain(model)


@torch.no_grad()
def test_changed_weights_are_packed_again() -> None:
    model = language_model()
    tokens, state = torch.tensor([3]), model.initial_state(1)
    before, _ = run(model, tokens, state)
    model.output.bias += 1.0
    after, _ = run(model, tokens, state)
    torch.testing.assert_close(after, before + 1.0)


@torch.no_grad()
def test_indices_outside_a_table_are_reported_as_without_compiled_code() -> None:
    model = language_model()
    with pytest.raises(IndexError):
        model.step(torch.tensor([11]), model.initial_state(1))
    model = language_model(position="learned", max_length=2)
    state = model.initial_state(1)
    for _ in range(2):
        _, state = model.step(torch.tensor([1]), state)
    with refused("size"):
        model.step(torch.tensor([1]), state)


@torch.no_grad()
def test_a_layer_that_is_not_compiled_runs_as_it_is_written() -> None:
    layer = made("transformer", {"num_experts": 3})
    inputs, state = torch.randn(2, SIZE).double(), layer.initial_state(2)
    assert run_step(layer, inputs, state) is None
    assert "topk is not among the operations that are compiled" in explain(layer)
    expected, _ = layer(inputs.unsqueeze(1))
    torch.testing.assert_close(layer.step(inputs, state)[0], expected[:, 0])


@torch.no_grad()
def test_a_step_under_autocast_rounds_weights_to_bfloat16() -> None:
    torch.manual_seed(0)
    model = LanguageModel(seriatim.layer("transformer", 64, 64), 50).eval()
    tokens, state = torch.tensor([3, 4]), model.initial_state(2)
    exact, _ = run(model, tokens, state)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, after = run(model, tokens, map_state(torch.clone, state))
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05
    assert all(leaf.dtype in (torch.float32, torch.int64) for leaf in state_leaves(after))


@torch.no_grad()
def test_one_program_for_any_number_of_rows() -> None:
    model = language_model("mamba,transformer")
    for batch in (2, 5, 1, 3):
        tokens = torch.randint(11, (batch, 4))
        state = model.initial_state(batch)
        for time in range(4):
            logits, state = run(model, tokens[:, time], state)
        torch.testing.assert_close(logits, model(tokens)[0][:, -1])
    assert len(STEPS.of(model).entries) == 1


@torch.no_grad()
def test_a_decoder_attends_to_memories_of_any_length() -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("transformer", SIZE, SIZE, num_layers=2, memory_size=6).double().eval()
    for time in (4, 7, 0):
        memory, lengths = torch.randn(3, time, 6).double(), torch.tensor([time, time // 2, 0])
        state = layer.initial_state(3, memory, lengths)
        inputs = torch.randn(3, 4, SIZE).double()
        expected, _ = layer(inputs, state)
        for t in range(4):
            before = state_leaves(state)
            outputs, state = run(layer, inputs[:, t], state)
            torch.testing.assert_close(outputs, expected[:, t])
            unchanged = [old is new for old, new in zip(before, state_leaves(state), strict=True)]
            assert sum(unchanged) == 4, "keys, values and lengths of the memory of both layers"
