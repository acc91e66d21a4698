"""The scan of linear recurrences against the obvious loop."""

import pytest
import torch
from torch import Tensor

from seriatim.layers import scan as scan_module
from seriatim.layers.scan import linear_scan


def scanned(decays: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """The obvious loop."""
    states = []
    for t in range(decays.shape[1]):
        state = decays[:, t] * state + inputs[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


@pytest.mark.parametrize("wide", [0, 10**9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("time", [1, 2, 4, 7, 17, 63])
def test_the_scan_is_the_obvious_loop(time: int, dtype: torch.dtype, wide: int, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "WIDE", wide)
    torch.manual_seed(0)
    shapes = ((2, time, 3, 2), (2, time, 3, 2), (2, 3, 2))
    given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    weights = torch.randn(shapes[0], dtype=dtype)
    found, expected = linear_scan(*given), scanned(*given)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum().abs(), given),
        torch.autograd.grad((expected * weights).sum().abs(), given),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("wide", [0, 10**9])
@pytest.mark.parametrize("time", [1, 5, 11])
def test_the_scan_has_the_right_gradient(time: int, wide: int, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "WIDE", wide)
    torch.manual_seed(0)
    shapes = ((2, time, 2), (2, time, 2), (2, 2))
    assert torch.autograd.gradcheck(
        linear_scan, [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    )


@pytest.mark.parametrize("decay", [0.0, 1e-30, -0.5, 1.0])
def test_the_scan_stays_exact_where_products_vanish(decay: float) -> None:
    torch.manual_seed(0)
    inputs, start = torch.randn(1, 300, 4), torch.randn(1, 4)
    decays = torch.full_like(inputs, decay).requires_grad_()
    found = linear_scan(decays, inputs, start)
    torch.testing.assert_close(found, scanned(decays, inputs, start))
    found.sum().backward()
    assert decays.grad.isfinite().all()


def test_the_scan_takes_views_and_leaves_them_alone() -> None:
    torch.manual_seed(0)
    decays = torch.rand(4, dtype=torch.float64).expand(2, 50, 4)
    inputs = torch.randn(50, 2, 4, dtype=torch.float64).transpose(0, 1)
    start = torch.randn(1, 4, dtype=torch.float64).expand(2, 4)
    before = [leaf.clone() for leaf in (decays, inputs, start)]
    torch.testing.assert_close(linear_scan(decays, inputs, start), scanned(decays, inputs, start))
    assert all(torch.equal(a, b) for a, b in zip(before, (decays, inputs, start), strict=True))


def test_the_scan_names_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(batch, time, \.\.\.\)"):
        linear_scan(torch.ones(2, 3, 4), torch.ones(2, 3, 5), torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"start \(batch, \.\.\.\)"):
        linear_scan(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.ones(2, 5))
