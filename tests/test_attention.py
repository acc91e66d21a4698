"""Attention: agreement with `torch.nn`, its scores, positions, cache and memory."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import seriatim
from seriatim.errors import InputError
from seriatim.layers.cache import append, newest
from seriatim.layers.cross_attention import CrossAttention
from seriatim.layers.positions import Rotary, sinusoids
from seriatim.layers.scoring import SCORES, attend, attention_weights, scoring
from seriatim.state import State, select_state, state_bytes, state_leaves

WIDTH, HEADS, BATCH, TIME = 12, 3, 4, 9


def randn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def like_torch(theirs: nn.MultiheadAttention, ours: nn.Module) -> dict[str, Tensor]:
    """Their parameters under our names, so that gradients reach them."""
    found = {"leave.weight": theirs.out_proj.weight, "leave.bias": theirs.out_proj.bias}
    for kind, whole in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        if isinstance(ours, CrossAttention):
            query, *memory = whole.chunk(3)
            found |= {f"query.{kind}": query, f"key_value.{kind}": torch.cat(memory)}
        else:
            found[f"enter.{kind}"] = whole
    assert set(found) == {name for name, _ in ours.named_parameters()}
    return found


class WithMemory(nn.Module):
    """Cross-attention as one function of inputs and memory."""

    def __init__(self, layer: CrossAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        return self.layer(x, self.layer.initial_state(len(x), memory, lengths))[0]


def same_gradients(first: Tensor, second: Tensor, sources: list[Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=1e-10)
    torch.manual_seed(9)
    direction = torch.randn_like(first)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), sources) for x in (first, second))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_equal_to_multihead_attention(causal: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    ours = seriatim.layer("attention", WIDTH, WIDTH, num_heads=HEADS, position="none", bias=True, causal=causal)
    x, lengths = randn(BATCH, TIME, WIDTH).requires_grad_(), torch.tensor([9, 4, 1, 6])
    padding = torch.arange(TIME) >= lengths.unsqueeze(1)
    mask = torch.ones(TIME, TIME, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=False)
    expected = expected.masked_fill(padding.unsqueeze(2), 0)
    found, _ = torch.func.functional_call(ours.double(), like_torch(theirs, ours), (x,), {"lengths": lengths})
    same_gradients(found, expected, [x, *theirs.parameters()])


def test_cross_attention_equal_to_multihead_attention() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    ours = CrossAttention(WIDTH, WIDTH, num_heads=HEADS, bias=True).double()
    x, memory = randn(BATCH, TIME, WIDTH).requires_grad_(), randn(BATCH, 5, WIDTH).requires_grad_()
    lengths = torch.tensor([5, 2, 1, 3])
    padding = torch.arange(5) >= lengths.unsqueeze(1)
    expected, _ = theirs(x, memory, memory, key_padding_mask=padding, need_weights=False)
    weights = {f"layer.{name}": weight for name, weight in like_torch(theirs, ours).items()}
    found = torch.func.functional_call(WithMemory(ours), weights, (x, memory, lengths))
    same_gradients(found, expected, [x, memory, *theirs.parameters()])


def test_a_row_without_memory_finds_nothing_and_padding_may_hold_nan() -> None:
    torch.manual_seed(0)
    layer, x, memory = CrossAttention(WIDTH, WIDTH).double(), randn(2, 3, WIDTH), randn(2, 5, WIDTH)
    memory[0, 2:] = memory[1] = float("nan")
    outputs, _ = layer(x, layer.initial_state(2, memory, torch.tensor([2, 0])))
    alone, _ = layer(x[:1], layer.initial_state(1, memory[:1, :2]))
    torch.testing.assert_close(outputs[:1], alone)
    assert not outputs[1].any()


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_their_equations(name: str) -> None:
    torch.manual_seed(0)
    score = scoring(name, 4, 4, num_heads=2).double()
    q, k = randn(1, 2, 3, 4), randn(1, 2, 5, 4)
    found = score(q, k)
    for h in range(2):
        for i in range(3):
            for j in range(5):
                query, key = q[0, h, i], k[0, h, j]
                if name == "additive":
                    hidden = torch.tanh(score.query_weight[h].T @ query + score.key_weight[h].T @ key)
                    expected = score.vector[h, :, 0] @ hidden
                elif name == "bilinear":
                    expected = query @ score.weight[h] @ key
                else:
                    expected = query @ key / (2.0 if name == "scaled-dot" else 1.0)
                torch.testing.assert_close(found[0, h, i, j], expected)


@pytest.mark.parametrize("name", SCORES)
def test_attend_is_the_weighted_sum(name: str) -> None:
    torch.manual_seed(0)
    score = scoring(name, 4, 4, num_heads=4).double()
    q, k, v = randn(2, 4, 6, 4), randn(2, 2, 6, 4), randn(2, 2, 6, 5)
    repeated = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    weights = attention_weights(score, q, repeated[0], causal=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
    assert not weights.triu(1).any()
    torch.testing.assert_close(attend(score, q, k, v, causal=True), weights @ repeated[1])


def test_bilinear_and_additive_scores_take_queries_and_keys_of_different_widths() -> None:
    for name in ("bilinear", "additive"):
        assert scoring(name, 3, 4)(torch.randn(1, 1, 2, 3), torch.randn(1, 1, 5, 4)).shape == (1, 1, 2, 5)
    with pytest.raises(InputError, match="as wide as keys; got 3 and 4"):
        scoring("dot", 3, 4)


def test_bare_self_attention_is_the_textbook_sum() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("self-attention", 5, 5), randn(1, 7, 5)
    assert not list(layer.parameters())
    outputs, _ = layer.double()(x)
    for i in range(7):
        alpha = torch.softmax(torch.stack([x[0, i] @ x[0, j] for j in range(i + 1)]), 0)
        torch.testing.assert_close(outputs[0, i], sum(alpha[j] * x[0, j] for j in range(i + 1)))


def test_it_does_not_know_word_order_and_a_recurrence_does() -> None:
    torch.manual_seed(0)
    x, order = torch.randn(1, 7, 5), torch.randperm(7)
    attention = seriatim.layer("self-attention", 5, 5, causal=False)
    torch.testing.assert_close(attention(x[:, order])[0], attention(x)[0][:, order])
    lstm = seriatim.layer("lstm", 5, 5)
    assert not torch.allclose(lstm(x[:, order])[0], lstm(x)[0][:, order])


def test_grouped_heads_are_heads_that_share() -> None:
    torch.manual_seed(0)
    grouped = seriatim.layer("attention", WIDTH, WIDTH, num_heads=6, num_kv_heads=2).double()
    full = seriatim.layer("attention", WIDTH, WIDTH, num_heads=6).double()
    weights = dict(grouped.named_parameters())
    query, *memory = weights["enter.weight"].split([WIDTH, 2 * WIDTH // 6, 2 * WIDTH // 6])
    shared = [part.unflatten(0, (2, -1)).repeat_interleave(3, dim=0).flatten(0, 1) for part in memory]
    full.load_state_dict({**weights, "enter.weight": torch.cat([query, *shared])})
    x = randn(BATCH, TIME, WIDTH)
    torch.testing.assert_close(grouped(x)[0], full(x)[0])
    assert 3 * state_bytes(grouped(x)[1][0]) == state_bytes(full(x)[1][0])


@pytest.mark.parametrize("options", [{}, {"position": "alibi"}, {"score": "additive"}], ids=str)
@pytest.mark.parametrize("time", [40, 600])
def test_a_window_hides_what_is_older_and_keeps_the_state_constant(time: int, options: dict) -> None:
    torch.manual_seed(0)
    window, x = 7, randn(2, time if "score" not in options else 40, WIDTH)
    layer = seriatim.layer("attention", WIDTH, WIDTH, window=window, num_heads=HEADS, **options).double()
    outputs, state = layer(x)
    assert state[0].shape[2] == window - 1
    for t in (0, 3, 20, x.shape[1] - 1):
        changed = x.clone()
        changed[:, : max(t - window + 1, 0)] += 1
        torch.testing.assert_close(layer(changed)[0][:, t], outputs[:, t])
    if "position" not in options:
        whole = seriatim.layer("attention", WIDTH, WIDTH, num_heads=HEADS, **options).double()
        whole.load_state_dict(layer.state_dict())
        torch.testing.assert_close(whole(x[:, :window])[0], outputs[:, :window])


def test_alibi_lowers_scores_by_distance() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", WIDTH, WIDTH, num_heads=4, position="alibi").double(), randn(1, 5, WIDTH)
    queries, keys, values, _ = layer.project(x, torch.zeros(1, dtype=torch.long))
    found = []
    for h in range(4):
        distance = torch.arange(5).unsqueeze(1) - torch.arange(5)
        scores = queries[0, h] @ keys[0, h].T / math.sqrt(3) - 2.0 ** (-2 * (h + 1)) * distance
        found.append(torch.softmax(scores.masked_fill(distance < 0, -torch.inf), 1) @ values[0, h])
    torch.testing.assert_close(layer(x)[0], layer.merge(torch.stack(found).unsqueeze(0)))


def test_rotary_scores_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    rotate, q, k = Rotary(7), randn(1, 1, 1, 7), randn(1, 1, 1, 7)

    def score(i: int, j: int) -> Tensor:
        return (rotate(q, torch.tensor([[i]]), 1) * rotate(k, torch.tensor([[j]]), 1)).sum()

    torch.testing.assert_close(score(9, 4), score(100_005, 100_000))
    assert not torch.isclose(score(9, 4), score(9, 5))
    torch.testing.assert_close(rotate(q, torch.tensor([[12]]), 1).norm(), q.norm())


def test_sinusoids_are_the_papers() -> None:
    found = sinusoids(torch.tensor([0, 3]), 5)
    for row, t in enumerate((0, 3)):
        for i in range(5):
            angle = t / 10_000 ** (2 * (i // 2) / 5)
            assert found[row, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle))


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
        start = append(torch.zeros(1, 8, 600, 64), torch.zeros(1, 8, 1, 64))

    def go_on(value: int) -> bool:
        with torch.inference_mode():
            found = append(start, torch.full((1, 8, 400, 64), float(value)))
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


def test_rotary_positions_are_exact_in_bfloat16() -> None:
    """Angles are found in float64 whatever the model's type: the vectors alone are rounded."""
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", 64, 64, num_heads=1).bfloat16(), torch.randn(1, 1, 1, 64)
    position = torch.tensor([[9_998]])
    assert not [name for name, _ in layer.named_buffers() if "slopes" not in name]
    expected = Rotary(64)(x, position, 1)
    torch.testing.assert_close(layer.rotary(x.bfloat16(), position, 1).float(), expected, rtol=0.02, atol=0.03)


