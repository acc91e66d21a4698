"""Cells written for tests, and the comparison of the compiled path with the reference loop."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.state import State, map_state, state_leaves
from seriatim.recurrence import explain, unroll
from seriatim.recurrence.recurrent import loop

D = 5
Equations = Callable[[Any, Tensor, Any], tuple[Tensor, State]]


class Own(seriatim.RecurrentCell):
    """A cell whose step is a function of the cell, inputs and state.

    ``parts`` become its attributes: modules as they are, a shape as a random parameter of that shape.
    """

    def __init__(self, equations: Equations, *widths: int, size: int = D, output: int | None = None, **parts: Any):
        super().__init__()
        self.equations, self.widths = equations, widths
        self.input_size, self.output_size = size, output or widths[0]
        for name, part in parts.items():
            shape = isinstance(part, tuple) and all(isinstance(n, int) for n in part)
            setattr(self, name, nn.Parameter(torch.randn(part)) if shape else part)
        for parameter in self.parameters():  # no chaos, which would magnify rounding
            nn.init.normal_(parameter, std=0.4 if parameter.dim() < 2 else 0.7 / parameter.shape[1] ** 0.5)

    def initial_state(self, batch_size: int) -> State:
        leaves = tuple(self.zeros(batch_size, width) for width in self.widths)
        return leaves if len(leaves) > 1 else leaves[0]

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        return self.equations(self, inputs, state)


def both(step: Callable[[Any, Tensor, Any], Tensor]) -> Equations:
    """A step whose output is its new state."""

    def equations(cell: Any, inputs: Tensor, state: Any) -> tuple[Tensor, State]:
        new = step(cell, inputs, state)
        return new, new

    return equations


def simple(cell: Any, x: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(cell.w(x) + cell.u(h))


def maps(width: int, gates: int = 1, size: int = D) -> dict[str, nn.Module]:
    """Linear maps of inputs and state to some gates."""
    return {"w": nn.Linear(size, gates * width), "u": nn.Linear(width, gates * width, bias=False)}


def elman(width: int = 4) -> Own:
    return Own(both(simple), width, **maps(width))


def peephole_lstm(width: int) -> Own:
    def equations(cell, x, state):
        h, c = state
        i, f, g, o = (cell.w(x) + cell.u(h)).chunk(4, dim=1)
        p_i, p_f, p_o = cell.peepholes
        i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
        c = f * c + i * torch.tanh(g)
        h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
        return h, (h, c)

    return Own(equations, width, width, peepholes=(3, width), **maps(width, 4))


def original_gru(width: int) -> Own:
    def step(cell, x, h):
        x_r, x_z, x_h = cell.w(x).split(width, dim=-1)
        u_r, u_z = cell.u(h).chunk(2, dim=-1)
        r, z = torch.sigmoid(x_r + u_r), torch.sigmoid(x_z + u_z)
        return torch.lerp(h, torch.tanh(x_h + cell.v(r * h)), z)

    u, v = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
    return Own(both(step), width, w=nn.Linear(D, 3 * width), u=u, v=v)


def separate_gates(width: int) -> Own:
    def equations(cell, x, state):
        h, c = state
        both = torch.cat([x, h], dim=1)
        i, f, o = (torch.sigmoid(gate(both)) for gate in (cell.i, cell.f, cell.o))
        c = f * c + i * torch.tanh(cell.g(both))
        return o * torch.tanh(c), (o * torch.tanh(c), c)

    return Own(equations, width, width, **{name: nn.Linear(D + width, width) for name in "ifog"})


def normalized(width: int) -> Own:
    """A layer norm over the state, and attention over its features."""

    def step(cell, x, h):
        return torch.tanh(cell.w(x) + cell.u(cell.norm(h))) * (0.5 + torch.softmax(h + cell.shift, dim=-1))

    return Own(both(step), width, norm=nn.LayerNorm(width), shift=(width,), **maps(width))


def joined(width: int) -> Own:
    """One state vector that holds two, and an output of another width."""

    def equations(cell, x, state):
        fast, slow = state[:, :width], state[:, width:]
        fast = torch.tanh(cell.w(x) + cell.u(fast) + slow)
        slow = 0.9 * slow + 0.1 * fast
        return cell.out(fast - slow), torch.cat([fast, slow], dim=1)

    return Own(equations, 2 * width, output=3, out=nn.Linear(width, 3), **maps(width))


def weight_normed(width: int) -> Own:
    cell = elman(width)
    cell.u = nn.utils.parametrizations.weight_norm(cell.u)
    return cell


CELLS = {
    "peephole LSTM": peephole_lstm,
    "original GRU": original_gru,
    "separate gates": separate_gates,
    "normalized": normalized,
    "joined state": joined,
    "weight norm": weight_normed,
}


def given(cell: Own, batch: int, time: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, State]:
    """Random inputs and a random state that want gradients."""
    torch.manual_seed(seed)
    inputs = torch.randn(batch, time, cell.input_size, dtype=dtype, requires_grad=True)
    state = map_state(lambda leaf: torch.randn(leaf.shape, dtype=dtype), cell.initial_state(batch))
    return inputs, map_state(lambda leaf: leaf.requires_grad_(), state)


def compiled(cell: Own, inputs: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
    return unroll(cell, inputs, state, lengths)


def looped(cell: Own, inputs: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
    return loop(cell, inputs, state, lengths, output_size=cell.output_size)


def weighted(values: Sequence[Tensor], seed: int = 9) -> Tensor:
    """A scalar that depends on every number, each by a weight of its own."""
    torch.manual_seed(seed)
    weights = [torch.randn(value.shape, dtype=torch.float64) for value in values]
    return sum((value * w.to(value.dtype)).sum() for value, w in zip(values, weights, strict=True))


def results(run: Callable[..., tuple[Tensor, State]], cell: Own, inputs: Tensor, state: State, lengths=None):
    """Outputs, final states, and the gradients of all of them by inputs, initial state and parameters."""
    torch.manual_seed(5)  # for cells that draw random numbers
    outputs, end = run(cell, inputs, state, lengths)
    values = [outputs, *state_leaves(end)]
    sources = [leaf for leaf in (inputs, *state_leaves(state), *cell.parameters()) if leaf.requires_grad]
    gradients = torch.autograd.grad(weighted(values), sources, allow_unused=True, materialize_grads=True)
    return values, list(gradients)


def close(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Every tensor agrees, relative to its largest number."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, i
        assert a.dtype == b.dtype, i
        scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale, equal_nan=True, msg=lambda m, i=i: f"{i}: {m}")


def agree(
    cell: Any, *, time: int = 7, batch: int = 4, lengths=None, dtype=torch.float64, fast: bool | None = True
) -> None:
    """`unroll` gives the reference's values and gradients; ``fast`` says whether by compiled code, None either way."""
    cell = cell.to(dtype)
    explanation = explain(cell)
    assert fast is None or ("runs in compiled code" in explanation) == fast, explanation
    inputs, state = given(cell, batch, time, dtype)
    lengths = None if lengths is None else torch.tensor(lengths)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    found, expected = (results(run, cell, inputs, state, lengths) for run in (compiled, looped))
    close(found[0], expected[0], tolerance)
    close(found[1], expected[1], tolerance)
