"""The products before a compiled loop: both libraries give the same values and gradients, in the same layout."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.state import state_leaves
from seriatim.recurrence import compiled_loop, explain

B, T, D, H = 3, 5, 12, 16
CELLS = ("lstm-peephole", "gru-original", "rnn")


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("PyTorch has no oneDNN here")
    monkeypatch.setattr(compiled_loop, "WORTH_ONEDNN", 0)


def run(layer: seriatim.Recurrent, lengths: Tensor | None = None) -> Sequence[Tensor]:
    """Return outputs, state, and the gradients of inputs and parameters."""
    torch.manual_seed(2)
    inputs = torch.randn(B, T, D, requires_grad=True)
    outputs, state = layer(inputs, lengths=lengths)
    values = [outputs, *state_leaves(state)]
    total = sum((value * torch.linspace(-1, 1, value.numel()).view_as(value)).sum() for value in values)
    return [*values, *torch.autograd.grad(total, [inputs, *layer.parameters()])]


def chosen(monkeypatch: pytest.MonkeyPatch, *, onednn: bool) -> list[bool]:
    """Let a library compute the products; the list that is returned grows with each product by oneDNN."""
    calls: list[bool] = []
    multiply = compiled_loop._multiply_by_onednn
    monkeypatch.setattr(compiled_loop, "prefers_onednn", lambda: onednn)
    monkeypatch.setattr(compiled_loop, "_multiply_by_onednn", lambda *given: calls.append(True) or multiply(*given))
    return calls


@pytest.mark.parametrize("name", CELLS)
def test_both_libraries_agree_in_values_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layer = seriatim.layer(name, D, H)
    if "runs as a loop" in explain(layer.cell):
        pytest.skip("there is no compiler")
    chosen(monkeypatch, onednn=False)
    expected = run(layer)
    calls = chosen(monkeypatch, onednn=True)
    for mine, theirs in zip(run(layer), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        assert mine.stride() == theirs.stride()
    assert calls


@pytest.mark.parametrize("way", ["no gradients", "float64", "several lengths"])
def test_only_trainings_on_full_batches_change_the_library(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = chosen(monkeypatch, onednn=True)
    layer = seriatim.layer("lstm-peephole", D, H)
    if way == "several lengths":
        run(layer, torch.tensor([5, 2, 3]))
    elif way == "float64":
        layer.double()(torch.randn(B, T, D, dtype=torch.float64, requires_grad=True))
    else:
        with torch.no_grad():
            layer(torch.randn(B, T, D))
    assert not calls