def test_rotary_attention_works_under_function_transforms() -> None:
    torch.manual_seed(0)
    layer, x = seriatim.layer("attention", WIDTH, WIDTH).double(), randn(2, 5, WIDTH).requires_grad_()
    expected = torch.autograd.grad(layer(x)[0].sin().sum(), x)[0]
    torch.testing.assert_close(torch.func.grad(lambda v: layer(v)[0].sin().sum())(x), expected)


def test_what_was_kept_in_inference_mode_can_go_on_outside_it() -> None:
    past, new = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 1, 2)
    with torch.inference_mode():
        inside = append(append(past, new), new)
    with torch.no_grad():
        outside = append(inside, new)
    torch.testing.assert_close(outside, torch.cat([past, new, new, new], dim=2))
    torch.testing.assert_close(newest(outside, 2), torch.cat([new, new], dim=2))
    torch.testing.assert_close(inside, outside[:, :, :5])


def test_a_saved_cache_goes_on_with_the_same_bits(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    from seriatim.state import state_from_dict, state_to_dict

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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "attention",
            {"num_heads": 5},
            r"num_heads: 5 does not divide the width, 12; take one of \[1, 2, 3, 4, 6, 12\]",
        ),
        ("attention", {"num_heads": 4, "num_kv_heads": 3}, r"num_kv_heads: 3 does not divide num_heads, 4"),
        ("attention", {"num_heads": 0}, "does not divide"),
        ("attention", {"window": 0}, "window must be at least 1"),
        ("self-attention", {"window": -1}, "window must be at least 1"),
        ("window", {"context": 0}, "context must be at least 1"),
        ("attention", {"position": "rotery"}, "did you mean 'rotary'"),
        ("attention", {"score": "dto"}, "did you mean 'dot'"),
        ("transformer", {"num_experts": 2, "experts_per_token": 3}, r"1\.\.2, the number of experts; got 3"),
        ("transformer", {"num_experts": 0}, "num_experts must be at least 1"),
        ("transformer", {"num_experts": 2, "balance": -1.0}, "balance must be at least 0"),
        ("transformer", {"feed_forward": "swigul"}, "did you mean 'swiglu'"),
        ("transformer", {"feed_forward_size": 0}, "feed_forward_size must be at least 1"),
        ("transformer", {"norm": "rsm"}, "did you mean 'rms'"),
        ("transformer", {"memory_size": 0}, "memory_size must be at least 1"),
        ("transformer", {"position": "learned", "max_length": 0}, "max_length must be at least 1"),
        ("transformer", {"max_length": 5}, "no option 'max_length'"),
        ("transformer", {"num_heads": "two"}, "type int or null"),
        ("attention", {"norm": "rms"}, "no option 'norm'"),
        ("convolution", {"kernel_size": 0}, "kernel_size must be at least 1"),
        ("lstm,window", {"causal": True}, "no option 'causal'"),
        ("lstm,windwo", {}, "did you mean 'window'"),
    ],
)
def test_bad_options_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        seriatim.layer(name, 12, 12, **options)


