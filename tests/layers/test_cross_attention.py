"""Attention to a memory: agreement with `torch.nn`, rows that have none, decoders."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.layers.cross_attention import CrossAttention

from ..agreement import like_torch, same_gradients
from ..conftest import randn

WIDTH, HEADS, BATCH, TIME = 12, 3, 4, 9


class WithMemory(nn.Module):
    """Cross-attention as one function of inputs and memory."""

    def __init__(self, layer: CrossAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        return self.layer(x, self.layer.initial_state(len(x), memory, lengths))[0]


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


def test_attention_to_an_empty_memory_is_the_same_alone_and_in_a_batch() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(4, 4, bias=True)
    x, memory = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    both, _ = layer(x, layer.initial_state(2, memory, torch.tensor([0, 5])))
    alone, _ = layer(x[:1], layer.initial_state(1, memory[:1, :0]))
    torch.testing.assert_close(both[:1], alone)
    assert layer(x[:0], layer.initial_state(0, memory[:0]))[0].shape == (0, 3, 4)


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
    names = {"0.layer.qkv_proj": "self_attn.in_proj_", "0.layer.o_proj": "self_attn.out_proj.", "0.norm": "norm1."}
    names |= {"1.layer.o_proj": "multihead_attn.out_proj.", "1.norm": "norm2.", "2.norm": "norm3."}
    names |= {"2.layer.module.up_proj": "linear1.", "2.layer.module.down_proj": "linear2."}
    weights = {}
    for kind in ("weight", "bias"):
        weights |= {f"layers.{ours}.{kind}": theirs.get_parameter(f"{name}{kind}") for ours, name in names.items()}
        query, *memory = theirs.get_parameter(f"multihead_attn.in_proj_{kind}").chunk(3)
        weights |= {f"layers.1.layer.q_proj.{kind}": query, f"layers.1.layer.kv_proj.{kind}": torch.cat(memory)}
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
