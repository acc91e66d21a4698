"""mLSTM beside its equations without a stabilizer, and beside the package xlstm where it is installed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.layers.mlstm import EPSILON, MLSTM, stabilizers
from seriatim.recurrence import explain

from ..refusals import refused
from .recurrences import sequence

D, H, HEADS = 5, 6, 3
INNER, SIZE = 2 * H, 2 * H // HEADS


def build(input_size: int = D, **options) -> MLSTM:
    torch.manual_seed(1)
    layer = MLSTM(input_size, H, num_heads=HEADS, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def by_definition(layer: MLSTM, x: Tensor) -> Tensor:
    """The exponentials themselves, one step after another: e^m times every sum of the stabilized form."""
    inner, z = layer.up_proj(x).chunk(2, dim=-1)
    padded = F.pad(inner, (0, 0, len(layer.conv_weight) - 1, 0))
    u = F.silu(F.conv1d(padded.mT, layer.conv_weight.t().unsqueeze(1), layer.conv_bias, groups=INNER).mT)
    q, k, v = (
        each @ torch.block_diag(*weight.unbind())
        for each, weight in ((u, layer.q_proj), (u, layer.k_proj), (inner, layer.v_proj))
    )
    i, f = layer.if_proj(torch.cat([q, k, v], dim=-1)).chunk(2, dim=-1)
    q, k, v = (part.unflatten(-1, (HEADS, SIZE)) for part in (q, k * SIZE**-0.5, v))
    memory, n, m = x.new_zeros(len(x), HEADS, SIZE, SIZE), x.new_zeros(len(x), HEADS, SIZE), x.new_zeros(len(x), HEADS)
    outputs = []
    for t in range(x.shape[1]):
        keep, write = torch.sigmoid(f[:, t]), torch.exp(i[:, t])
        memory = keep[..., None, None] * memory + write[..., None, None] * k[:, t].unsqueeze(3) * v[:, t].unsqueeze(2)
        n = keep[..., None] * n + write[..., None] * k[:, t]
        m = torch.maximum(keep.log() + m, i[:, t])  # which ε alone depends on
        sums, normalizer = torch.einsum("bhkv,bhk->bhv", memory, q[:, t]), (n * q[:, t]).sum(-1).abs()
        h = sums / (torch.clamp(normalizer, min=1) + EPSILON * m.exp()).unsqueeze(-1)
        outputs.append(F.group_norm(h.flatten(1), HEADS, layer.norm.weight, eps=layer.norm.epsilon))
    return layer.down_proj((torch.stack(outputs, dim=1) + layer.skip * u) * F.silu(z))


@pytest.mark.parametrize("time", [1, 9, 150])
def test_it_is_its_definition_without_a_stabilizer(time: int) -> None:
    layer, x = build(), sequence(time).requires_grad_()
    ours, theirs = layer(x)[0], by_definition(layer, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()]) for y in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_it_is_the_layer_of_xlstm() -> None:
    reference = pytest.importorskip("xlstm.blocks.mlstm.layer")
    config = reference.mLSTMLayerConfig(embedding_dim=H, num_heads=HEADS, context_length=16)
    config._inner_embedding_dim = INNER  # which the package rounds up to a multiple of 64
    theirs, ours = reference.mLSTMLayer(config).double(), build(H)
    x = torch.cat([sequence(11), sequence(11)[..., :1].square()], dim=-1).requires_grad_()
    with torch.no_grad():
        theirs.proj_up.weight.copy_(ours.up_proj.weight)
        theirs.proj_down.weight.copy_(ours.down_proj.weight)
        theirs.conv1d.conv.weight.copy_(ours.conv_weight.t().unsqueeze(1))
        theirs.conv1d.conv.bias.copy_(ours.conv_bias)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(theirs, name).weight.copy_(getattr(ours, name).mT)
        cell, gates = theirs.mlstm_cell, ours.if_proj
        for map_, part in ((cell.igate, slice(0, HEADS)), (cell.fgate, slice(HEADS, None))):
            map_.weight.copy_(gates.weight[part])
            map_.bias.copy_(gates.bias[part])
        cell.outnorm.weight.copy_(ours.norm.weight - 1)
        theirs.learnable_skip.copy_(ours.skip)

    # its steps start with m = 0, as ours; its parallel form without one, which ε makes visible
    outputs, memory, recent = [], None, None
    for t in range(x.shape[1]):
        y, states = theirs.step(x[:, t : t + 1], memory, recent)
        memory, recent = states["mlstm_state"], states["conv_state"]
        outputs.append(y)
    stepped, found = torch.cat(outputs, dim=1), ours(x)[0]
    torch.testing.assert_close(found, stepped, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, theirs(x), rtol=1e-4, atol=1e-4)
    by_hand, by_theirs = (torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, theirs(x)))
    torch.testing.assert_close(by_hand, by_theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_stabilizer_is_its_recurrence(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    i, f, m = 100 * torch.randn(2, 70, 3).double(), 100 * torch.randn(2, 70, 3).double(), torch.randn(2, 3, dtype=dtype)
    found = stabilizers(i, F.logsigmoid(f), m)
    for t in range(70):
        m = torch.maximum(F.logsigmoid(f[:, t]) + m, i[:, t])
        torch.testing.assert_close(found[:, t].double(), m.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cut", [0, 1, 5, 70])
def test_gates_of_any_size_give_finite_outputs_and_gradients(cut: int, dtype: torch.dtype) -> None:
    """Also where all signs are equal, with which sums of gates grow with every step."""
    layer, x = build().to(dtype), sequence(70).to(dtype)
    with torch.no_grad():
        layer.if_proj.weight.mul_(1e4)
    for sign_i, sign_f in ((0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)):
        with torch.no_grad():
            layer.if_proj.bias.copy_(torch.tensor([1e5 * sign_i, 1e5 * sign_f]).repeat_interleave(HEADS))
        leaf = x.clone().requires_grad_()
        first, state = layer(leaf[:, :cut])
        second, state = layer(leaf[:, cut:], state)
        outputs, whole = torch.cat([first, second], dim=1), layer(x)[0]
        if dtype == torch.float64:
            torch.testing.assert_close(outputs, whole, rtol=1e-6, atol=1e-6)
        gradients = torch.autograd.grad(outputs.sum() + state.memory.sum(), [leaf, *layer.parameters()])
        assert all(each.isfinite().all() for each in (outputs, *state, *gradients))


@pytest.mark.parametrize("size", [1e4, 30.0])
def test_steps_agree_with_chunks_where_gates_are_large(size: float) -> None:
    layer, x = build(), sequence(70)
    with torch.no_grad():
        layer.if_proj.weight.mul_(size)
    state, outputs = layer.initial_state(len(x)), []
    with torch.no_grad():
        for x_t in x.unbind(1):
            y, state = layer.step(x_t, state)
            outputs.append(y)
        together, end = layer(x)
    torch.testing.assert_close(torch.stack(outputs, dim=1), together, rtol=1e-7, atol=1e-7)
    for a, b in zip(state, end, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_the_forget_gates_start_open() -> None:
    bias = MLSTM(64, 64, num_heads=4).if_proj.bias
    torch.testing.assert_close(bias[4:].detach(), torch.tensor([3.0, 4.0, 5.0, 6.0]))


def test_steps_run_in_compiled_code() -> None:
    assert "one call of compiled code" in explain(seriatim.layer("mlstm", 8, 8, num_heads=2, block=False))


def test_in_half_precision_its_matrix_stays_float32() -> None:
    layer = build().bfloat16()
    outputs, state = layer(sequence(5).bfloat16())
    assert (outputs.dtype, state.memory.dtype, state.stabilizer.dtype) == (torch.bfloat16, *[torch.float32] * 2)
    assert outputs.isfinite().all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with refused("range", "model.options.num_heads"):
        MLSTM(6, 6, num_heads=5)
    with refused("range", "kernel_size"):
        MLSTM(6, 6, kernel_size=0)