def test_what_cannot_be_is_refused() -> None:
    x = torch.randn(2, 6, 12)
    encoder = seriatim.layer("transformer", 12, 12, causal=False)
    assert not encoder.causal
    with pytest.raises(ValueError, match="whole sequence and cannot step"):
        encoder.step(x[:, 0], encoder.initial_state(2))
    with pytest.raises(ValueError, match="no memory"):
        seriatim.layer("transformer", 12, 12).initial_state(2, memory=x)
    decoder = seriatim.layer("transformer", 12, 12, memory_size=7)
    with pytest.raises(ValueError, match="needs a memory"):
        decoder(x)
    with pytest.raises(ValueError, match=r"memory must have shape \(2, memory_time, 7\)"):
        decoder.initial_state(2, memory=x)
    with pytest.raises(ValueError, match=r"0\.\.6"):
        decoder.initial_state(2, memory=torch.randn(2, 6, 7), memory_lengths=torch.tensor([7, 1]))
    learned = seriatim.layer("transformer", 12, 12, position="learned", max_length=5)
    with pytest.raises(ValueError, match="position 6 lies beyond the 5 learned"):
        learned(x)
    assert learned(x, lengths=torch.tensor([5, 2]))[0].shape == (2, 6, 12)


def test_a_decoder_attends_to_its_memory() -> None:
    torch.manual_seed(0)
    layer, x, memory = (
        seriatim.layer("gru", 8, 8, block=True, memory_size=6),
        torch.randn(2, 4, 8),
        torch.randn(2, 5, 6),
    )
    first, _ = layer(x, layer.initial_state(2, memory))
    second, _ = layer(x, layer.initial_state(2, memory.flip(1)))
    other, _ = layer(x, layer.initial_state(2, memory + 1))
    torch.testing.assert_close(first, second)  # what it finds does not depend on the memory's order
    assert not torch.allclose(first, other)


