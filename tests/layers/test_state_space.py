"""State spaces: S4D against the exact solution of its equation, Mamba against another implementation."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seriatim.layers import selective_scan
from seriatim.layers.mamba import Mamba
from seriatim.layers.s4 import S4
from seriatim.layers.s4d import S4D
from seriatim.layers.state_space import CHUNK
from seriatim.layers.unpadded_layer import remember

from ..refusals import refused
from .test_s4 import moved_layer


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)


def gradients(results, sources) -> list[Tensor]:
    """Of a fixed random function of the results."""
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(result.shape, generator=draw, dtype=torch.float64).to(result) for result in results]
    total = sum((result * weight).sum() for result, weight in zip(results, weights, strict=True))
    return list(torch.autograd.grad(total, sources))


# What is shared.


@pytest.mark.parametrize("time", [0, 1, 2, 5])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_last_inputs_are_remembered(k: int, time: int) -> None:
    inputs, state = torch.randn(2, time, 3), torch.randn(2, k, 3)
    extended, recent = remember(inputs, state)
    assert torch.equal(extended, torch.cat([state, inputs], dim=1))
    assert torch.equal(recent, extended[:, time:])
    assert recent.shape == state.shape
    assert recent.is_contiguous()
    major = remember(inputs.transpose(0, 1), state.transpose(0, 1), time_dim=0)
    assert torch.equal(major[1].transpose(0, 1), recent)


# S4D.


def s4d_layer(size: int = 3, state_size: int = 8) -> S4D:
    layer = S4D(size, size, state_size=state_size).double()
    with torch.no_grad():
        layer.log_A_real.add_(torch.randn_like(layer.log_A_real))
        layer.A_imag.add_(torch.randn_like(layer.A_imag))
    return layer


@pytest.mark.parametrize("time", [1, 2, 63, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
@pytest.mark.parametrize("make", [s4d_layer, moved_layer])
def test_the_convolution_of_s4d_and_of_s4_is_the_recurrence(make, time: int) -> None:
    layer = make()
    inputs = torch.randn(2, time, 3, dtype=torch.float64, requires_grad=True)
    start = torch.randn(2, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    outputs, end = layer(inputs, start)
    steps, state = [], start
    for x in inputs.unbind(1):
        y, state = layer.step(x, state)
        steps.append(y)
    sources = [inputs, start, *layer.parameters()]
    again = torch.stack(steps, dim=1)
    torch.testing.assert_close(outputs, again, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(end, state, rtol=1e-9, atol=1e-11)
    for a, b in zip(gradients([outputs, end], sources), gradients([again, state], sources), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_s4d_solves_its_differential_equation() -> None:
    """Over a step, x is constant; then exp(Δ [[A, B], [0, 0]]) takes (h, x) to (h', x)."""
    layer = s4d_layer()
    inputs, state = torch.randn(1, 9, 3, dtype=torch.float64), torch.randn(1, 3, 4, 2, dtype=torch.float64)
    with torch.no_grad():
        _, end = layer(inputs, state)
        a = torch.complex(-layer.log_A_real.exp(), layer.A_imag)
        for channel in range(3):
            system = torch.zeros(5, 5, dtype=torch.complex128)
            system[:4, :4], system[:4, 4] = torch.diag(a[channel]), 1
            step = torch.linalg.matrix_exp(layer.log_dt[channel].exp() * system)
            h = torch.view_as_complex(state[0, channel])
            for x in inputs[0, :, channel]:
                h = (step @ torch.cat([h, x.to(h).view(1)]))[:4]
            torch.testing.assert_close(torch.view_as_real(h), end[0, channel])


def test_s4d_is_a_convolution_with_a_vandermonde_kernel() -> None:
    layer = s4d_layer()
    inputs = torch.randn(2, 20, 3, dtype=torch.float64)
    with torch.no_grad():
        a = torch.complex(-layer.log_A_real.exp(), layer.A_imag)
        decay = torch.exp(layer.log_dt.exp().unsqueeze(1) * a)
        weight = torch.view_as_complex(layer.C) * (decay - 1) / a
        kernel = 2 * (weight.unsqueeze(1) @ torch.stack([torch.linalg.vander(row, N=20) for row in decay])).real
        y = layer.D * inputs
        for lag in range(20):
            y[:, lag:] += kernel[:, 0, lag] * inputs[:, : 20 - lag]
        torch.testing.assert_close(layer(inputs)[0], layer.mix_channels(y))


def test_s4d_in_float32_is_close_to_float64() -> None:
    """Small steps, for which exp(ΔA) − 1 cancels."""
    layer = S4D(8, 8, state_size=16, dt_min=1e-6, dt_max=1e-5)
    inputs = torch.randn(2, 150, 8)
    with torch.no_grad():
        short, exact = layer(inputs)[1], layer.double()(inputs.double())[1]
    torch.testing.assert_close(short.double(), exact, rtol=1e-4, atol=1e-4 * exact.abs().max().item())


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [((3, 4), {}, "set it to 4"), ((4, 4), {"state_size": 3}, "even"), ((4, 4), {"dt_min": 1.0}, "dt_max")],
)
@pytest.mark.parametrize("layer", [S4, S4D])
def test_state_spaces_name_what_does_not_fit(layer, sizes, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        layer(*sizes, **options)


# The selective scan.


def scan_arguments(batch: int, time: int, channels: int, state_size: int, dtype=torch.float64) -> list[Tensor]:
    made = [
        torch.randn(batch, time, channels, dtype=dtype),
        torch.rand(batch, time, channels, dtype=dtype),
        -torch.rand(channels, state_size, dtype=dtype) * state_size,
        torch.randn(batch, time, state_size, dtype=dtype),
        torch.randn(batch, time, state_size, dtype=dtype),
        torch.randn(channels, dtype=dtype),
        torch.randn(batch, state_size, channels, dtype=dtype),
    ]
    return [tensor.requires_grad_() for tensor in made]


def step_by_step(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the equations, one step after another; arguments and results are those of `selective_scan`."""
    outputs = []
    for x_t, delta_t, b_t, c_t in zip(inputs.unbind(1), delta.unbind(1), b.unbind(1), c.unbind(1), strict=True):
        y_t, state = selective_scan.selective_step(x_t, delta_t, a, b_t, c_t, skip, state)
        outputs.append(y_t)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("time", [1, 7, 8, 9, 16, 63, 64, 65, 131])
@pytest.mark.parametrize("elements", [1, 2**20])
def test_selective_scan_is_its_reference(time: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selective_scan, "CHUNK_ELEMENTS", elements)
    given = scan_arguments(3, time, 5, 4)
    found = []
    for scan in (selective_scan.selective_scan, step_by_step):
        results = scan(*given)
        found.append([*results, *gradients(results, given)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("time", [1, 11])
def test_selective_scan_has_the_gradient_of_finite_differences(time: int) -> None:
    assert torch.autograd.gradcheck(selective_scan.selective_scan, scan_arguments(2, time, 2, 3))


def test_selective_scan_without_a_gradient_gives_the_same() -> None:
    given = scan_arguments(2, 33, 5, 4)
    with torch.no_grad():
        quiet = selective_scan.selective_scan(*given)
    for a, b in zip(quiet, selective_scan.selective_scan(*given), strict=True):
        assert torch.equal(a, b)
        assert not a.requires_grad


def test_selective_scan_forgets_without_dividing() -> None:
    """Decays so strong that their products underflow."""
    given = scan_arguments(2, 100, 5, 4, dtype=torch.float32)
    given[1] = (given[1].detach() * 1000).requires_grad_()
    results = selective_scan.selective_scan(*given)
    assert all(torch.isfinite(tensor).all() for tensor in (*results, *gradients(results, given)))


class Largest(TorchDispatchMode):
    """Records the elements of the largest tensor any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_tensor_has_an_element_for_each_step_channel_and_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selective_scan, "CHUNK_ELEMENTS", 1)
    batch, time, size, state_size = 2, 256, 32, 16
    layer = Mamba(size, size, state_size=state_size)
    with Largest() as seen:
        layer(torch.randn(batch, time, size))[0].sum().backward()
    assert seen.elements < batch * time * layer.inner * state_size / 8


# Mamba.


def transformers_mixer(dtype: torch.dtype):
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = pytest.importorskip("transformers").MambaConfig(hidden_size=24, state_size=5, num_hidden_layers=1)
    theirs = mamba.MambaMixer(config, 0).to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return theirs


NAMES = {"conv_weight": "conv1d.weight", "conv_bias": "conv1d.bias"}
"""Names that differ from those of transformers."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mamba_agrees_with_transformers(dtype: torch.dtype) -> None:
    """Values and gradients; theirs computes part of float64 in float32, so that both are held to float32."""
    theirs = transformers_mixer(dtype)
    ours = Mamba(24, 24, state_size=5).to(dtype)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(as_ours(name, theirs.get_parameter(NAMES.get(name, name))))
    inputs = torch.randn(3, 37, 24, dtype=dtype, requires_grad=True)
    expected, found = theirs(inputs), ours(inputs)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    names = [name for name, _ in ours.named_parameters()]
    their_gradients = gradients([expected], [inputs, *(theirs.get_parameter(NAMES.get(name, name)) for name in names)])
    for name, a, b in zip(["", *names], gradients([found], [inputs, *ours.parameters()]), their_gradients, strict=True):
        torch.testing.assert_close(a, as_ours(name, b), rtol=1e-5, atol=1e-5 * b.abs().max().item())


def as_ours(name: str, theirs: Tensor) -> Tensor:
    """Return their parameter in our layout: the kernel of the convolution is transposed here."""
    return theirs.squeeze(1).t() if name == "conv_weight" else theirs


def test_mamba_starts_with_steps_in_the_given_range() -> None:
    layer = Mamba(16, 32, dt_min=0.01, dt_max=0.05)
    delta = torch.nn.functional.softplus(layer.dt_proj.bias)
    assert delta.min() >= 0.0099
    assert delta.max() <= 0.0501
    torch.testing.assert_close(layer.a()[0], -torch.arange(1.0, 17.0))


def test_mamba_in_bfloat16_keeps_its_state_in_float32() -> None:
    layer = Mamba(16, 16)
    inputs = torch.randn(2, 40, 16)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = layer(inputs)
        _, after = layer.step(inputs[:, 0], state)
        outputs.float().sum().backward()
    assert {leaf.dtype for leaf in (*state, *after)} == {torch.float32}
    torch.testing.assert_close(outputs.float(), layer(inputs)[0], rtol=0.1, atol=0.05)


@pytest.mark.parametrize("options", [{"kernel_size": 1}, {"dt_rank": 3}, {"expansion": 1, "state_size": 1}])
def test_mamba_options(options: dict) -> None:
    layer = Mamba(5, 6, **options).double()
    inputs = torch.randn(2, 70, 5, dtype=torch.float64)
    outputs, end = layer(inputs)
    state, steps = layer.initial_state(2), []
    for x in inputs.unbind(1):
        y, state = layer.step(x, state)
        steps.append(y)
    torch.testing.assert_close(outputs, torch.stack(steps, dim=1))
    for a, b in zip(end, state, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("options", [{"state_size": 0}, {"kernel_size": 0}, {"dt_rank": 0}, {"dt_max": 0.0}])
def test_mamba_names_what_does_not_fit(options: dict) -> None:
    with refused("range", value=next(iter(options))):
        Mamba(4, 4, **options)


@pytest.mark.parametrize("layer", [S4D, Mamba])
def test_empty_batches_and_sequences(layer) -> None:
    made = layer(4, 4)
    for batch, time in ((0, 3), (2, 0)):
        outputs, state = made(torch.randn(batch, time, 4))
        assert outputs.shape == (batch, time, 4)
        assert (state if layer is S4D else state.memory).shape[0] == batch
