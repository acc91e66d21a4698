"""Self-attention: agreement with `torch.nn` and the textbook, heads that share, windows, blocks of queries."""

import pytest
import torch
from torch import nn

import seriatim
from seriatim.core.state import state_bytes

from ..agreement import like_torch, same_gradients
from ..conftest import randn

WIDTH, HEADS, BATCH, TIME = 12, 3, 4, 9


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
    query, *memory = weights["qkv_proj.weight"].split([WIDTH, 2 * WIDTH // 6, 2 * WIDTH // 6])
    shared = [part.unflatten(0, (2, -1)).repeat_interleave(3, dim=0).flatten(0, 1) for part in memory]
    full.load_state_dict({**weights, "qkv_proj.weight": torch.cat([query, *shared])})
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


@pytest.mark.parametrize("options", [{"window": 5}, {"window": 40, "causal": False}, {"position": "alibi"}], ids=str)
@pytest.mark.parametrize("read", [0, 13])
def test_blocks_of_queries_change_neither_values_nor_gradients(options: dict, read: int, monkeypatch) -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("attention", WIDTH, WIDTH, num_heads=4, num_kv_heads=2, **options).double()
    x, direction = randn(2, 50 + read, WIDTH).requires_grad_(), randn(2, 50, WIDTH)
    found = []
    for block in (8, 10_000):
        monkeypatch.setattr("seriatim.layers.attention_base.BLOCK", block)
        _, state = layer(x[:, :read]) if layer.causal else (None, None)
        outputs, _ = layer(x[:, read:], state)
        found.append((outputs, torch.autograd.grad((outputs * direction).sum(), [x, *layer.parameters()])))
    torch.testing.assert_close(*found)
