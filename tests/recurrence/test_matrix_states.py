# ruff: noqa: N803, N806 (S, P and C are the symbols of the papers)
"""Cells whose state holds matrices, as users write them: the compiled loop agrees with the reference loop."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.core.state import map_state, state_leaves
from seriatim.recurrence import explain
from seriatim.recurrence.conditions import uncompiled

from ..quick_compiler import quickly
from .own_cells import close, compiled, given, looped, results

HEADS, KEYS, VALUES, INPUTS = 2, 3, 5, 4
_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


class MatrixCell(seriatim.RecurrentCell):
    """Projections of the inputs to queries, keys, values and gates of heads."""

    def __init__(self, heads: int = HEADS, keys: int = KEYS, values: int = VALUES, output: int = 0) -> None:
        super().__init__()
        self.heads, self.keys, self.values = heads, keys, values
        self.input_size, self.output_size = INPUTS, output or heads * values
        self.q_proj, self.k_proj = (nn.Linear(INPUTS, heads * keys) for _ in range(2))
        self.v_proj, self.b_proj = nn.Linear(INPUTS, heads * values), nn.Linear(INPUTS, heads)

    def initial_state(self, batch_size: int):
        return self.zeros(batch_size, self.heads, self.keys, self.values)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (projection(x).view(-1, self.heads, self.keys) for projection in (self.q_proj, self.k_proj))
        return q, k, self.v_proj(x).unflatten(1, (self.heads, self.values))


class EinsumDelta(MatrixCell):
    def forward(self, x, S):
        q, k, v = self.projected(x)
        u = self.b_proj(x).sigmoid().unsqueeze(-1) * (v - torch.einsum("bhkv,bhk->bhv", S, k))
        S = S + torch.einsum("bhk,bhv->bhkv", k, u)
        return torch.einsum("bhkv,bhk->bhv", S, q).flatten(1), S


class BroadcastDelta(MatrixCell):
    def forward(self, x, S):
        q, k, v = self.projected(x)
        k = k / (k * k).sum(-1, keepdim=True).sqrt()
        error = v - (S * k.unsqueeze(-1)).sum(dim=2)
        S = S + (torch.sigmoid(self.b_proj(x))[..., None] * k).unsqueeze(-1) * error.unsqueeze(-2)
        return (S * q[..., None]).sum(-2).reshape(len(x), -1), S


class GatedDelta(MatrixCell):
    """A decay for each channel, a norm and a gate after the read, and an output projection."""

    def __init__(self) -> None:
        super().__init__(output=7)
        self.a_proj, self.g_proj = nn.Linear(INPUTS, HEADS * KEYS), nn.Linear(INPUTS, HEADS * VALUES)
        self.A_log = nn.Parameter(torch.zeros(HEADS))
        self.norm, self.o_proj = nn.RMSNorm(VALUES), nn.Linear(HEADS * VALUES, 7, bias=False)

    def forward(self, x, S):
        q, k, v = self.projected(x)
        q, k = F.normalize(q, dim=-1) / KEYS**0.5, F.normalize(k, dim=-1)
        decay = torch.exp(-self.A_log.exp()[:, None] * F.softplus(self.a_proj(x).view(-1, HEADS, KEYS)))
        S = decay.unsqueeze(-1) * S
        u = self.b_proj(x).sigmoid().unsqueeze(-1) * (v - (k.unsqueeze(-2) @ S).squeeze(-2))
        S = S + k.unsqueeze(-1) @ u.unsqueeze(-2)
        o = self.norm((q.unsqueeze(-2) @ S).squeeze(-2)) * F.silu(self.g_proj(x)).view(-1, HEADS, VALUES)
        return self.o_proj(o.flatten(1)), S


class LinearAttention(MatrixCell):
    """A vector beside the matrix."""

    def initial_state(self, batch_size: int):
        return super().initial_state(batch_size), self.zeros(batch_size, self.heads, self.keys)

    def forward(self, x, state):
        S, z = state
        q, k, v = self.projected(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        S, z = S + k.unsqueeze(-1) * v.unsqueeze(-2), z + k
        o = torch.einsum("bhkv,bhk->bhv", S, q) / (1 + (z * z * q).sum(-1, keepdim=True))
        return o.flatten(1), (S, z)


class MatrixRecurrent(MatrixCell):
    """M2RNN: a product of the state with a matrix for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(HEADS, VALUES, VALUES) / VALUES**0.5)

    def forward(self, x, S):
        q, k, v = self.projected(x)
        f = torch.sigmoid(self.b_proj(x)).view(-1, HEADS, 1, 1)
        S = f * S + (1 - f) * torch.tanh(S @ self.w + k.unsqueeze(-1) * v.unsqueeze(-2))
        return torch.einsum("bhkv,bhk->bhv", S, q).flatten(1), S


