"""sLSTM beside its equations without a stabilizer, and beside the package xlstm where it is installed."""

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.layers.slstm import SLSTM, SLSTMState
from seriatim.recurrence import explain, uncompiled

from ..refusals import refused
from .recurrences import sequence

D, H, HEADS = 6, 6, 3


def build(**options) -> SLSTM:
    torch.manual_seed(1)
    layer = SLSTM(D, H, num_heads=HEADS, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def inputs_of(time: int) -> Tensor:
    return torch.cat([sequence(time), sequence(time)[..., :1].square()], dim=-1).requires_grad_()


def dense(weight: Tensor, gates: int) -> list[Tensor]:
    """The block-diagonal matrix of each gate."""
    return [torch.block_diag(*blocks.unbind()) for blocks in weight.chunk(gates, dim=2)]


def by_definition(layer: SLSTM, x: Tensor) -> Tensor:
    """The exponentials themselves, and products with whole matrices."""
    h, c, n = (x.new_zeros(len(x), H) for _ in range(3))
    padded = nn.functional.pad(x, (0, 0, layer.kernel_size - 1, 0))
    outputs = []
    for t in range(x.shape[1]):
        seen = nn.functional.silu((padded[:, t : t + layer.kernel_size] * layer.conv_weight).sum(1) + layer.conv_bias)
        w = [seen @ m for m in dense(layer.if_proj, 2)] + [x[:, t] @ m for m in dense(layer.zo_proj, 2)]
        r, b = [h @ m for m in dense(layer.cell.recurrent, 4)], layer.cell.bias.chunk(4)
        i, f, z, o = (sum(terms) for terms in zip(w, r, b, strict=True))
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        outputs.append(nn.functional.group_norm(h, HEADS, layer.norm.weight, eps=layer.norm.epsilon))
    return torch.stack(outputs, dim=1)


def assert_same(layer: nn.Module, ours: Tensor, theirs: Tensor, x: Tensor, pairs: list[Tensor]) -> None:
    """Equal values, and equal gradients by the inputs and by some parameters."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(y.sin().sum(), [x, *pairs], retain_graph=True) for y in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compiled", [True, False])
def test_it_is_its_definition_without_a_stabilizer(compiled: bool) -> None:
    layer, x = build(), inputs_of(11)
    with torch.enable_grad() if compiled else uncompiled():
        outputs, _ = layer(x)
    assert_same(layer, outputs, by_definition(layer, x), x, list(layer.parameters()))


def test_it_is_the_vanilla_layer_of_xlstm() -> None:
    reference = pytest.importorskip("xlstm.blocks.slstm.layer")
    config = reference.sLSTMLayerConfig(embedding_dim=D, num_heads=HEADS, backend="vanilla", dtype="float32")
    theirs, ours, x = reference.sLSTMLayer(config).double(), build(), inputs_of(11)
    cell = theirs.slstm_cell
    with torch.no_grad():
        theirs.conv1d.conv.weight.copy_(ours.conv_weight.t().unsqueeze(1))
        theirs.conv1d.conv.bias.copy_(ours.conv_bias)
        maps = [theirs.fgate, theirs.igate, theirs.zgate, theirs.ogate]  # there, f and i have each other's names
        weights = [*ours.if_proj.chunk(2, dim=2), *ours.zo_proj.chunk(2, dim=2)]
        for map_, weight in zip(maps, weights, strict=True):
            map_.weight.copy_(weight.mT)
        cell._recurrent_kernel_.copy_(ours.cell.recurrent.mT)
        cell._bias_.copy_(ours.cell.bias)
        theirs.group_norm.weight.copy_(ours.norm.weight - 1)
    assert_same(ours, ours(x)[0], theirs(x), x, [])
    theirs(x).sin().sum().backward()
    ours(x)[0].sin().sum().backward()
    torch.testing.assert_close(ours.cell.recurrent.grad, cell._recurrent_kernel_.grad.mT, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.cell.bias.grad, cell._bias_.grad, rtol=1e-9, atol=1e-9)


def test_the_forget_gates_start_as_in_xlstm() -> None:
    reference = pytest.importorskip("xlstm.blocks.slstm.cell")
    config = reference.sLSTMCellConfig(hidden_size=64, num_heads=4, backend="vanilla", dtype="float32")
    ours = SLSTM(64, 64, num_heads=4).cell
    torch.testing.assert_close(ours.bias, reference.sLSTMCell(config)._bias_, rtol=1e-4, atol=1e-4)


def test_sequences_and_steps_run_in_compiled_code() -> None:
    told = explain(seriatim.layer("slstm", 8, 8, num_heads=2, block=False))
    assert "SLSTMCell runs in compiled code" in told
    assert "one call of compiled code" in told


@pytest.mark.parametrize("cut", [0, 1, 5, 8])
def test_gates_of_any_size_give_finite_outputs_and_gradients(cut: int) -> None:
    layer = build()
    torch.manual_seed(3)
    gates = 1e4 * torch.randint(-1, 2, (4, 8, 4 * H)).double()
    for values in (gates, -1e4 * torch.ones_like(gates), 1e4 * torch.ones_like(gates)):
        leaf = values.clone().requires_grad_()
        run = seriatim.Recurrent(layer.cell)
        first, state = run(leaf[:, :cut])
        second, state = run(leaf[:, cut:], state)
        outputs = torch.cat([first, second], dim=1)
        torch.testing.assert_close(outputs, run(values)[0])
        gradients = torch.autograd.grad(outputs.sum() + sum(x.sum() for x in state), [leaf, *layer.cell.parameters()])
        assert all(x.isfinite().all() for x in (outputs, *state, *gradients))


def test_the_normalizer_is_at_least_one() -> None:
    _, state = build()(10 * inputs_of(9))
    assert isinstance(state, SLSTMState)
    assert (state.cell.normalizer >= 1).all()
    assert (state.cell.cell.abs() <= state.cell.normalizer).all()


def test_in_half_precision_it_runs_too() -> None:
    layer = build().bfloat16()
    assert layer(inputs_of(5).bfloat16())[0].isfinite().all()
    assert build().half()(inputs_of(5).half())[0].isfinite().all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with refused("range", "model.options.num_heads"):
        SLSTM(6, 6, num_heads=4)
    with refused("range", "kernel_size"):
        SLSTM(6, 6, kernel_size=0)
