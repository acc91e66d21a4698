"""S4 against the dense HiPPO-LegS matrix and the exact exponential; see also `test_state_space`."""

import pytest
import torch
from torch import Tensor

from seriatim.layers.dplr import hippo_legs, unroll
from seriatim.layers.s4 import S4


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)


def exact_layer(size: int = 3, state_size: int = 8, **options: float) -> S4:
    """A layer whose parameters are HiPPO-LegS to the last digit of float64."""
    layer = S4(size, size, state_size=state_size, **options).double()
    layer.reset_parameters()
    return layer


def moved_layer() -> S4:
    """A layer whose parameters are not those of the start, as after a training."""
    layer = exact_layer()
    with torch.no_grad():
        for parameter in (layer.log_A_real, layer.A_imag, layer.P, layer.B):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def legs(size: int) -> tuple[Tensor, Tensor]:
    """A and B of HiPPO-LegS, entry by entry."""
    a = torch.zeros(size, size, dtype=torch.float64)
    for n in range(size):
        for k in range(n + 1):
            a[n, k] = -(n + 1) if n == k else -(((2 * n + 1) * (2 * k + 1)) ** 0.5)
    return a, torch.tensor([(2 * n + 1) ** 0.5 for n in range(size)], dtype=torch.float64)


def basis(size: int) -> Tensor:
    """The unitary matrix whose rows turn the dense system's states into pairs, of which the layer keeps the first."""
    a, b = legs(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    values, vectors = torch.linalg.eigh(-1j * (a + torch.outer(p, p) + 0.5 * torch.eye(size)))
    rows = vectors.mH[values > 0]
    along = rows @ b.to(rows.dtype)
    rows = rows * (along.abs() / along).unsqueeze(1)
    return torch.cat([rows, rows.conj()])


@pytest.mark.parametrize("size", [2, 8, 64])
def test_it_starts_as_hippo_legs(size: int) -> None:
    frequency, p, b = hippo_legs(size)
    eigenvalues, p, b = (
        torch.cat([half, half.conj()]) for half in (torch.complex(-0.5 + 0 * frequency, frequency), p, b)
    )
    turn, (dense_a, dense_b) = basis(size), legs(size)
    a = torch.diag(eigenvalues) - torch.outer(p, p.conj())
    torch.testing.assert_close(turn.mH @ a @ turn, dense_a.to(a.dtype), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(turn.mH @ b, dense_b.to(b.dtype), rtol=1e-9, atol=1e-9)


def test_it_is_the_dense_system_under_the_bilinear_transform() -> None:
    """The layer's own outputs and state, against HiPPO-LegS as a dense matrix, one step after another."""
    layer, turn = exact_layer(), basis(8)
    a, b = legs(8)
    inputs = torch.randn(1, 40, 3, dtype=torch.float64)
    with torch.no_grad():
        outputs, end = layer(inputs)
        y = torch.empty_like(inputs)
        for channel in range(3):
            half, c = layer.log_dt[channel].exp() / 2, torch.view_as_complex(layer.C[channel])
            dense_c = (torch.cat([c, c.conj()]) @ turn).real
            inverse, h = torch.linalg.inv(torch.eye(8) - half * a), torch.zeros(8, dtype=torch.float64)
            for t, x in enumerate(inputs[0, :, channel]):
                h = inverse @ (h + half * (a @ h) + 2 * half * b * x)
                y[0, t, channel] = dense_c @ h + layer.D[channel] * x
            torch.testing.assert_close(torch.view_as_complex(end[0, channel]), (turn @ h.to(turn.dtype))[:4])
        torch.testing.assert_close(outputs, layer.mix_channels(y))


@pytest.mark.parametrize("length", [1, 2, 16, 128])
def test_its_kernel_is_made_of_unrolled_powers(length: int) -> None:
    """The inverse FFT of the resolvent, against powers multiplied out; the pole at z = −1 is among the roots."""
    layer = moved_layer()
    with torch.no_grad():
        found = unroll(layer.system(), length)
        step, c = found.powers[0], torch.view_as_complex(layer.C)
        row = torch.cat([2 * c.real, -2 * c.imag], dim=1).unsqueeze(1)
        start = layer.system().solved(layer.log_dt.exp().unsqueeze(1) * layer.system().b)
        column = torch.cat([start.real, start.imag], dim=1).unsqueeze(2)
        for t in range(length):
            power = torch.linalg.matrix_power(step, t)
            torch.testing.assert_close(found.kernel[:, t], (row @ power @ column).flatten(), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.c_powers[:, t], (row @ power).squeeze(1), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.b_powers[:, :, t], (power @ column).squeeze(2), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found.powers[-1], torch.linalg.matrix_power(step, length))


def test_it_approaches_the_exact_exponential_to_second_order() -> None:
    """K(τ) = C exp(τA) Δ B of the continuous system, at the middle of a step: halving Δ divides the error by four."""
    a, b = legs(8)
    c = torch.randn(8, dtype=torch.float64)
    errors = []
    for step in (0.02, 0.01, 0.005):
        inverse = torch.linalg.inv(torch.eye(8) - step / 2 * a)
        bilinear = inverse @ (torch.eye(8) + step / 2 * a)
        layer = exact_layer(1, 8, dt_min=step, dt_max=step)
        with torch.no_grad():
            layer.C.copy_(torch.view_as_real((c.to(torch.complex128) @ basis(8).mH)[:4]).unsqueeze(0))
            kernel = unroll(layer.system(), 128).kernel[0, : round(0.64 / step)]
        times = step * (torch.arange(len(kernel), dtype=torch.float64) + 0.5)
        exact = torch.stack([c @ torch.linalg.matrix_exp(time * a) @ b * step for time in times])
        torch.testing.assert_close(kernel[1], c @ bilinear @ inverse @ b * step)
        errors.append(((kernel - exact).abs().max() / step).item())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize(("dt_min", "dt_max"), [(1e-6, 1e-5), (1e-3, 1e-1), (0.5, 1.0)])
def test_in_float32_it_is_close_to_float64(dt_min: float, dt_max: float) -> None:
    """Also with steps so small that 1 − Ā^L cancels, and so large that Ā turns by almost half a circle."""
    layer = S4(8, 8, dt_min=dt_min, dt_max=dt_max)
    inputs = torch.randn(2, 150, 8)
    with torch.no_grad():
        (short, state), (exact, end) = layer(inputs), layer.double()(inputs.double())
    torch.testing.assert_close(short.double(), exact, rtol=0, atol=1e-3 * exact.abs().max().item())
    torch.testing.assert_close(state.double(), end, rtol=0, atol=1e-3 * end.abs().max().item())


def test_no_parameter_can_make_it_unstable() -> None:
    """A + A* = −2 exp(log_decay) − 2 P P* is negative, so that Ā shrinks every state, however large the parameters."""
    layer = moved_layer()
    with torch.no_grad():
        for parameter in (layer.A_imag, layer.P, layer.B):
            parameter.mul_(20)
        step = unroll(layer.system(), 1).powers[0]
    assert torch.linalg.matrix_norm(step, ord=2).max() < 1
