"""What attention keeps of the past: how it grows, who shares it, what it costs, how it is saved."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import seriatim
from seriatim.core.key_value_cache import KeyValueCache, append, newest
from seriatim.core.state import State, select_state, state_bytes, state_leaves

WIDTH = 12
SEEN = torch.zeros(1)  # appending does not look at the number of inputs


@pytest.mark.parametrize("window", [None, 6])
def test_the_cache_grows_without_copies_and_old_states_stay(window: int | None) -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", WIDTH, WIDTH, window=window).eval(), torch.randn(1, 200, WIDTH)
    whole, _ = layer(x)
    with torch.inference_mode():
        state, states, buffers = layer.initial_state(1), [], set()
        for t in range(200):
            output, state = layer.step(x[:, t], state)
            torch.testing.assert_close(output, whole[:, t])
            states.append((state, state[0].clone()))
            buffers.add(state[0].untyped_storage().data_ptr())
    for kept, copy in states:
        assert torch.equal(kept[0], copy)
    assert len(buffers) < 12 if window is None else len(buffers) < 50


def test_two_texts_may_go_on_from_one_state() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", WIDTH, WIDTH).eval(), torch.randn(3, 80, WIDTH)
    with torch.no_grad():
        state = layer.initial_state(1)
        for t in range(70):
            _, state = layer.step(x[:1, t], state)
        ends = []
        for row in range(3):
            end = state
            for t in range(70, 80):
                output, end = layer.step(x[row : row + 1, t], end)
            ends.append(output)
            expected, _ = layer(torch.cat([x[:1, :70], x[row : row + 1, 70:]], dim=1))
            torch.testing.assert_close(output, expected[:, -1])
    both, _ = layer.step(x[:, 70], select_state(state, torch.zeros(3, dtype=torch.long)))
    alone, _ = layer.step(x[1:2, 70], state)
    torch.testing.assert_close(both[1:2], alone)


def test_two_threads_may_go_on_from_one_state() -> None:
    with torch.inference_mode():
        start = append(KeyValueCache(torch.zeros(1, 8, 600, 64), SEEN), torch.zeros(1, 8, 1, 64), SEEN)

    def go_on(value: int) -> bool:
        with torch.inference_mode():
            found = append(start, torch.full((1, 8, 400, 64), float(value)), SEEN).kept
            return found.shape[2] == 1001 and bool((found[:, :, 601:] == value).all())

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(go_on, range(40)))


def storage_bytes(state: State) -> int:
    return sum(leaf.untyped_storage().nbytes() for leaf in state_leaves(state))


@pytest.mark.parametrize("options", [{"num_heads": 8, "num_kv_heads": 1}, {"window": 16}, {"window": 1}], ids=str)
def test_a_state_keeps_little_more_in_memory_than_it_says(options: dict) -> None:
    layer, x = seriatim.layer("attention", 64, 64, **options).eval(), torch.randn(1, 3000, 64)
    with torch.inference_mode():
        _, state = layer(x)
        assert storage_bytes(state) <= 2 * state_bytes(state) + 64 * state_bytes(layer(x[:, :1])[1])


def test_what_is_kept_does_not_change_with_the_callers_tensor() -> None:
    layer, x = seriatim.layer("self-attention", 4, 4), torch.randn(1, 1, 4)
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            _, state = layer(x)
            before = state[0].clone()
            x.add_(1)
            assert torch.equal(state[0], before)


def test_what_was_kept_in_inference_mode_can_go_on_outside_it() -> None:
    past, new = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 1, 2)
    with torch.inference_mode():
        inside = append(append(KeyValueCache(past, SEEN), new, SEEN), new, SEEN)
    with torch.no_grad():
        outside = append(inside, new, SEEN)
    torch.testing.assert_close(outside.kept, torch.cat([past, new, new, new], dim=2))
    torch.testing.assert_close(newest(outside, 2).kept, torch.cat([new, new], dim=2))
    torch.testing.assert_close(inside.kept, outside.kept[:, :, :5])


def test_a_saved_cache_goes_on_with_the_same_bits(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    from seriatim.core.state import state_from_dict, state_to_dict

    torch.manual_seed(0)
    layer, x = seriatim.layer("transformer", 64, 64, num_layers=2).eval(), torch.randn(1, 90, 64)
    with torch.inference_mode():
        state = layer.initial_state(1)
        for t in range(75):
            _, state = layer.step(x[:, t], state)
        save_file(state_to_dict(state), tmp_path / "state.safetensors")
        loaded = state_from_dict(load_file(tmp_path / "state.safetensors"), layer.initial_state(1))
        for t in range(75, 90):
            output, state = layer.step(x[:, t], state)
            again, loaded = layer.step(x[:, t], loaded)
            assert torch.equal(output, again)
