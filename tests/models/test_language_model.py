"""The language model: the contract on token ids, and a loss that never holds all logits."""

import pytest
import torch
from torch.nn import functional as F

import seriatim
from seriatim.core.state import map_state
from seriatim.models import LanguageModel, cross_entropy

from ..exhaustive import parameters
from ..refusals import refused


def model(name: str = "lstm", **options) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(seriatim.layer(name, 6, 6), 11, **options).double().eval()


LAYERS = parameters(seriatim.layers.names(), everyday=("convolution", "lstm", "mamba", "transformer"))


@pytest.mark.parametrize("name", LAYERS)
def test_steps_equal_forward(name: str) -> None:
    made, tokens = model(name), torch.randint(0, 11, (3, 7))
    logits, end = made(tokens)
    state = made.initial_state(3)
    for t in range(7):
        step, state = made.step(tokens[:, t], state)
        torch.testing.assert_close(step, logits[:, t])
    map_state(lambda a, b: torch.testing.assert_close(a, b) or a, state, end)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_the_loss_is_cross_entropy_with_its_gradient(name: str, tied: bool) -> None:
    made = model(name, tie_weights=tied)
    tokens, targets, lengths = torch.randint(0, 11, (4, 9)), torch.randint(0, 11, (4, 9)), torch.tensor([9, 0, 4, 1])
    ours, _ = made.loss(tokens, targets, lengths=lengths)
    logits, _ = made(tokens, lengths=lengths)
    valid = torch.arange(9) < lengths[:, None]
    theirs = F.cross_entropy(logits[valid], targets[valid], reduction="sum")
    torch.testing.assert_close(ours, theirs)
    parameters = list(made.parameters())
    found = [torch.autograd.grad(0.3 * loss, parameters, materialize_grads=True) for loss in (ours, theirs)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    losses, _ = made.token_losses(tokens, targets, lengths=lengths)
    torch.testing.assert_close(losses.sum(), theirs)
    assert (losses[~valid] == 0).all()


@pytest.mark.parametrize("vocabulary", [3, 1000])
@pytest.mark.parametrize("positions", [0, 1, 7, 300])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, positions: int, vocabulary: int) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 7 * vocabulary)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS", 7)
    torch.manual_seed(0)
    hidden = torch.randn(positions, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocabulary, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, vocabulary, (positions,))
    for bias in (None, torch.randn(vocabulary, dtype=torch.float64, requires_grad=True)):
        sources = [hidden, weight] + ([] if bias is None else [bias])
        ours = cross_entropy.summed_loss(hidden, weight, bias, targets)
        theirs = F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="sum")
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(torch.autograd.grad(ours, sources), torch.autograd.grad(theirs, sources), strict=True):
            torch.testing.assert_close(a, b)
        with torch.no_grad():
            torch.testing.assert_close(cross_entropy.summed_loss(hidden, weight, bias, targets), theirs)


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = cross_entropy.summed_loss(hidden, weight, None, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(2e4)
    assert torch.isfinite(weight.grad).all()


def test_bfloat16_is_near_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 16, requires_grad=True), torch.randn(90, 16, requires_grad=True)
    targets = torch.randint(0, 90, (50,))
    exact = cross_entropy.summed_loss(hidden, weight, None, targets)
    with torch.autocast("cpu", torch.bfloat16):
        near = cross_entropy.summed_loss(hidden, weight, None, targets)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, rtol=0.01, atol=0)
    for a, b in zip(
        torch.autograd.grad(near, [hidden, weight]), torch.autograd.grad(exact, [hidden, weight]), strict=True
    ):
        assert (a - b).norm() < 0.02 * b.norm()


def test_what_cannot_be_a_language_model() -> None:
    with refused("unsupported", "model.bidirectional"):
        LanguageModel(seriatim.layer("gru", 4, 4, bidirectional=True), 9)
    with refused("mismatch", "model.tie_weights"):
        LanguageModel(seriatim.layer("gru", 4, 5), 9, tie_weights=True)