def test_attention_agrees_with_torch_under_a_full_mask() -> None:
    torch.manual_seed(0)
    q, k, v = randn(2, 3, 5, 4), randn(2, 3, 6, 4), randn(2, 3, 6, 4)
    mask = torch.rand(2, 3, 5, 6) < 0.5
    mask[..., 0] = True
    for name, scale in (("dot", 1.0), ("scaled-dot", 0.5)):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        torch.testing.assert_close(attend(scoring(name, 4, 4), q, k, v, mask=mask), expected)
        torch.testing.assert_close(attention_weights(scoring(name, 4, 4), q, k, mask=mask) @ v, expected)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_decoder_agrees_with_torch(norm_first: bool) -> None:
    """Values and gradients of self-attention, attention to a memory and a feed-forward network."""
    torch.manual_seed(0)
    around = {"norm_first": norm_first, "bias": True}
    theirs = nn.TransformerDecoderLayer(WIDTH, HEADS, 20, dropout=0.0, batch_first=True, **around).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    sizes = {"num_heads": HEADS, "memory_size": WIDTH, "feed_forward": "relu", "feed_forward_size": 20}
    ours = seriatim.layer("transformer", WIDTH, WIDTH, norm="layer", position="none", **sizes, **around).double()
    block = ours.layers[0] if norm_first else ours
    names = {"0.layer.enter": "self_attn.in_proj_", "0.layer.leave": "self_attn.out_proj.", "0.norm": "norm1."}
    names |= {"1.layer.leave": "multihead_attn.out_proj.", "1.norm": "norm2.", "2.norm": "norm3."}
    names |= {"2.layer.module.enter": "linear1.", "2.layer.module.leave": "linear2."}
    weights = {}
    for kind in ("weight", "bias"):
        weights |= {f"layers.{ours}.{kind}": theirs.get_parameter(f"{name}{kind}") for ours, name in names.items()}
        query, *memory = theirs.get_parameter(f"multihead_attn.in_proj_{kind}").chunk(3)
        weights |= {f"layers.1.layer.query.{kind}": query, f"layers.1.layer.key_value.{kind}": torch.cat(memory)}
    assert set(weights) == {name for name, _ in block.named_parameters()}
    x, memory = randn(BATCH, TIME, WIDTH).requires_grad_(), randn(BATCH, 6, WIDTH)
    mask = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            return self.block(x, self.block.initial_state(len(x), memory))[0]

    found = torch.func.functional_call(Whole(), {f"block.{k}": v for k, v in weights.items()}, (x, memory))
    same_gradients(found, theirs(x, memory, tgt_mask=mask), [x, *theirs.parameters()])


