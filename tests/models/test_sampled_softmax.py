"""The estimated softmax: its expectation, its gradient, and what it leaves out."""

import numpy as np
import pytest
import torch

from seriatim.models.cross_entropy import summed_loss
from seriatim.models.sampled_softmax import TokenSampler, sampled_loss

VOCABULARY, SIZE = 300, 6


def inputs(positions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden states, W, b and targets, in float64; the bias follows the counts."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(positions, SIZE, dtype=torch.float64, generator=generator)
    weight = torch.randn(VOCABULARY, SIZE, dtype=torch.float64, generator=generator)
    bias = torch.from_numpy(np.log(counts()))
    return hidden, weight, bias, torch.randint(VOCABULARY, (positions,), generator=generator)


def counts() -> np.ndarray:
    return np.random.default_rng(1).zipf(1.3, VOCABULARY).clip(max=5000).astype(np.float64)


def partition(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return one estimate of the sum over the vocabulary, from the loss −log(exp(z_y) / sum) of one position."""
    sampler = TokenSampler(counts(), 100)
    loss = sampled_loss(hidden, weight, bias, targets, sampler)
    return (loss + (hidden @ weight[targets[0]]) + bias[targets[0]]).exp()


def test_the_expectation_is_the_whole_sum() -> None:
    torch.manual_seed(2)
    hidden, weight, bias, targets = inputs(1)
    estimates = torch.stack([partition(hidden, weight, bias, targets) for _ in range(3000)])
    whole = (hidden @ weight.T + bias).exp().sum()
    error = estimates.std() / len(estimates) ** 0.5
    assert 0 < error < 0.05 * whole
    assert abs(estimates.mean() - whole) < 4 * error


@pytest.mark.parametrize("has_bias", [True, False])
def test_all_tokens_frequent_is_exact(has_bias: bool) -> None:
    """With every token but one among the frequent ones, and that one drawn, nothing is left to chance."""
    hidden, weight, bias, targets = inputs(7)
    sampler = TokenSampler(counts(), 2 * VOCABULARY - 2)
    assert len(sampler.frequent) == VOCABULARY - 1
    tensors = [tensor.requires_grad_() for tensor in ((hidden, weight, bias) if has_bias else (hidden, weight))]
    arguments = (*tensors, *(() if has_bias else (None,)), targets)
    loss = sampled_loss(*arguments, sampler)
    gradients = torch.autograd.grad(loss, tensors)
    exact = summed_loss(*arguments)
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-6)
    for gradient, expected in zip(gradients, torch.autograd.grad(exact, tensors), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)


def test_the_mean_gradient_is_near_the_exact_one() -> None:
    torch.manual_seed(3)
    *given, targets = inputs(20)
    tensors = [tensor.requires_grad_() for tensor in given]
    arguments = (*tensors, targets)
    sampler = TokenSampler(counts(), 200)
    draws = [torch.autograd.grad(sampled_loss(*arguments, sampler), tensors) for _ in range(400)]
    for found, exact in zip(
        zip(*draws, strict=True), torch.autograd.grad(summed_loss(*arguments), tensors), strict=True
    ):
        mean = torch.stack(found).mean(0)
        assert (mean - exact).norm() < 0.1 * exact.norm()


def test_draws_follow_the_counts() -> None:
    torch.manual_seed(4)
    sampler = TokenSampler(np.array([100.0, 50.0, 16.0, 1.0, 0.0]), 4)
    assert sampler.frequent.tolist() == [0, 1]
    ids = torch.cat([sampler.draw(torch.device("cpu"))[0][2:] for _ in range(4000)])
    share = (ids == 2).double().mean()
    assert abs(share - 8 / 9) < 0.02  # 16 ** 0.75 = 8 of 9