class SharedMatrix(MatrixCell):
    """The same with one matrix for all heads, from a linear layer, and from the left."""

    def __init__(self) -> None:
        super().__init__()
        self.right, self.left = nn.Linear(VALUES, VALUES), nn.Parameter(torch.randn(KEYS, KEYS) / KEYS)

    def forward(self, x, S):
        q, k, v = self.projected(x)
        S = torch.tanh(self.left @ self.right(S) + torch.einsum("bhk,bhv->bhkv", k, v))
        return (S.mT @ q.unsqueeze(-1)).flatten(1), S


class MLSTM(MatrixCell):
    """A stabilizer for each head, the largest exponent so far."""

    def __init__(self) -> None:
        super().__init__()
        self.i_proj = nn.Linear(INPUTS, HEADS)

    def initial_state(self, batch_size: int):
        n, m = self.zeros(batch_size, HEADS, KEYS), self.zeros(batch_size, HEADS)
        return super().initial_state(batch_size), n, m

    def forward(self, x, state):
        C, n, m = state
        q, k, v = self.projected(x)
        k, i, f = k / KEYS**0.5, self.i_proj(x), F.logsigmoid(self.b_proj(x))
        new = torch.maximum(f + m, i)
        keep, add = torch.exp(f + m - new), torch.exp(i - new)
        C = keep[..., None, None] * C + add[..., None, None] * (k.unsqueeze(-1) * v.unsqueeze(-2))
        n = keep.unsqueeze(-1) * n + add.unsqueeze(-1) * k
        scale = torch.maximum((n * q).sum(-1).abs(), torch.exp(-new))
        return (torch.einsum("bhkv,bhk->bhv", C, q) / scale.unsqueeze(-1)).flatten(1), (C, n, new)


class SingleHead(MatrixCell):
    """No heads: a matrix for each row, and products by `torch.bmm`."""

    def __init__(self) -> None:
        super().__init__(heads=1)

    def initial_state(self, batch_size: int):
        return self.zeros(batch_size, KEYS, VALUES)

    def forward(self, x, S):
        q, k, v = (projection(x) for projection in (self.q_proj, self.k_proj, self.v_proj))
        k = torch.softmax(k, dim=-1)
        u = torch.sigmoid(self.b_proj(x)) * (v - torch.bmm(k.unsqueeze(1), S).squeeze(1))
        S = S + torch.einsum("bk,bv->bkv", k, u)
        return torch.einsum("bk,bkv->bv", q, S), S