def test_attention_to_an_empty_memory_is_the_same_alone_and_in_a_batch() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(4, 4, bias=True)
    x, memory = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    both, _ = layer(x, layer.initial_state(2, memory, torch.tensor([0, 5])))
    alone, _ = layer(x[:1], layer.initial_state(1, memory[:1, :0]))
    torch.testing.assert_close(both[:1], alone)
    assert layer(x[:0], layer.initial_state(0, memory[:0]))[0].shape == (0, 3, 4)


def test_scores_of_a_long_sequence_are_not_held_at_once() -> None:
    """Where no gradient is recorded, no tensor is as large as all scores."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            for tensor in [found] if isinstance(found, Tensor) else []:
                largest = max(largest, tensor.numel())
            return found

    layer, time = seriatim.layer("attention", 8, 8, score="bilinear", num_heads=1), 1500
    with torch.inference_mode(), Watch():
        layer(torch.randn(1, time, 8))
    assert largest < time**2 / 2


@pytest.mark.parametrize("options", [{"window": 5}, {"window": 40, "causal": False}, {"position": "alibi"}], ids=str)
@pytest.mark.parametrize("read", [0, 13])
def test_blocks_of_queries_change_neither_values_nor_gradients(options: dict, read: int, monkeypatch) -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("attention", WIDTH, WIDTH, num_heads=4, num_kv_heads=2, **options).double()
    x, direction = randn(2, 50 + read, WIDTH).requires_grad_(), randn(2, 50, WIDTH)
    found = []
    for block in (8, 10_000):
        monkeypatch.setattr("seriatim.layers.attending.BLOCK", block)
        _, state = layer(x[:, :read]) if layer.causal else (None, None)
        outputs, _ = layer(x[:, read:], state)
        found.append((outputs, torch.autograd.grad((outputs * direction).sum(), [x, *layer.parameters()])))
    torch.testing.assert_close(*found)
