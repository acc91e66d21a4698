"""The diagonal state space: convolution, recurrence and the exact solution of its differential equation."""

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.errors import InputError
from seriatim.layers.s4d import CHUNK, S4D


def states_and_outputs(layer: S4D, x: Tensor) -> tuple[Tensor, Tensor]:
    """By the exact solution of h' = A h + x over every step, x held constant, as one real system for every channel."""
    batch, time, channels = x.shape
    outputs = torch.zeros_like(x)
    for h in range(channels):
        n = layer.pairs
        real, imaginary = torch.diag(-torch.exp(layer.log_decay[h])), torch.diag(layer.frequency[h])
        a = torch.cat([torch.cat([real, -imaginary], 1), torch.cat([imaginary, real], 1)])
        b = torch.cat([torch.ones(n), torch.zeros(n)]).to(x)
        # d/dt [state; input] = [[A, B], [0, 0]] [state; input], whose exponential holds Ā and B̄
        system = torch.zeros(2 * n + 1, 2 * n + 1, dtype=x.dtype)
        system[:-1, :-1], system[:-1, -1] = a, b
        flow = torch.linalg.matrix_exp(torch.exp(layer.log_step[h]) * system)
        c = torch.cat([2 * layer.c[h, :, 0], -2 * layer.c[h, :, 1]])
        state = torch.zeros(batch, 2 * n, dtype=x.dtype)
        for t in range(time):
            state = state @ flow[:-1, :-1].T + x[:, t, h : h + 1] * flow[:-1, -1]
            outputs[:, t, h] = state @ c + layer.skip[h] * x[:, t, h]
    return layer.mixed(outputs)


def build(state_size: int = 6) -> S4D:
    torch.manual_seed(0)
    layer = S4D(3, 3, state_size=state_size).double()
    with torch.no_grad():
        layer.log_decay += 0.1 * torch.randn_like(layer.log_decay)
        layer.frequency += 0.1 * torch.randn_like(layer.frequency)
    return layer


@torch.no_grad()
def test_convolution_recurrence_and_exact_solution_agree() -> None:
    layer, x = build(), torch.randn(2, 40, 3, dtype=torch.float64)
    exact = states_and_outputs(layer, x)
    torch.testing.assert_close(layer(x)[0], exact, rtol=0, atol=1e-10)
    state, stepped = layer.initial_state(2), []
    for t in range(40):
        output, state = layer.step(x[:, t], state)
        stepped.append(output)
    torch.testing.assert_close(torch.stack(stepped, 1), exact, rtol=0, atol=1e-10)
    torch.testing.assert_close(layer(x)[1], state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("time", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_chunks_meet(time: int) -> None:
    layer, x = build(), torch.randn(2, time, 3, dtype=torch.float64, requires_grad=True)
    start = torch.randn(2, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    found = []
    for cuts in ([time], [100, time - 100]):
        state, outputs = start, []
        for part in x.split(cuts, dim=1):
            output, state = layer(part, state)
            outputs.append(output)
        y = torch.cat(outputs, 1)
        gradients = torch.autograd.grad(y.square().sum() + state.square().sum(), [x, start, *layer.parameters()])
        found.append((y, state, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_of_time_by_state_is_stored_for_a_long_sequence() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(tensor, Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return out

    layer, time = S4D(8, 8, state_size=64), 16 * CHUNK
    x = torch.randn(2, time, 8, requires_grad=True)
    with Largest() as seen:
        layer(x)[0].sum().backward()
    assert seen.elements < 2 * time * 8 * 32 / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_size": 5}, "even"),
        ({"state_size": 0}, "at least 2"),
        ({"dt_min": 0.0}, "0 < dt_min"),
        ({"dt_min": 0.2}, "0 < dt_min"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        seriatim.layer("s4d", 4, 4, **options)
    with pytest.raises(InputError, match="hidden_size must be 4"):
        S4D(4, 5)