class GatesSeeState(MatrixCell):
    """A vector that all heads read through a linear layer, and that reads the matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Linear(HEADS * VALUES, HEADS)

    def initial_state(self, batch_size: int):
        return super().initial_state(batch_size), self.zeros(batch_size, HEADS * VALUES)

    def forward(self, x, state):
        S, h = state
        q, k, v = self.projected(x)
        f = torch.sigmoid(self.b_proj(x) + self.u(h))[..., None, None]
        S = f * S + torch.einsum("bhk,bhv->bhkv", k, v)
        h = torch.tanh(torch.einsum("bhkv,bhk->bhv", S, q)).flatten(1)
        return h, (S, h)


class LeastSquares(MatrixCell):
    """Two matrices, one of them square, where a vector stands on both sides."""

    def initial_state(self, batch_size: int):
        identity = torch.eye(KEYS).to(self.q_proj.weight).expand(batch_size, HEADS, KEYS, KEYS)
        return super().initial_state(batch_size), identity.clone()

    def forward(self, x, state):
        S, P = state
        q, k, v = self.projected(x)
        gain = (P @ k.unsqueeze(-1)).squeeze(-1)
        gain = gain / (1 + gain.square().mean(-1, keepdim=True))
        P = P - 0.1 * gain.unsqueeze(-1) * gain.unsqueeze(-2) + 0.05 * P.transpose(-1, -2)
        S = S + gain.unsqueeze(-1) * (v - torch.einsum("bhkv,bhk->bhv", S, k)).unsqueeze(-2)
        return torch.einsum("bhkv,bhk->bhv", S, q).flatten(1), (S, P)


class Channels(MatrixCell):
    """A row of the state for each channel; gates that all heads share; values side by side."""

    def __init__(self) -> None:
        super().__init__(heads=6, values=4)
        self.b_proj, self.rate = nn.Linear(INPUTS, 8), nn.Parameter(torch.rand(6, 4))

    def initial_state(self, batch_size: int):
        return self.zeros(batch_size, 6, 4)

    def forward(self, x, h):
        b, c = self.b_proj(x).chunk(2, dim=-1)
        step = F.softplus(self.q_proj(x)[:, :6] + self.q_proj(x)[:, 7:8].expand(-1, 6))
        h = torch.exp(-step.unsqueeze(-1) * self.rate) * h + step.unsqueeze(-1) * b.unsqueeze(1)
        y = (h * c.unsqueeze(1)).sum(-1)
        return torch.cat([y, y.sin(), h.amax(-1), F.layer_norm(y, (6,))], dim=1), h


class TwoSteps(MatrixCell):
    """Two delta steps for each input, a norm of the whole state, and outputs of the state before."""

    def forward(self, x, S):
        q, k, v = self.projected(x)
        o = torch.einsum("bhkv,bhk->bhv", S, q)
        S = S / (1 + (S * S).sum((1, 2, 3), keepdim=True)).sqrt()
        for key in (F.normalize(k, dim=-1), F.normalize(k + q, dim=-1)):
            S = S + key.unsqueeze(-1) * (v - torch.einsum("bhkv,bhk->bhv", S, key)).unsqueeze(-2)
        return o.flatten(1), S


CELLS = [
    EinsumDelta,
    BroadcastDelta,
    GatedDelta,
    LinearAttention,
    MatrixRecurrent,
    SharedMatrix,
    MLSTM,
    SingleHead,
    GatesSeeState,
    LeastSquares,
    Channels,
    TwoSteps,
]
kinds = pytest.mark.parametrize("kind", CELLS, ids=lambda kind: kind.__name__)


@kinds
def test_values_and_gradients_agree_with_the_loop(kind: type[MatrixCell]) -> None:
    torch.manual_seed(3)
    cell = kind().double()
    explanation = explain(cell)
    assert "runs in compiled code" in explanation, explanation
    assert "every 16 steps" in explanation
    for time, lengths in ((37, None), (35, [35, 0, 16, 17, 1])):
        inputs, state = given(cell, 5, time, torch.float64)
        if lengths is not None:
            with torch.no_grad():
                for row, length in enumerate(lengths):
                    inputs[row, length:] = float("nan")
        found, expected = (
            results(run, cell, inputs, state, None if lengths is None else torch.tensor(lengths))
            for run in (compiled, looped)
        )
        close(found[0], expected[0], 1e-10)
        close(found[1], expected[1], 1e-10)


@kinds
def test_steps_are_compiled_and_agree(kind: type[MatrixCell]) -> None:
    torch.manual_seed(4)
    layer = seriatim.Recurrent(kind().double()).eval()
    assert "one step: one call of compiled code" in explain(layer)
    inputs = torch.randn(3, 9, INPUTS, dtype=torch.float64)
    with torch.no_grad():
        whole, last = layer(inputs)
        again, _ = layer(inputs)  # with weights that the loop keeps
        torch.testing.assert_close(again, whole, rtol=0, atol=0)
        state = layer.initial_state(3)
        before = map_state(torch.clone, state)
        outputs = []
        for t in range(9):
            output, state = layer.step(inputs[:, t], state)
            outputs.append(output)
    close([torch.stack(outputs, 1), *state_leaves(state)], [whole, *state_leaves(last)], 1e-10)
    close(state_leaves(layer.initial_state(3)), state_leaves(before), 0)


def test_memory_for_the_gradient_is_far_below_the_matrices_of_all_steps() -> None:
    cell = EinsumDelta(heads=1, keys=32, values=32)

    def saved(time: int) -> int:
        sizes = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            outputs, _ = compiled(cell, torch.randn(2, time, INPUTS), cell.initial_state(2))
            assert outputs.requires_grad
        return sum(sizes.values())

    growth = (saved(512) - saved(256)) / (2 * 256)  # numbers for each row and step
    assert growth < 32 * 32 / 2


def test_the_given_state_stays_as_it_is_and_rows_do_not_depend_on_the_batch() -> None:
    cell = EinsumDelta()
    inputs, state = given(cell, 4, 20, torch.float32)
    before = state.detach().clone()
    outputs, last = compiled(cell, inputs, state)
    assert torch.equal(state, before)
    alone, last_alone = compiled(cell, inputs[1:2], state[1:2])
    torch.testing.assert_close(alone, outputs[1:2], rtol=0, atol=1e-6)
    torch.testing.assert_close(last_alone, last[1:2], rtol=0, atol=1e-6)


def test_products_before_and_after_the_loop_obey_autocast() -> None:
    torch.manual_seed(5)
    cell = GatedDelta()
    inputs, state = given(cell, 3, 20, torch.float32)
    expected = results(compiled, cell, inputs, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results(compiled, cell, inputs, state)
    assert not torch.equal(found[0][0], expected[0][0])
    for a, b in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert a.dtype == torch.float32
        assert float((a - b).detach().abs().max()) < 0.1 * float(b.detach().abs().max())


def test_a_second_derivative_is_refused() -> None:
    cell = EinsumDelta()
    inputs, state = given(cell, 2, 5, torch.float32)
    outputs, _ = compiled(cell, inputs, state)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)


class BatchMean(EinsumDelta):
    def forward(self, x, S):
        return super().forward(x, S - S.mean(0))


class Flipped(EinsumDelta):
    def forward(self, x, S):
        return super().forward(x, S.flip(2))


@pytest.mark.parametrize("kind", [BatchMean, Flipped])
def test_other_cells_run_as_a_loop_for_a_reason_with_its_line(kind: type[MatrixCell]) -> None:
    explanation = explain(kind())
    assert "runs as a loop" in explanation
    assert "test_matrix_states.py:" in explanation
    layer = seriatim.Recurrent(kind())
    inputs = torch.randn(3, 5, INPUTS)
    outputs, _ = layer(inputs)
    with uncompiled():
        expected, _ = layer(inputs)
    torch.testing.assert_close(outputs, expected)
